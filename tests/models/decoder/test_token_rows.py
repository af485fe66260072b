"""Rows of embedding and head that are trained beside an adapter: gradients, and the table as it was before."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from torch import nn

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from studio.models.decoder.token_rows import read_rows
from tests.models.decoder.double import in_double
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder import assert_equal, make_batch, ours, stock, take

ROWS = [5, 93, 40, 2]
"""Some of the batch's tokens, as inputs and as labels."""


def make_rows_model(family: str, tied: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    return make_model(family, dtype=dtype, tokens=ROWS, tie_word_embeddings=tied)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "granite"])
def test_in_float64_gradients_are_those_of_peft_to_the_last_digits(family, tied):
    model = make_rows_model(family, tied, torch.float64).double()
    with in_double():
        theirs = stock(model, 0.37)
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float64)
        assert isinstance(decoder, Decoder), decoder
        mine = ours(model, decoder, 0.37)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-12)
    assert sum("trainable_tokens" in name for name in theirs[1]) == (1 if tied else 2)
    for name, gradient in theirs[1].items():
        assert gradient.norm() > 0
        assert (mine[1][name] - gradient).norm() < 1e-9 * gradient.norm(), name


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_kept_does_not_change_the_numbers(tied, monkeypatch):
    monkeypatch.setattr("studio.models.decoder.token_rows.ROWS_AT_ONCE", 3)
    model = make_rows_model("llama", tied)
    decoder = take(model)
    layers = (LayerPolicy(keep="input", offload=True),) * 3
    decoder.follow(MemoryPolicy(layers=layers, mlp_chunk_tokens=0, head_rows=7, head_columns=40))
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))


def test_a_judge_weighs_the_rows_gradients_as_it_weighs_the_others():
    model = make_rows_model("llama", False)
    decoder = take(model)
    ids, picks, targets = make_batch()
    weights = torch.linspace(0.0, 1.0, len(picks))
    found = []

    class Judge:
        wants_entropy = False

        def __call__(self, losses, entropies):
            return -weights

    for scale, judge in ((weights, None), (torch.tensor(-1.0), Judge())):
        decoder.store.clear_gradients()
        rows = decoder.make_rows(Documents.of((11, 1, 20), "cpu"))
        decoder.add_gradients(ids, rows, picks, targets, scale, judge)
        found.append(decoder.store.gradients.clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=2e-6)


def test_a_released_decoder_leaves_the_table_as_it_was():
    model = make_rows_model("llama", True)
    rows = read_rows(unwrap(model).get_input_embeddings())
    before = rows.table.detach().clone()
    decoder = take(model)
    assert not torch.equal(rows.table, before)
    decoder.release()
    assert torch.equal(rows.table, before)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_finds_rows_that_are_computed_otherwise(tied, dtype, monkeypatch):
    model = make_rows_model("llama", tied, dtype)
    decoder = take_over(unwrap(model), bind({}), dtype=dtype)
    autocast = None if dtype == torch.float32 else dtype
    assert find_difference(unwrap(model), decoder, autocast) is None
    decoder.embedding.scale = 1.5
    assert find_difference(unwrap(model), decoder, autocast).values["part"].startswith("embed_tokens")
    decoder.embedding.scale = 1.0
    rows = type(decoder.spec.head_rows)
    real = rows.add_projected
    monkeypatch.setattr(rows, "add_projected", lambda self, *given: real(self, given[0] * 1.1, *given[1:]))
    assert find_difference(unwrap(model), decoder, autocast) is not None
