"""What runs learned of a machine: kept per everything that it hangs on, and never in the way of a run."""

from __future__ import annotations

import dataclasses
import json

import pytest

from studio.core.facts import MeasuredSpeed
from studio.core.memory_policy import Calibration
from studio.planning.learned_limits import MOST_SPEEDS, Load, Remembered, survey
from tests.machine.facts import make_gpu, make_machine

GPU = make_gpu(name="RTX 4090")
MACHINE = make_machine(GPU, driver="581.29")
LOAD = Load(model="a" * 64, max_length=1024, gpu=GPU.name, quantization="nf4", method="lora")


@pytest.fixture
def store(tmp_path):
    return Remembered(tmp_path / "remembered.json")


def test_a_verdict_comes_back_with_its_reason(store):
    assert store.broken_kernels(MACHINE) == {}
    store.note_kernel("glu", MACHINE, GPU.name, shape="gate bf16 (8, 64)", reason="ptxas failed")
    again = Remembered(store.path)
    assert again.broken_kernels(MACHINE) == {"glu": "ptxas failed"}
    assert again.broken_kernels(MACHINE, GPU.name) == {"glu": "ptxas failed"}
    (verdict,) = again.read().kernels
    assert verdict.shape == "gate bf16 (8, 64)" and verdict.time_s > 1e9
    assert verdict.surroundings == survey(MACHINE, GPU.name)


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "590.10"},
        {"packages": MACHINE.packages | {"torch": "2.14.1"}},
        {"packages": MACHINE.packages | {"triton": "3.8.0"}},
        {"packages": {k: v for k, v in MACHINE.packages.items() if k != "triton"}},
        {"gpus": (make_gpu(name="RTX 3060"),)},
        {"gpus": ()},
    ],
    ids=["driver", "torch", "triton", "no triton", "gpu", "no gpu"],
)
def test_a_verdict_holds_for_its_surroundings_only(store, change):
    store.note_kernel("glu", MACHINE, GPU.name, shape="", reason="ptxas failed")
    assert store.broken_kernels(dataclasses.replace(MACHINE, **change)) == {}
    assert store.broken_kernels(dataclasses.replace(MACHINE, ram_bytes=1, cores=1)) != {}


def test_changed_kernels_are_tried_again(store, monkeypatch):
    import studio_kernels

    store.note_kernel("glu", MACHINE, GPU.name, shape="", reason="ptxas failed")
    monkeypatch.setattr(studio_kernels, "fingerprint", lambda: "0" * 12)
    assert store.broken_kernels(MACHINE) == {}


def test_a_second_verdict_replaces_the_first_and_leaves_the_others(store):
    for op, reason in (("glu", "one"), ("rms_norm", "two"), ("glu", "three")):
        store.note_kernel(op, MACHINE, GPU.name, shape="", reason=reason)
    assert store.broken_kernels(MACHINE) == {"glu": "three", "rms_norm": "two"}
    assert len(store.read().kernels) == 2


def test_what_fitted_holds_for_the_same_load_and_no_more_room(store):
    store.note_fit(LOAD, 2, False, 10_000)
    store.note_fit(LOAD, 1, True, 10_000)
    fit = store.fit(LOAD, 10_000)
    assert (fit.micro_batch, fit.checkpointing) == (1, True) and len(store.read().fits) == 1
    assert store.fit(LOAD, 10_900) and store.fit(LOAD, 5_000)
    assert store.fit(LOAD, 12_000) is None, "a program that held the memory has gone: try again"
    for change in (
        {"model": "b"},
        {"max_length": 512},
        {"gpu": ""},
        {"quantization": "none"},
        {"method": "full"},
    ):
        assert store.fit(dataclasses.replace(LOAD, **change), 10_000) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"version": 1, "kernels": [{"op": 3}]}', b"\xff\xfe{}", b'{"new": 1}'],
)
def test_a_damaged_file_counts_as_empty_and_is_written_anew(store, content):
    store.path.write_bytes(content)
    assert store.broken_kernels(MACHINE) == {} and store.fit(LOAD, 0) is None
    store.note_kernel("glu", MACHINE, GPU.name, shape="", reason="x")
    assert json.loads(store.path.read_text(encoding="utf-8"))["version"] == 1
    assert store.broken_kernels(MACHINE) == {"glu": "x"}


def test_a_write_that_fails_leaves_the_old_file(store, monkeypatch):
    store.note_kernel("glu", MACHINE, GPU.name, shape="", reason="x")
    before = store.path.read_bytes()

    def refuse(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("studio.core.atomic_files.replace_file", refuse)
    with pytest.raises(OSError, match="No space"):
        store.note_fit(LOAD, 1, True, 0)
    assert store.path.read_bytes() == before
    assert [path.name for path in store.path.parent.iterdir()] == [store.path.name]


def test_forgetting_is_complete(store):
    assert store.forget() == 0
    store.note_kernel("glu", MACHINE, GPU.name, shape="", reason="x")
    store.note_fit(LOAD, 1, False, 0)
    assert store.forget() == 1
    assert store.broken_kernels(MACHINE) == {} and store.fit(LOAD, 0) is None
    assert not store.path.exists()


def test_what_a_card_takes_beyond_is_remembered_for_this_card_and_torch(store):
    assert store.calibration(MACHINE, GPU.name) is None
    store.note_calibration(MACHINE, GPU.name, Calibration(context_bytes=500, fragmentation=1.1))
    store.note_calibration(MACHINE, GPU.name, Calibration(context_bytes=700, fragmentation=1.05))
    store.note_calibration(MACHINE, "RTX 3090", Calibration(context_bytes=1, fragmentation=1.0))
    found = Remembered(store.path).calibration(MACHINE, GPU.name)
    assert found == Calibration(context_bytes=700, fragmentation=1.05)
    assert len(store.read().overheads) == 2
    newer = dataclasses.replace(MACHINE, packages={**MACHINE.packages, "torch": "9.9"})
    assert store.calibration(newer, GPU.name) is None


def test_the_speed_of_each_kind_of_run_is_remembered_and_told_to_the_next_plan(store):
    kind = {"gpu": GPU.name, "path": "decoder", "quantization": "none", "method": "lora", "parameters": 10**9}
    for run, speed in (("first", 10.0), ("second", 20.0)):
        store.note_speed(MeasuredSpeed(run=run, tokens_per_s=speed, reckoned_tokens_per_s=40.0, **kind))
    other = {**kind, "parameters": 10**8}
    store.note_speed(MeasuredSpeed(run="small", tokens_per_s=90.0, reckoned_tokens_per_s=40.0, **other))
    machine = Remembered(store.path).add_experience(MACHINE, GPU.name)
    assert [one.run for one in machine.speeds] == ["small", "second"] and machine.speeds[0].time_s > 0
    for number in range(MOST_SPEEDS + 5):
        other = {**kind, "parameters": number}
        store.note_speed(MeasuredSpeed(run=str(number), tokens_per_s=1.0, reckoned_tokens_per_s=1.0, **other))
    assert len(store.read().speeds) == MOST_SPEEDS
