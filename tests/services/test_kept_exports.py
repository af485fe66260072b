"""Exports that were killed or stopped go on from what is whole; what is not whole is written anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import change_recipe
from studio.engine.exporters.exporter import ExportStopped
from studio.engine.exporters.kept_parts import KeptParts, hash_file
from studio.machine.workspace import child_environment, open_workspace
from studio.models.gguf.file_writer import GgufWriter
from studio.models.gguf.tensor_journal import journal_of
from studio.models.gguf.tensor_types import BY_NAME
from studio.services.export_folder import staging_of

ROOT = Path(__file__).resolve().parents[2]
TENSORS = [(f"t{i}", (4, 8), BY_NAME["F32"]) for i in range(5)]


def write_tensors(path: Path, stop: int = 5) -> int:
    """Write the tensors of the file that are missing, up to `stop`; return how many were there."""
    with GgufWriter(path, {"general.architecture": "llama"}, TENSORS, goes_on=True) as file:
        for i in range(file.kept, stop):
            file.write(bytes([i]) * 128)
        return file.kept


def test_a_file_goes_on_behind_its_last_whole_tensor(tmp_path):
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    assert write_tensors(whole) == 0
    assert write_tensors(cut, stop=3) == 0
    with cut.open("ab") as file:
        file.write(b"half of the fourth")
    with journal_of(cut).open("a", encoding="utf-8") as file:
        file.write('{"sha')
    assert write_tensors(cut) == 3 and cut.read_bytes() == whole.read_bytes()
    data = bytearray(cut.read_bytes())
    data[-128 * 4] ^= 1  # in the second tensor
    cut.write_bytes(data)
    assert write_tensors(cut) == 1 and cut.read_bytes() == whole.read_bytes()
    with GgufWriter(cut, {"general.architecture": "qwen3"}, TENSORS, goes_on=True) as other:
        assert other.kept == 0, "another file's head"


def test_a_part_counts_while_every_byte_is_what_was_recorded(tmp_path):
    parts = KeptParts(tmp_path)
    parts.begin("of this run")
    folder = parts.folder / "merged"
    folder.mkdir()
    (folder / "a").write_bytes(b"aa")
    (folder / "b").write_bytes(b"bb")
    parts.keep([folder / "a", folder / "b"])
    assert KeptParts(tmp_path).key == "of this run" and KeptParts(tmp_path).has(".parts/merged")
    (folder / "b").write_bytes(b"bc")
    assert not KeptParts(tmp_path).has(".parts/merged")
    (folder / "b").write_bytes(b"bb")
    (folder / "c").write_bytes(b"")
    assert not KeptParts(tmp_path).has(".parts/merged"), "somebody else's file is in it"
    parts.begin("of another run")
    assert not KeptParts(tmp_path).list_files()


@pytest.fixture(scope="module")
def run(tmp_path_factory, request):
    """A short run of the demo: (workspace, its id)."""
    from studio.services.desk import Desk

    request.getfixturevalue("know_machine")
    workspace = open_workspace(str(tmp_path_factory.mktemp("kept") / "workspace"))
    desk = Desk(workspace)
    changes = {"optim.max_steps": 4, "run.save_every": 4, "run.trial": False, "name": "kept"}
    run = desk.queue.start(change_recipe(desk.recipes.demo(), changes), checked=True)
    assert desk.runs.wait(run).state == "finished"
    desk.close()
    return workspace, run


@pytest.fixture
def desk(run):
    from studio.services.desk import Desk

    desk = Desk(run[0])
    yield desk
    desk.close()


def kill_when(workspace, words: list[str], is_time) -> None:
    """Run the command line and kill it, by the system's SIGKILL, once `is_time()`."""
    environment = child_environment(workspace, os.environ)
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    command = [sys.executable, "-m", "studio.cli", "--child", *words, "--workspace", str(workspace.root)]
    child = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 240
        while not is_time():
            assert child.poll() is None and time.monotonic() < until, child.poll()
            time.sleep(0.002)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def list_phases(desk, run: str, target: str) -> list[str]:
    """Export and return the ids of what it said that it did."""
    job, said = desk.exports.start(run, target), []
    while not job.ended:
        if job.phase is not None and job.phase.id not in said:
            said.append(job.phase.id)
        time.sleep(0.002)
    job.result()
    return said


@pytest.mark.computing
def test_a_killed_gguf_export_goes_on_within_its_file(run, desk):
    workspace, name = run
    final = workspace.exports / f"{name}-gguf_q4_k_m"
    staging = staging_of(final)

    def is_half() -> bool:
        journals = list(staging.glob("*.journal"))
        return bool(journals) and journals[0].read_text(encoding="utf-8").count("\n") > 3

    kill_when(workspace, ["export", name, "--to", "gguf"], is_half)
    written = next(staging.glob("*.journal")).read_text(encoding="utf-8").count("\n") - 1
    assert written >= 3 and not final.exists()
    desk.exports.sweep()
    (kept,) = desk.exports.list_kept()
    assert (kept.run, kept.place, kept.target) == (name, "", "gguf_q4_k_m")
    merged = {path: path.stat().st_mtime_ns for path in (staging / ".parts" / "merged").iterdir()}
    assert any(path.suffix == ".safetensors" for path in merged)
    said = list_phases(desk, name, "gguf_q4_k_m")
    assert (
        "export.phase.kept" in said and "export.phase.load" not in said and "export.phase.merge" not in said
    )
    assert not (final / ".parts").exists() and not list(final.glob("*.journal")) and not staging.exists()
    assert desk.exports.list_kept() == ()
    (went_on,) = final.glob("*.gguf")
    summed = hash_file(went_on)
    said = list_phases(desk, name, "gguf_q4_k_m")  # in one go
    assert "export.phase.merge" in said and "export.phase.kept" not in said
    assert hash_file(next(final.glob("*.gguf"))) == summed, "the same bytes"


@pytest.mark.computing
def test_a_killed_merged_export_is_only_checked_and_a_damaged_one_written_anew(run, desk):
    workspace, name = run
    final = workspace.exports / f"{name}-merged"
    staging = staging_of(final)
    for damaged in (False, True):
        kill_when(
            workspace, ["export", name, "--to", "merged"], lambda: bool(KeptParts(staging).list_files())
        )
        (kept,) = desk.exports.list_kept()
        assert kept.target == "merged" and kept.size_bytes > 7_000_000
        if damaged:
            weights = staging / "model.safetensors"
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
        said = list_phases(desk, name, "merged")
        assert ("export.phase.kept" in said) is not damaged and ("export.phase.merge" in said) is damaged
        assert (final / "model.safetensors").is_file() and not (final / ".parts").exists()
        desk.exports.delete(final.name)


@pytest.mark.computing
def test_a_stopped_measured_file_keeps_what_was_measured(run, desk, monkeypatch):
    workspace, name = run
    staging = staging_of(workspace.exports / f"{name}-gguf_fit")
    job = desk.exports.start(name, "gguf_fit")
    losses = staging / ".parts" / "losses.json"
    until = time.monotonic() + 240
    while not losses.exists():
        assert time.monotonic() < until and not job.ended
        time.sleep(0.01)
    job.stop()
    with pytest.raises(ExportStopped):
        job.result(240)
    first = losses.read_bytes()
    (kept,) = desk.exports.list_kept()
    assert kept.target == "gguf_fit" and len(first) > 2
    measured = []
    from studio.models.gguf import sensitivity

    real = sensitivity._round_trip

    def count(weight, form, importance):
        measured.append(form)
        return real(weight, form, importance)

    monkeypatch.setattr(sensitivity, "_round_trip", count)
    assert list_phases(desk, name, "gguf_fit")[-1] == text("export.phase.check").id
    assert len(measured) < 29 * 4, "what was measured is not measured again"
    desk.exports.delete(f"{name}-gguf_fit")
    assert desk.exports.list_kept() == ()
    with pytest.raises(StudioError) as refused:
        desk.exports.discard(f"{name}-gguf_fit")
    assert refused.value.what.id == "export.gone"
