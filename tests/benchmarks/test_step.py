"""The studio's bare step and the usual loop of transformers and peft are the same training: losses and gradients."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

import benchmarks.step as step_module
from benchmarks.batches import draw_batches
from benchmarks.cases import Case
from benchmarks.make_model import make_model
from benchmarks.peers import build_peer, draw_adapters
from benchmarks.step import build_step
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.engine.decoder_step import DecoderStep
from studio.engine.train_step import StockStep
from tests.each_time import some

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("stock", some([False, True], True))
@pytest.mark.parametrize("lengths", some(["full", "padded"], "padded"))
@pytest.mark.parametrize("bits", some([16, 4], 4))
def test_same_losses_and_gradients(folder, lengths, bits, stock):
    case = dataclasses.replace(HF, lengths=lengths, bits=bits)
    theirs, norm = take(build_peer(case, folder, CPU), case)
    step = build_step(folder, bits=bits, batch=3, tokens=40, stock=stock, device=CPU)
    assert (step.policy is None) == stock
    ours, our_norm = take(step, case)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert our_norm == pytest.approx(norm, rel=0.02) and norm > 0
    assert len(set(theirs)) == 3


@pytest.mark.computing
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


@pytest.mark.parametrize("stock", some([False, True], True))
def test_what_is_kept_does_not_change_the_numbers(folder, stock):
    lean = MemoryPolicy(layers=(LayerPolicy(keep="input"),) * 2)
    build = {"bits": 16, "batch": 3, "tokens": 40, "stock": stock, "device": CPU}
    assert take(build_step(folder, policy=lean, **build), HF) == take(build_step(folder, **build), HF)


@pytest.mark.computing
@pytest.mark.parametrize("bits", [16, 4])
def test_without_triton_the_decoder_trains_within_a_budget(folder, bits):
    """A process of its own: Triton is out of reach before anything is imported, as for measure.py."""
    asked = (
        "import sys; sys.modules['triton'] = None\n"
        "from pathlib import Path; from itertools import islice; import torch\n"
        "from benchmarks.batches import draw_batches; from benchmarks.step import build_step\n"
        "from tests.benchmarks.test_step import HF, CPU, take\n"
        f"step = build_step(Path({str(folder)!r}), bits={bits}, batch=3, tokens=40, budget_bytes=2**20, device=CPU)\n"
        "print(step.policy.layers[0].keep, *take(step, HF)[0])"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    keep, *losses = done.stdout.split()
    assert keep == "input"
    theirs, _ = take(build_peer(dataclasses.replace(HF, bits=bits), folder, CPU), HF)
    assert [float(loss) for loss in losses] == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("stock", [False, True])
def test_the_studios_own_optimizer_is_pytorchs_adamw(folder, stock):
    case = dataclasses.replace(HF, optimizer="adamw", dtype="fp32")
    build = {"bits": 16, "batch": 3, "tokens": 40, "dtype": "fp32", "device": CPU}
    ours, _ = take(build_step(folder, optimizer="adamw", stock=stock, **build), case)
    theirs, _ = take(build_peer(case, folder, CPU), case)
    assert ours == pytest.approx(theirs, rel=1e-5) and len(set(ours)) == 3


@pytest.mark.computing
def test_turing_takes_the_same_steps(folder):
    build = {"bits": 16, "batch": 3, "tokens": 40, "dtype": "fp32", "device": CPU}
    case = dataclasses.replace(HF, dtype="fp32")
    ours, norm = take(build_step(folder, turing=True, **build), case)
    theirs, their_norm = take(build_step(folder, **build), case)
    assert ours == pytest.approx(theirs, rel=1e-5) and norm == pytest.approx(their_norm, rel=1e-4)


def test_a_bare_step_is_the_engines(folder):
    optimizers = []
    for stock, kind in ((False, DecoderStep), (True, StockStep)):
        seen = []
        made = step_module.put_in_loop

        def note(model, fast, step, dtype, optimizer, made=made, seen=seen):
            seen.append(step)
            return made(model, fast, step, dtype, optimizer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_module, "put_in_loop", note)
            build_step(folder, bits=16, batch=3, tokens=40, stock=stock, device=CPU).close()
        assert type(seen[0]) is kind
        optimizers.append(len([*seen[0].decayed, *seen[0].undecayed]))
    assert optimizers[0] == 1 < optimizers[1]  # the decoder's adapters are one parameter


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
