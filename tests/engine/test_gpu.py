"""The engine on a real GPU: every way to train ends well, with our kernels in, and leaves the memory behind it free."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

import studio.engine.run as engine
from studio.core.events import (
    GpuSampled,
    KernelFellBack,
    MemoryFreed,
    RunPlanned,
    RunResumed,
    StepLogged,
)
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.core.recipe import change_recipe
from studio.engine import memory_calibration as calibrating
from studio.engine import watchdog as watch
from studio.engine.run_folder import create_run
from studio.models.decoder import activation_offload as offload
from studio.planning import micro_batch
from tests.engine.gpu_steps import STEPS, note_replays, step_by, write_lengths

pytestmark = pytest.mark.gpu

DECODER = ["rms_norm", "glu", "rope", "dropout", "nf4", "adamw", "linear_cross_entropy", "lora"]
DORA = [*DECODER[:5], "magnitudes", *DECODER[5:]]
SWAPS = {"rms_norm": 5, "glu": 2}
"""Of two layers: five norms, two gated MLPs."""
WAYS = {
    "lora": ({}, DECODER),
    "fp16": ({"model.precision": "fp16"}, DECODER),
    # Matrix products in float32 are the library's.
    "fp32": ({"model.precision": "fp32"}, DECODER[:-1]),
    # The 8-bit optimizers are bitsandbytes'.
    "nf4": (
        {"model.quantization": "nf4", "optim.optimizer": "paged_adamw_8bit"},
        [op for op in DECODER if op != "adamw"],
    ),
    "recompute": ({"run.activation_checkpointing": "on"}, DECODER),
    "packing": ({"data.fill": True, "optim.micro_batch": 1}, DECODER),
    "dropout": ({"adapter.dropout": 0.1}, DECODER),
    "twins": ({"run.kernels": "pytorch"}, []),
    "int8": ({"model.quantization": "int8"}, SWAPS),
    "full": ({"adapter.method": "full", "optim.learning_rate": 3e-3}, DECODER),
    "full fp16": (
        {"adapter.method": "full", "optim.learning_rate": 3e-3, "model.precision": "fp16"},
        DECODER,
    ),
    "dora": ({"adapter.dora": True}, DORA),
    "dora nf4": ({"adapter.dora": True, "model.quantization": "nf4"}, DORA),
    "dora dropout": ({"adapter.dora": True, "adapter.dropout": 0.1}, SWAPS),
}
"""Changes of the recipe, and what is planned for them: the ops of the studio's own decoder, or parts of the model's own
code that are swapped (op -> how many)."""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_ends_well_with_our_kernels(ran, machine, monkeypatch, way):
    assert machine.triton_level == "right", machine.triton_error
    assert machine.bitsandbytes_error == ""
    monkeypatch.setattr(watch, "INTERVAL_S", 0.01)
    changes, expected = WAYS[way]
    result = ran({"optim.epochs": 4} | changes)
    assert result.record.state == "finished", result.log
    assert result.losses[-1] < result.losses[0] - 0.2
    assert not result.of(KernelFellBack) and not result.of(MemoryFreed)
    planned = result.of(RunPlanned)[0]
    assert planned.plan.device.value == "cuda:0"
    said = {words.id: words.values for words in planned.swaps}
    assert "run.memory_capped" in said and (expected in (SWAPS, []) or not planned.plan.slower), planned
    if expected is SWAPS:
        swapped = {s.values["op"]: s.values["count"] for s in planned.swaps if s.id == "run.swapped"}
        assert swapped == SWAPS and "run.decoder" not in said and planned.plan.memory is None, planned.swaps
    else:
        attention = said["run.decoder"]["attention"]
        assert said["run.decoder"]["layers"] == 2 and "run.swapped" not in said, planned.swaps
        assert said.get("run.decoder.ops", {"ops": ""})["ops"] == ", ".join(expected)
        assert "math" not in attention
        if way != "fp32" and torch.cuda.get_device_capability()[0] == 9:
            assert attention == "cudnn+flash"
        keeps = {layer.keep for layer in planned.plan.memory.layers}
        assert keeps == {"input" if way == "recompute" else "all"}
    assert result.record.peak_vram_bytes > 0 and result.record.gpu == machine.gpus[0].name
    samples = result.of(GpuSampled)
    assert samples and samples[-1].memory_bytes > 0


def test_small_steps_are_recorded_and_large_ones_launched(ran, monkeypatch):
    replays = note_replays(monkeypatch)
    result = ran({"run.trial": False})
    assert len(replays) > len(result.losses), "every micro-batch, and those of the warm-up"
    assert not any(tokens % 64 for tokens in replays)
    replays.clear()
    step_by(monkeypatch, "launched")
    assert ran({"run.trial": False}).record.state == "finished" and not replays


@pytest.mark.parametrize("dropout, dora", [(0.0, False), (0.2, False), (0.0, True)])
def test_recorded_launched_and_own_steps_train_alike(ran, tmp_path, monkeypatch, dropout, dora):
    """In float32, where no rounding hides a mistake, on rows of 20 to 150 tokens: graphs are used anew for others."""
    changes = {
        "data.source": str(write_lengths(tmp_path / "lengths.jsonl")),
        "data.max_length": 200,
        "model.precision": "fp32",
        "optim.epochs": 4,
        "adapter.dropout": dropout,
        "adapter.dora": dora,
    }
    replays = note_replays(monkeypatch)
    recorded = ran(changes)
    assert recorded.record.state == "finished" and replays, recorded.log
    step_by(monkeypatch, "launched")
    launched = ran(changes)
    assert launched.losses == pytest.approx(recorded.losses, abs=1e-3)
    if not dropout:  # the model's own code draws other numbers
        step_by(monkeypatch, "own code")
        assert ran(changes).losses == pytest.approx(recorded.losses, abs=5e-3)


@pytest.mark.parametrize("way", STEPS)
def test_nothing_of_a_run_stays_on_the_gpu(ran, monkeypatch, way):
    """Neither tensors, nor the graphs' own memory, nor what is kept in the machine's memory for the GPU."""
    blocks, real = [], offload._register

    def register(block: torch.Tensor) -> bool:
        blocks.append(weakref.ref(block))
        return real(block)

    monkeypatch.setattr(offload, "_register", register)
    step_by(monkeypatch, way)
    if way == "launched":
        for place in (micro_batch, calibrating):
            monkeypatch.setattr(place, "choose_policy", offload_all(place.choose_policy))
    gc.collect()
    torch.cuda.empty_cache()
    before_bytes = torch.cuda.memory_reserved()  # other tests of this process may have left something
    result = ran()
    assert result.record.state == "finished", result.log
    assert bool(blocks) == (way == "launched")
    gc.collect()
    left = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor) and thing.is_cuda]
    assert sum(tensor.nbytes for tensor in left) < 2**16
    assert torch.cuda.memory_reserved() < before_bytes + 32 * 2**20  # cuBLAS's workspaces alone take 64 MiB
    assert not any(block() is not None for block in blocks)


def offload_all(choose):
    """The planner, but every layer's input waits in the machine's memory, and the MLP goes in portions."""

    def chosen(*arguments, **options):
        choice = choose(*arguments, **options)
        away = LayerPolicy(keep="input", offload=True)
        policy = MemoryPolicy(layers=(away,) * len(choice.policy.layers), mlp_chunk_tokens=64)
        return dataclasses.replace(choice, policy=policy)

    return chosen


@pytest.mark.parametrize(("precision", "most"), [("auto", 0.02), ("fp32", 2e-3)])
def test_kernels_and_their_twins_train_alike(ran, monkeypatch, precision, most):
    """Beside the decoder with its twins also the model's own code without any kernel of ours."""
    changes = {"optim.epochs": 4, "model.precision": precision}
    ours, twins = ran(changes), ran(changes | {"run.kernels": "pytorch"})
    assert ours.losses == pytest.approx(twins.losses, abs=most)
    step_by(monkeypatch, "own code")
    stock = ran(changes | {"run.kernels": "pytorch"})
    said = {words.id for words in stock.of(RunPlanned)[0].swaps}
    assert said == {"run.memory_capped"}
    assert ours.losses == pytest.approx(stock.losses, abs=3 * most)


def test_the_peak_is_the_runs_own(ran):
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert ran().record.peak_vram_bytes < 2**28


# Runs that end before their end --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing of the engine catches it."""


@pytest.mark.parametrize("way", STEPS)
def test_a_resumed_run_ends_as_an_uninterrupted_one(ran, recipe, machine, tmp_path, monkeypatch, way):
    """Stopped after step 3, and killed after step 5, of which the checkpoint of step 4 is left.

    To the last bit where two uninterrupted runs agree to the last bit: what they differ by is the measure.
    """
    step_by(monkeypatch, way)
    changes = {"optim.epochs": 4, "adapter.dropout": 0.1, "run.trial": False}
    whole, again = ran(changes), ran(changes)
    noise = max(abs(one - other) for one, other in zip(whole.losses, again.losses, strict=True))
    assert noise < 0.02

    stopped = ran(changes, stop_at=3)
    assert stopped.record.state == "stopped"
    resumed = ran(folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    assert resumed.losses == pytest.approx(whole.losses[3:], rel=0, abs=4 * noise)

    folder = create_run(tmp_path / "runs", change_recipe(recipe, changes))

    def kill(event) -> None:
        if isinstance(event, StepLogged) and event.step == 5:
            raise Killed

    with pytest.raises(Killed):
        engine.run(folder.read_recipe(), machine, folder, kill, lambda: False)
    resumed = ran(folder=folder)
    assert resumed.record.state == "finished" and resumed.of(RunResumed)[0].step == 4, resumed.log
    assert resumed.losses == pytest.approx(whole.losses[4:], rel=0, abs=4 * noise)
