"""Checkpoints: whole or not there, ordered by step, and a damaged one steps aside with a notice."""

from __future__ import annotations

import errno
import os
import time

import pytest
import torch
from safetensors.torch import load_file

from studio.core.events import RunPlanned, RunResumed, Warned
from studio.engine import checkpoint as module
from studio.engine.checkpoint import (
    list_checkpoints,
    newest_valid,
    rotate,
    save_checkpoint,
    sweep,
    verify_checkpoint,
)
from studio.planning import run_plan
from tests.each_time import some


def write_two(folder):
    """Write a checkpoint of two files."""
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "b.bin").write_bytes(b"b" * 10)


def test_saved_is_whole_and_listed_newest_first(tmp_path):
    for step in (3, 20, 100):
        saved, size_bytes = save_checkpoint(tmp_path, step, write_two, keep=5)
    assert size_bytes == 1010
    assert [each.step for each in list_checkpoints(tmp_path)] == [100, 20, 3]
    assert verify_checkpoint(saved) is None


def test_rotation_goes_by_step_when_file_times_lie(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, write_two, keep=9)
        future = time.time() + 1e6 - step
        os.utime(tmp_path / f"step-{step:08d}", (future, future))
    save_checkpoint(tmp_path, 4, write_two, keep=2)
    assert [each.step for each in list_checkpoints(tmp_path)] == [4, 3]


def test_keep_zero_keeps_one(tmp_path):
    save_checkpoint(tmp_path, 1, write_two, keep=1)
    rotate(tmp_path, 0)
    assert len(list_checkpoints(tmp_path)) == 1


def test_a_failed_write_leaves_nothing(tmp_path):
    save_checkpoint(tmp_path, 1, write_two, keep=2)

    def full(folder):
        write_two(folder)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError):
        save_checkpoint(tmp_path, 2, full, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_leftovers_of_a_killed_writer_are_not_checkpoints(tmp_path):
    (tmp_path / ".staging-123").mkdir()
    write_two(tmp_path / ".staging-123")
    assert list_checkpoints(tmp_path) == []
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", ["cut", "changed", "missing", "manifest"])
def test_a_damaged_checkpoint_steps_aside(tmp_path, harm):
    save_checkpoint(tmp_path, 1, write_two, keep=2)
    saved, _ = save_checkpoint(tmp_path, 2, write_two, keep=2)
    victim = saved.path / ("manifest.json" if harm == "manifest" else "a.bin")
    if harm == "missing":
        victim.unlink()
    elif harm == "changed":
        victim.write_bytes(b"x" + victim.read_bytes()[1:])
    else:
        victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    told = []
    found = newest_valid(tmp_path, lambda broken, wrong: told.append((broken.step, wrong.id)))
    assert found.step == 1
    assert [step for step, _ in told] == [2]
    assert saved.path.with_name("step-00000002.broken").is_dir()


def test_windows_sharing_errors_are_waited_out(tmp_path, monkeypatch):
    real, calls = os.replace, []

    def shared(source, target):
        calls.append(source)
        if len(calls) < 3:
            error = PermissionError(13, "in use")
            error.winerror = 32
            raise error
        real(source, target)

    monkeypatch.setattr("studio.core.atomic_files.os.replace", shared)
    started_s = time.monotonic()
    (tmp_path / "x").write_text("new")
    module.replace_file(tmp_path / "x", tmp_path / "y")
    assert (tmp_path / "y").read_text() == "new" and len(calls) == 3
    assert time.monotonic() - started_s < 2


def adapter(result):
    """The final weights of a run."""
    return load_file(result.folder.path / "adapter" / "adapter_model.safetensors")


def same(one, other) -> bool:
    """Whether two runs ended with bitwise the same weights."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


SETTINGS = {"adapter.dropout": 0.1, "optim.epochs": 3, "run.save_every": 1}


def test_stop_and_resume_is_bit_exact(ran):
    whole = ran(SETTINGS)
    first = ran(SETTINGS, stop_at=4)
    assert first.record.state == "stopped" and first.record.steps == 4
    second = ran(SETTINGS, folder=first.folder)
    assert second.record.state == "finished", second.log
    assert second.of(RunResumed)[0].step == 4
    assert first.losses + second.losses == whole.losses
    assert same(adapter(whole), adapter(second))


@pytest.mark.computing
@pytest.mark.parametrize(
    "name", some(["trained.safetensors", "state.pt", "manifest.json"], "trained.safetensors")
)
def test_resume_falls_back_from_a_cut_file(ran, name):
    whole = ran(SETTINGS)
    first = ran(SETTINGS, stop_at=4)
    newest = list_checkpoints(first.folder.checkpoints)[0]
    victim = newest.path / name
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    second = ran(SETTINGS, folder=first.folder)
    assert second.record.state == "finished", second.log
    assert second.of(RunResumed)[0].step == 3
    assert any(event.message.id == "run.checkpoint_broken" for event in second.of(Warned))
    assert same(adapter(whole), adapter(second))


def test_state_holds_no_pickled_code(ran):
    first = ran(SETTINGS, stop_at=2)
    newest = list_checkpoints(first.folder.checkpoints)[0]
    torch.load(newest.path / "state.pt", weights_only=True)


def test_a_checkpoint_of_another_optimizer_is_refused(ran):
    first = ran(SETTINGS, stop_at=2)
    newest = list_checkpoints(first.folder.checkpoints)[0]

    def write(folder):
        (folder / "trained.safetensors").write_bytes((newest.path / "trained.safetensors").read_bytes())
        state = torch.load(newest.path / "state.pt", weights_only=True)
        torch.save(state | {"kind": ["adamw_8bit", "bf16"]}, folder / "state.pt")

    save_checkpoint(first.folder.checkpoints, 3, write, keep=2)
    second = ran(SETTINGS, folder=first.folder)
    assert second.record.state == "failed" and second.record.diagnosis.what.id == "run.plan_changed"


def test_what_the_models_own_code_began_goes_on_by_it(ran, monkeypatch):
    """An older studio computed by it what this one's decoder would; neither's optimizer state fits the other."""
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: False)
    whole, first = ran(SETTINGS), ran(SETTINGS, stop_at=2)
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: True)
    second = ran(SETTINGS, folder=first.folder)
    assert second.record.state == "finished", second.log
    assert same(adapter(whole), adapter(second))
    [slower] = second.of(RunPlanned)[0].plan.slower
    assert slower.reason.values["reason"].id == "run.begun_by_own_code"
    fresh = ran(SETTINGS)
    assert "run.decoder" in [one.id for one in fresh.of(RunPlanned)[0].swaps]
