"""How rows become micro-steps: none is lost, none is too large, and the gradient of a step never depends on the cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from studio_kernels.dispatch import bind

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.data.sequence_packing import Example, count_trained
from studio.engine.batches import cut_rows, cut_stream
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives.sft import SFT
from studio.engine.train_step import StockStep
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from tests.each_time import some
from tests.models.decoder.models import make_model

lengths_of_rows = st.lists(st.integers(1, 300), min_size=1, max_size=40).map(
    lambda lengths: sorted(lengths, reverse=True)
)


@settings(max_examples=200, deadline=None)
@given(lengths_of_rows, st.integers(1, 50), st.integers(0, 500), st.integers(1, 2000))
def test_padded_cuts_take_every_row_once(lengths, most_rows, own_tokens, most_tokens):
    sizes = cut_rows(lengths, most_rows, own_tokens, most_tokens)
    assert sum(sizes) == len(lengths) and 1 <= min(sizes) <= max(sizes) <= most_rows
    edges = [0, *itertools.accumulate(sizes)]
    made = [lengths[edge] * size for edge, size in zip(edges, sizes, strict=False)]
    assert all(tokens <= most_tokens or size == 1 for tokens, size in zip(made, sizes, strict=True))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=7), st.integers(1, 7), st.integers(0, 500))
def test_padded_cuts_are_the_best_there_are(lengths, most_rows, own_tokens):
    """Against all cuts."""
    lengths = sorted(lengths, reverse=True)

    def take(sizes) -> int:
        edges = [0, *itertools.accumulate(sizes)]
        return sum(lengths[edge] * size + own_tokens for edge, size in zip(edges, sizes, strict=False))

    cuts = []
    for marks in itertools.product((False, True), repeat=len(lengths) - 1):
        edges = [0, *(i + 1 for i, mark in enumerate(marks) if mark), len(lengths)]
        sizes = [stop - start for start, stop in itertools.pairwise(edges)]
        if max(sizes) <= most_rows:
            cuts.append(take(sizes))
    assert take(cut_rows(lengths, most_rows, own_tokens)) == min(cuts)


@settings(max_examples=200, deadline=None)
@given(lengths_of_rows, st.integers(1, 2000))
def test_streams_take_every_row_once_and_none_too_many_tokens(lengths, most_tokens):
    streams = cut_stream(lengths, most_tokens)
    assert sorted(row for stream in streams for row in stream) == list(range(len(lengths)))
    sizes = [sum(lengths[row] for row in stream) for stream in streams]
    assert all(size <= most_tokens or len(stream) == 1 for size, stream in zip(sizes, streams, strict=True))
    assert len(streams) == 1 or sum(lengths) > most_tokens


def test_streams_are_even():
    lengths = sorted(np.random.default_rng(0).integers(16, 1024, 64).tolist(), reverse=True)
    sizes = [sum(lengths[row] for row in stream) for stream in cut_stream(lengths, 8192)]
    assert max(sizes) - min(sizes) < 1024 and len(sizes) == -(-sum(lengths) // 8192)


# The gradient of a step ----------------------------------------------------------------------------------------------


def draw_rows(count: int = 8) -> list[Example]:
    """Return masked chats: between a twentieth and all of their tokens are learned."""
    rng, rows = np.random.default_rng(3), []
    for share in np.linspace(0.05, 1.0, count):
        length = int(rng.integers(8, 60))
        trained = rng.random(length) < share
        trained[-1] = True
        rows.append(Example(rng.integers(2, 97, length).astype(np.int32), trained, (length,)))
    return sorted(rows, key=lambda row: -len(row.token_ids))


def make_step(own: bool, dtype: torch.dtype, packing: bool) -> DecoderStep | StockStep:
    model = make_model("llama", dtype=dtype)
    if dtype is torch.float64:
        model.double()  # the adapters, too
    if own:
        policy = MemoryPolicy(layers=(LayerPolicy(),) * 3)
        decoder = take_over(unwrap(model), bind({}), dtype=dtype, policy=policy)
        assert isinstance(decoder, Decoder), decoder
        return DecoderStep(decoder, objective=SFT, pad_id=0, packing=packing)
    head = LossHead(unwrap(model))
    return StockStep(
        model, head.token_losses, objective=SFT, dtype="fp32", device=torch.device("cpu"), pad_id=0
    )


def gradients_of(
    own: bool, dtype: torch.dtype, rows: list[Example], cut, packing: bool = True
) -> torch.Tensor:
    """Return the gradients of a step of `rows`; `cut` gives its micro-steps."""
    step = make_step(own, dtype, packing)
    step.clear()
    trained = sum(count_trained(row) for row in rows)
    for part in cut(step):
        step.add_gradients(part, trained, lambda loss: loss)
    return torch.cat([parameter.grad.flatten() for parameter in (*step.decayed, *step.undecayed)]).double()


@pytest.mark.parametrize("way", ["decoder, packed", "decoder, not packed", "own code"])
@pytest.mark.parametrize("count", some([1, 2, 4, 8], 4))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_gradient_is_that_of_the_rows_one_by_one(way, count, dtype):
    own, packing = way != "own code", way != "decoder, not packed"
    rows = draw_rows()
    alone = gradients_of(own, dtype, rows, lambda step: [[row] for row in rows])
    longest = len(rows[0].token_ids)
    cut = gradients_of(own, dtype, rows, lambda step: step.cut(rows, count, longest), packing)
    if dtype is torch.float64:
        # The model's own norms compute in fp32 whatever its dtype is: 4e-9 apart where a processor sums them otherwise.
        most = 1e-12 if own else 1e-7
        assert (cut - alone).norm() < most * alone.norm()
    else:
        assert torch.cosine_similarity(cut, alone, dim=0) > 0.9999
