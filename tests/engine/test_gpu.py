"""The engine on a real GPU: every way to train ends well, with our kernels in, and leaves the memory behind it free."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest
import torch
import triton
import triton.language as tl
from studio_kernels import glu, rms_norm

import studio.engine.run as engine
from studio.core.events import (
    EvalLogged,
    GpuSampled,
    KernelFellBack,
    MemoryFreed,
    PhaseStarted,
    RunPlanned,
    Warned,
)
from studio.core.recipe import change_recipe
from studio.engine import ladder, watch
from studio.engine.folder import create_run
from studio.engine.loss import LossHead
from studio.host.remembered import Remembered
from tests.conftest import chat_rows, make_model
from tests.engine.conftest import Ran

pytestmark = pytest.mark.gpu

WAYS = {
    "lora": {},
    "fp16": {"model.precision": "fp16"},
    "fp32": {"model.precision": "fp32"},
    "nf4": {"model.quantization": "nf4", "optim.optimizer": "paged_adamw_8bit"},
    "int8": {"model.quantization": "int8"},
    "full": {"adapter.method": "full", "optim.learning_rate": 3e-3},
    "full fp16": {"adapter.method": "full", "optim.learning_rate": 3e-3, "model.precision": "fp16"},
    "recompute": {"limits.activation_checkpointing": "on"},
    "packing": {"data.packing": True, "optim.micro_batch": 1},
    "dora": {"adapter.dora": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_ends_well_with_our_kernels(ran, machine, monkeypatch, way):
    assert machine.triton_level == "right", machine.triton_error
    assert machine.bitsandbytes_error == ""
    monkeypatch.setattr(watch, "INTERVAL_S", 0.01)
    result = ran({"optim.epochs": 4} | WAYS[way])
    assert result.record.state == "finished", result.log
    assert result.losses[-1] < result.losses[0] - 0.2
    planned = result.of(RunPlanned)[0]
    assert planned.plan.device.value == "cuda:0"
    # Two layers: five norms, two gated MLPs.
    swapped = {s.values["op"]: s.values["count"] for s in planned.swaps if s.id == "run.swapped"}
    assert swapped == {"rms_norm": 5, "glu": 2}, planned.swaps
    assert result.record.peak_vram_bytes > 0 and result.record.gpu == machine.gpus[0].name
    samples = result.of(GpuSampled)
    assert samples and samples[-1].memory_bytes > 0


def test_nothing_of_a_run_stays_on_the_gpu(ran):
    assert ran().record.state == "finished"
    gc.collect()
    left = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor) and thing.is_cuda]
    assert sum(tensor.nbytes for tensor in left) < 2**16
    assert torch.cuda.memory_reserved() < 32 * 2**20  # cuBLAS's workspaces alone take 64 MiB


def test_kernels_and_their_twins_train_alike(ran):
    ours, stock = ran({"optim.epochs": 4}), ran({"optim.epochs": 4, "limits.kernels": "pytorch"})
    assert ours.losses == pytest.approx(stock.losses, abs=0.02)


def test_the_peak_is_the_runs_own(ran):
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert ran().record.peak_vram_bytes < 2**28


def test_a_resumed_run_ends_as_an_uninterrupted_one(ran):
    whole, stopped = ran(), ran(stop_at=3)
    assert stopped.record.state == "stopped"
    resumed = ran(folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    assert resumed.losses[-1] == pytest.approx(whole.losses[-1], abs=1e-2)


# Kernels that break in mid-run ---------------------------------------------------------------------------------------

KERNELS = [(module, f"_{way}_kernel") for module in (rms_norm, glu) for way in ("forward", "backward")]


@triton.jit
def _never_compiles(pointer, COUNT: tl.constexpr):  # noqa: N803
    tl.static_assert(COUNT == 0, "broken on purpose")
    tl.store(pointer, 0.0)


@dataclass
class Breakable:
    """Stands before a launched kernel; where `place` says so, a kernel that does not compile is launched instead."""

    kernel: object
    now: list
    place: tuple = ()
    launches: list = field(default_factory=list)

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            if tuple(self.now) == self.place:
                return _never_compiles[(1,)](arguments[0], COUNT=4)
            self.launches.append(tuple(self.now))
            return self.kernel[grid](*arguments, **options)

        return launch


@pytest.fixture
def go(tmp_path, machine, recipe):
    """A function that runs the engine and keeps `now` up to date: `go(changes, now, store, on_event) -> Ran`."""

    def run(changes=None, now=None, store=None, on_event=lambda event: None) -> Ran:
        now = [] if now is None else now
        chosen = change_recipe(recipe, {"optim.epochs": 4, "limits.trial": False} | (changes or {}))
        folder, events = create_run(tmp_path / "runs", chosen), []

        def emit(event):
            events.append(event)
            on_event(event)

        def beat(phase, step, micro):
            now[:] = phase, step, micro

        record = engine.run(chosen, machine, folder, emit, lambda: False, beat, remembered=store)
        return Ran(folder, record, events)

    return run


@pytest.mark.parametrize(("module", "way"), [(rms_norm, "forward"), (glu, "backward")])
def test_a_kernel_broken_on_purpose_costs_no_step_and_is_remembered(go, monkeypatch, tmp_path, module, way):
    """At step 7, in the second micro-batch: a real error of Triton's compiler, in the backward on autograd's thread."""
    op, name = module.__name__.rpartition(".")[2], f"_{way}_kernel"
    calm, now, store = go(), [], Remembered(tmp_path / "remembered.json")
    broken = Breakable(getattr(module, name), now, ("train", 7, 1))
    monkeypatch.setattr(module, name, broken)
    fell = go(now=now, store=store)
    assert fell.record.state == "finished", fell.log
    assert [(event.op, event.step) for event in fell.of(KernelFellBack)] == [(op, 7)]
    assert "CompileTimeAssertionFailure" in fell.log and "broken on purpose" in fell.log
    assert fell.record.steps == calm.record.steps == 12
    assert fell.losses == pytest.approx(calm.losses, abs=0.02)
    assert broken.launches and max(step for _, step, _ in broken.launches) == 7
    (verdict,) = store.read().kernels
    assert verdict.op == op and verdict.surroundings.gpu == fell.record.gpu != ""
    broken.launches.clear()
    again = go(now=now, store=store)
    assert again.record.state == "finished" and not again.of(KernelFellBack) and not broken.launches
    assert again.of(RunPlanned)[0].plan.kernels[op].value == "reference"


def count_variants() -> dict[str, int]:
    """How many variants of each kernel Triton has compiled or loaded in this process."""
    counts = {}
    for module, name in KERNELS:
        caches = getattr(module, name).device_caches.values()
        counts[f"{module.__name__}.{name}"] = sum(len(cache[0]) for cache in caches)
    return counts


def test_nothing_compiles_after_the_warm_up_and_rows_are_padded_to_64(go, jsonl, tmp_path, monkeypatch):
    """Rows of 20 to 150 tokens, a short last batch, and an evaluation, against the variants after the warm-up."""
    rows = chat_rows(29)
    for number, row in enumerate(rows):
        row["messages"][1]["content"] += " and so on" * (number % 13)
    for module, name in KERNELS:
        getattr(module, name).device_caches.clear()
    widths, counts = set(), {}
    real = LossHead.sum_loss

    def note(self, batch):
        widths.add(batch.input_ids.shape[1])
        return real(self, batch)

    def on_event(event):
        if isinstance(event, PhaseStarted):
            counts[event.phase] = count_variants()

    monkeypatch.setattr(LossHead, "sum_loss", note)
    changes = {
        "data.source": str(jsonl(tmp_path / "lengths.jsonl", rows)),
        "data.max_length": 200,
        "data.validation_share": 0.2,
        "limits.eval_every": 2,
    }
    result = go(changes, on_event=on_event)
    assert result.record.state == "finished" and result.of(EvalLogged), result.log
    assert not result.of(KernelFellBack)
    assert all(counts["train"].values()), counts
    assert counts["save"] == counts["train"], "compiled in mid-run"
    assert widths == {64, 128, 192}


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A folder with a model whose activations fill some 4 GiB at 128 rows."""
    folder = tmp_path_factory.mktemp("large") / "model"
    return make_model(folder, hidden_size=512, intermediate_size=1024, num_hidden_layers=6)


def test_the_ladder_under_a_real_limit(go, large, jsonl, tmp_path, monkeypatch):
    """The limit lies at a third of what the whole micro-batch takes: same steps, same losses, and remembered."""
    rows = chat_rows(256)
    for row in rows:
        row["messages"][1]["content"] += " and so on" * 15
    changes = {
        "model.source": str(large),
        "model.precision": "fp32",
        "data.source": str(jsonl(tmp_path / "long.jsonl", rows)),
        "data.max_length": 192,
        "optim.micro_batch": 128,
        "optim.accumulation": 1,
        "optim.learning_rate": 1e-3,
        "optim.max_steps": 4,
        "limits.activation_checkpointing": "off",
    }
    calm = go(changes)
    assert calm.record.state == "finished" and not calm.of(MemoryFreed), calm.log
    assert [t.id for t in calm.of(RunPlanned)[0].swaps].count("run.memory_capped") == 1
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert calm.record.peak_vram_bytes > 2**29

    free_bytes, _ = torch.cuda.mem_get_info()
    monkeypatch.setattr(ladder, "MEMORY_SHARE", calm.record.peak_vram_bytes / 3 / free_bytes)
    store = Remembered(tmp_path / "remembered.json")
    tight = go(changes, store=store)
    assert tight.record.state == "finished", tight.log
    freed = tight.of(MemoryFreed)
    assert freed and {event.rung for event in freed} <= {"micro_batch", "checkpointing"}, freed
    assert {event.step for event in freed} == {1}
    assert tight.record.peak_vram_bytes < calm.record.peak_vram_bytes / 2
    assert tight.losses == pytest.approx(
        calm.losses, abs=1e-4
    )  # 1e-5 on a processor; here sums run in parallel
    assert torch.cuda.get_per_process_memory_fraction() == 1.0

    again = go(changes, store=store)
    assert again.record.state == "finished" and not again.of(MemoryFreed), again.log
    assert [event.message.id for event in again.of(Warned)] == ["run.fitted_before"]


def test_a_load_that_never_fits_ends_with_what_to_ask_for(go, large, monkeypatch):
    """The limit holds the weights (about 70 MiB) and little else."""
    free_bytes, _ = torch.cuda.mem_get_info()
    monkeypatch.setattr(ladder, "MEMORY_SHARE", 130 * 2**20 / free_bytes)
    ended = go({"model.source": str(large), "model.precision": "fp32", "adapter.method": "full"})
    assert ended.record.state == "failed"
    assert ended.failure in ("memory_exhausted", "gpu_memory"), ended.log
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    monkeypatch.undo()
    assert go().record.state == "finished", "the next run finds the card as it was"
