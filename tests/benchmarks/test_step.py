"""The studio's bare step and the usual loop of transformers and peft are the same training: losses and gradients."""

from __future__ import annotations

import dataclasses
from itertools import islice

import pytest
import torch

from benchmarks.batches import draw_batches
from benchmarks.cases import Case
from benchmarks.make_model import make_model
from benchmarks.peers import build_peer, draw_adapters
from benchmarks.step import build_step
from studio.core.policy import LayerPolicy, MemoryPolicy

CPU = torch.device("cpu")
HF = Case(
    name="hf", rows=(0,), shape="tiny", stack="hf", bits=16, checkpointing="none",
    batch=3, tokens=40, dtype="bf16",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model("tiny", tmp_path_factory.mktemp("made") / "tiny", tokens=48)


def take(step, case: Case, count: int = 3) -> tuple[list[float], float]:
    """Return the losses of `count` steps and the first one's gradient norm."""
    batches = list(islice(draw_batches(case, 384, CPU), count))
    losses = [float(step.gradients(batches[0]))]
    norm = step.norm()
    step.update()
    losses += [float(step(batch)) for batch in batches[1:]]
    step.close()
    return losses, norm


@pytest.mark.parametrize("stock", [False, True])
@pytest.mark.parametrize("lengths", ["full", "padded"])
@pytest.mark.parametrize("bits", [16, 4])
def test_same_losses_and_gradients(folder, lengths, bits, stock):
    case = dataclasses.replace(HF, lengths=lengths, bits=bits)
    theirs, norm = take(build_peer(case, folder, CPU), case)
    step = build_step(folder, bits=bits, batch=3, tokens=40, stock=stock, device=CPU)
    assert (step.policy is None) == stock
    ours, our_norm = take(step, case)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert our_norm == pytest.approx(norm, rel=0.02) and norm > 0
    assert len(set(theirs)) == 3


def test_packed_documents_do_not_see_each_other(folder):
    case = dataclasses.replace(HF, lengths="packed", batch=1, dtype="fp32")
    build = {"bits": 16, "tokens": 40, "dtype": "fp32", "device": CPU}
    packed = next(
        batch
        for batch in draw_batches(dataclasses.replace(case, tokens=96), 384, CPU)
        if len(batch.lengths[0]) > 1
    )
    together = float(build_step(folder, batch=1, **build).gradients(packed))
    total = tokens = start = 0
    for length in packed.lengths[0]:
        part = dataclasses.replace(packed, ids=packed.ids[:, start : start + length], lengths=((length,),))
        total += float(build_step(folder, batch=1, **build).gradients(part)) * (length - 1)
        tokens, start = tokens + length - 1, start + length
    assert together == pytest.approx(total / tokens, rel=1e-5)


@pytest.mark.parametrize("stock", [False, True])
def test_what_is_kept_does_not_change_the_numbers(folder, stock):
    lean = MemoryPolicy(layers=(LayerPolicy(keep="input"),) * 2)
    build = {"bits": 16, "batch": 3, "tokens": 40, "stock": stock, "device": CPU}
    assert take(build_step(folder, policy=lean, **build), HF) == take(build_step(folder, **build), HF)


def test_adapters_hang_on_their_place_alone():
    class Wrapped(torch.nn.Module):
        def __init__(self, path: str) -> None:
            super().__init__()
            inner = self
            for part in (*path.split("."), "layers", "1", "q_proj", "lora_A"):
                inner.add_module(part, torch.nn.Module())
                inner = getattr(inner, part)
            inner.add_module("default", torch.nn.Linear(8, 4, bias=False))

    one, other = Wrapped("base_model.model.model"), Wrapped("model")
    assert draw_adapters(one) == draw_adapters(other) == 32
    assert torch.equal(*(next(model.parameters()) for model in (one, other)))
    with pytest.raises(ValueError):
        draw_adapters(torch.nn.Linear(2, 2))
