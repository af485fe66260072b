"""The engine on a real GPU: every way to train ends well, with our kernels in, and leaves the memory behind it free."""

from __future__ import annotations

import gc

import pytest
import torch

from studio.core.events import GpuSampled, RunPlanned
from studio.engine import watch

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
    assert swapped == {"rms_norm": 5, "swiglu": 2}, planned.swaps
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
