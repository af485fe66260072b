"""Exports on real folders: what is replaced, deleted and listed, what a kill leaves, and whose files must stay."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from studio.core.errors import StudioError
from studio.core.facts import Choice
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.engine.exporters.adapter import ADAPTER
from studio.engine.exporters.exporter import ExportJob, ExportStopped
from studio.engine.run_folder import create_run
from studio.machine.settings import change_settings
from studio.models.file_hashes import hash_weights
from studio.services import export_folder
from studio.services import exports as exports_module
from studio.services import runs as running_module
from studio.services.desk import Desk
from studio.services.export_folder import NOTE, WRITER, open_staging
from studio.services.results import Result, find_result
from studio.services.worker import Job, Worker
from tests.ui.conftest import FakeDesk, make_plan

RECIPE = Recipe(name="try", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))


class Exporter:
    """Writes one file; `write` may be replaced."""

    needed_bytes = 1
    merges = True
    place, loss_kl, checked_by = "python", 0.0, "transformers"

    def size_bytes(self, job: ExportJob) -> int:
        return 10

    def memory_bytes(self, job: ExportJob) -> int:
        return self.needed_bytes

    def find_problem(self, job: ExportJob) -> None:
        return None

    def write(self, job: ExportJob) -> None:
        (job.target / "adapter_model.safetensors").write_bytes(b"new")


def choose(value: str) -> Choice:
    """Return a decision of a plan."""
    return Choice(value=value, reason=text("plan.wanted", value=value))


class Silent:
    """A thread that never gets to what it is asked to do."""

    def submit(self, job, name: str = "") -> None:
        return None


@pytest.fixture
def desk(workspace, monkeypatch):
    desk = Desk(workspace)

    def find(run: str, place: str) -> Result:
        folder = desk.runs.folder(run)
        facts = SimpleNamespace(folder="/models/base", name="base")
        return Result(folder, folder.read_record(), facts, None, folder.read_recipe(), place)

    desk.exports._find = find
    desk.exporter = Exporter()
    monkeypatch.setattr(exports_module, "get_known_exporter", lambda target: desk.exporter)
    yield desk
    desk.close()


@pytest.fixture
def run(workspace) -> str:
    workspace.runs.mkdir(exist_ok=True)
    return create_run(workspace.runs, RECIPE).run


def refusal(work) -> str:
    with pytest.raises(StudioError) as refused:
        work()
    return refused.value.why.id


# What is ours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", [None, "{}", "[" * 9999, '{"run": "x", "target": "adapter"}', "null", "[3]"])
def test_a_folder_that_only_has_such_a_name_is_neither_replaced_nor_deleted(desk, run, tmp_path, note):
    chosen = tmp_path / "my models"
    folder = chosen / f"{run}-adapter"
    folder.mkdir(parents=True)
    (folder / "thesis.md").write_text("years of work", encoding="utf-8")
    if note is not None:
        (folder / NOTE).write_text(note, encoding="utf-8")
    change_settings(desk.workspace, exports_folder=str(chosen))
    (item,) = desk.exports.items()
    assert not item.ours
    assert refusal(lambda: desk.exports.delete(item.name)) == "export.foreign.why"
    assert refusal(lambda: desk.exports.write(run, "adapter")) == "export.foreign.why"
    assert (folder / "thesis.md").read_text(encoding="utf-8") == "years of work"
    assert [path.name for path in chosen.iterdir()] == [folder.name]


def test_a_link_with_an_exports_name_leads_no_deletion_astray(desk, run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / NOTE).write_text(json.dumps({"run": run, "target": "merged"}), encoding="utf-8")
    (desk.workspace.exports / f"{run}-merged").symlink_to(elsewhere, target_is_directory=True)
    assert refusal(lambda: desk.exports.delete(f"{run}-merged")) == "export.foreign.why"
    assert (elsewhere / NOTE).exists()


def test_what_an_export_wrote_is_replaced_and_deleted(desk, run):
    for words in (b"new", b"newer"):
        desk.exporter.write = lambda job, words=words: (job.target / "model.safetensors").write_bytes(words)
        done = desk.exports.write(run, "adapter")
        assert (done.path / "model.safetensors").read_bytes() == words
    (item,) = desk.exports.items()
    assert item.ours and [path.name for path in desk.workspace.exports.iterdir()] == [item.name]
    assert desk.exports.delete(item.name) > 0 and desk.exports.items() == ()


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_leaves_the_last_export_whole(desk, run, monkeypatch):
    done = desk.exports.write(run, "adapter")

    def fail(job: ExportJob) -> None:
        (job.target / "adapter_model.safetensors").write_bytes(b"ha")
        raise OSError(errno.ENOSPC, "No space left on device")

    desk.exporter.write = fail
    with pytest.raises(OSError, match="space"):
        desk.exports.write(run, "adapter")
    desk.exporter = Exporter()
    real = export_folder.replace_file

    def held(source, target) -> None:
        if source.name.endswith(".staging"):
            raise PermissionError(13, "another program has it open")
        real(source, target)

    monkeypatch.setattr(export_folder, "replace_file", held)
    with pytest.raises(PermissionError):
        desk.exports.write(run, "adapter")
    assert (done.path / "adapter_model.safetensors").read_bytes() == b"new" and len(desk.exports.items()) == 1
    assert [path.name for path in desk.workspace.exports.iterdir()] == [done.path.name]


def test_a_kill_between_two_renames_loses_no_export(desk, run):
    done = desk.exports.write(run, "adapter")
    aside = done.path.with_name(f".{done.path.name}.replaced")
    done.path.rename(aside)
    assert desk.exports.items() == (), "nothing half-done is offered"
    desk.exports.sweep()
    assert [item.path for item in desk.exports.items()] == [done.path]
    aside.mkdir()
    desk.exports.sweep()
    assert not aside.exists() and done.path.exists()


def leave_staging(desk, run: str, **writer: object) -> Path:
    """Leave what a killed export leaves; return it."""
    staging = open_staging(desk.workspace.exports / f"{run}-merged", "of no run")
    (staging / "model.safetensors").write_bytes(b"x" * 99)
    note = json.loads((staging / WRITER).read_text(encoding="utf-8"))
    (staging / WRITER).write_text(json.dumps(note | writer), encoding="utf-8")
    return staging


def test_what_a_dead_process_left_half_written_goes_at_the_next_start_however_young(desk, run):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    staging = leave_staging(desk, run, pid=ended.pid)
    desk.exports.sweep()
    assert not staging.exists()
    staging = leave_staging(desk, run, pid=os.getpid(), time_s=1.0)
    desk.exports.sweep()
    assert not staging.exists(), "the number is another process's by now"
    elsewhere = leave_staging(desk, run, pid=ended.pid, host="another computer")
    desk.exports.sweep()
    assert elsewhere.exists(), "whose processes nobody here knows"


def test_what_another_process_writes_is_neither_swept_nor_written_over(desk, run):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        staging = leave_staging(desk, run, pid=other.pid)
        desk.exports.sweep()
        assert refusal(lambda: desk.exports.write(run, "merged")) == "export.busy.why"
        assert (staging / "model.safetensors").exists()
        other.communicate(b"\n")
    assert desk.exports.write(run, "merged").path.is_dir() and not staging.exists()
    assert WRITER not in [path.name for path in desk.exports.find(f"{run}-merged").path.iterdir()]


def test_the_end_of_the_studio_ends_an_export_after_its_part_and_what_waits_never_begins(desk, run):
    begun, go_on = threading.Event(), threading.Event()

    def write(job: ExportJob) -> None:
        (job.target / "model.safetensors").write_bytes(b"x" * 99)
        begun.set()
        assert go_on.wait(10)
        job.begin(text("export.phase.check"))

    desk.exporter.write = write
    first = desk.exports.start(run, "merged")
    assert begun.wait(10)
    waits = desk.exports._begin(Job(), run, "adapter", None, "")
    assert desk.exports.busy
    desk.runs.stop_all()
    go_on.set()
    for job in (first, waits):
        with pytest.raises(ExportStopped):
            job.result(10)
    assert waits.phase is None and list(desk.workspace.exports.iterdir()) == [] and not desk.exports.busy


def test_a_folder_that_cannot_be_written_is_named_with_what_helps(desk, run, tmp_path):
    (tmp_path / "a file").write_text("x", encoding="utf-8")
    change_settings(desk.workspace, exports_folder=str(tmp_path / "a file" / "models"))
    with pytest.raises(StudioError) as refused:
        desk.exports.write(run, "adapter")
    assert (refused.value.what.id, refused.value.fix.id) == ("export.folder", "export.folder.fix")
    assert desk.exports.items() == ()


def test_nothing_is_merged_into_another_base_than_the_one_that_was_trained(desk, run, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"as it was")
    record = desk.runs.read(run)
    record = dataclasses.replace(record, adapter=True, base="base", base_hash=hash_weights(base))
    desk.runs.folder(run).write_record(record)
    found = desk.exports._find(run, "")
    found.facts.folder = str(base)
    desk.exports._find = lambda run, place: found
    before = desk.exports.write(run, "merged")
    (base / "model.safetensors").write_bytes(b"since then")
    assert refusal(lambda: desk.exports.write(run, "merged")) == "export.base.why"
    desk.exporter.merges = False
    assert before.path.is_dir() and desk.exports.write(run, "adapter").path.is_dir()


def test_a_result_that_was_taken_away_is_said_to_be_gone(desk, run):
    folder = desk.runs.folder(run)
    folder.write_record(dataclasses.replace(desk.runs.read(run), state="finished", artifact="adapter"))
    assert refusal(lambda: find_result(folder, None)) == "run.result_gone.why"


def test_room_is_asked_of_the_disk_that_the_export_goes_to(desk, run, tmp_path, monkeypatch):
    asked = []
    real = exports_module.shutil.disk_usage
    monkeypatch.setattr(exports_module.shutil, "disk_usage", lambda path: asked.append(path) or real(path))
    change_settings(desk.workspace, exports_folder=str(tmp_path / "other disk" / "not made yet"))
    desk.exports.estimate(run, "merged")
    assert asked == [tmp_path]


# Who waits -----------------------------------------------------------------------------------------------------------


def test_chat_and_a_run_say_that_they_wait_for_an_export(desk, run, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def write(job: ExportJob) -> None:
        begun.set()
        assert go_on.wait(10)

    desk.exporter.write = write
    monkeypatch.setattr(running_module, "attempt", lambda folder, *_, **__: folder.read_record())
    assert desk.chat.state().ok
    job = desk.exports.start(run, "adapter")
    try:
        assert begun.wait(10)
        state = desk.chat.state()
        assert not state.ok and state.reason.id == "chat.waits.export"
        waiting = desk.runs.launch(RECIPE)
        (phase,) = desk.runs.events(waiting)
        assert (phase.phase, phase.detail.id) == ("wait", "run.waits.export")
    finally:
        go_on.set()
    job.result(10)
    desk.runs.wait(waiting)
    assert desk.chat.state().ok


def test_an_export_that_memory_cannot_take_is_refused_before_it_is_written(desk, run, monkeypatch):
    monkeypatch.setattr(desk.exporter, "write", lambda job: pytest.fail("written"))
    desk.exporter.needed_bytes = 2**60
    assert desk.exports.estimate(run, "adapter").problem.id == "export.estimate.memory"
    assert refusal(lambda: desk.exports.write(run, "adapter")) == "export.memory.why"
    assert list(desk.workspace.exports.iterdir()) == []


@pytest.mark.parametrize(
    ("device", "dtype", "quantization", "share"),
    [
        ("cpu", "fp32", "none", 4),
        ("cpu", "bf16", "none", 2),
        ("mps", "fp32", "none", 4),
        ("cpu", "fp32", "int8", 1),
        ("cuda:0", "bf16", "none", 0),
    ],
)
def test_the_check_of_an_adapter_takes_what_loading_its_base_as_planned_takes(
    device, dtype, quantization, share, workspace
):
    facts = dataclasses.replace(FakeDesk(workspace).inspect("any"), parameters=1000, linear_parameters=1000)
    plan = dataclasses.replace(
        make_plan(), device=choose(device), dtype=choose(dtype), quantization=choose(quantization)
    )
    assert ADAPTER.memory_bytes(ExportJob(Path(), None, facts, plan, Path())) == 1000 * share


@pytest.mark.computing
def test_what_exports_take_is_known_without_torch():
    code = f"import sys; sys.path[:0] = {sys.path!r}; import studio.services.exports"
    code += "; print({'torch', 'transformers', 'peft'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


# Whose files must stay -----------------------------------------------------------------------------------------------


def test_a_run_that_is_being_exported_is_not_deleted(desk, run):
    begun, go_on = threading.Event(), threading.Event()

    def write(job: ExportJob) -> None:
        begun.set()
        go_on.wait(10)

    desk.exporter.write = write
    job = desk.exports.start(run, "adapter")
    try:
        assert begun.wait(10)
        assert refusal(lambda: desk.library.delete(run)) == "shelf.used.export"
    finally:
        go_on.set()
    job.result(10)
    assert desk.library.delete(run) > 0 and len(desk.exports.items()) == 1


def test_a_run_whose_model_answers_is_not_deleted(desk, run, monkeypatch):
    monkeypatch.setattr(desk.chat, "_worker", Silent)
    stop = threading.Event()
    answers = desk.chat.answer([{"role": "user", "content": "hi"}], run=run, should_stop=stop.is_set)
    asking = threading.Thread(target=lambda: list(answers))
    asking.start()
    until_s = time.monotonic() + 10
    while not desk.chat._asked and time.monotonic() < until_s:
        time.sleep(0.01)
    why = refusal(lambda: desk.library.delete(run))
    stop.set()
    asking.join()
    assert why == "shelf.used.talk" and desk.library.delete(run) > 0


def test_a_run_that_is_being_tested_is_not_deleted(desk, run):
    wait = threading.Event()
    job = desk.chat.begin_test(run, lambda job: wait.wait(30))
    assert refusal(lambda: desk.library.delete(run)) == "shelf.used.test"
    wait.set()
    job.result(10)


def test_what_is_loaded_of_a_run_goes_before_its_files(desk, run):
    desk.chat._loaded = SimpleNamespace(run=run, size_bytes=7)
    assert desk.library.delete(run) > 0 and desk.chat.loaded() is None


def test_a_restart_waits_for_what_could_not_go_on_and_a_stopped_one_keeps_nobody_waiting(
    desk, run, monkeypatch
):
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getpid()))
    begun, go_on = threading.Event(), threading.Event()

    def write(job: ExportJob) -> None:
        begun.set()
        assert go_on.wait(10)

    desk.exporter.write = write
    job = desk.exports.start(run, "adapter")
    try:
        assert begun.wait(10) and desk.working() == "export"
        with pytest.raises(StudioError) as refused:
            desk.restart()
        assert refused.value.what.id == "desk.restart.export" and not desk.restarting
        job.stop()
        assert desk.working() == "" and desk.restart() and desk.restarting
    finally:
        go_on.set()
    job.result(10)


def test_a_restart_waits_for_an_upload(desk, monkeypatch):
    monkeypatch.setenv(PARENT_VARIABLE, str(os.getpid()))
    begun, go_on = threading.Event(), threading.Event()

    def send(job: Job) -> None:
        begun.set()
        assert go_on.wait(10)

    worker = Worker("upload")
    desk.uploads.job = Job().begin(worker, send)
    try:
        assert begun.wait(10) and desk.working() == "upload"
        with pytest.raises(StudioError) as refused:
            desk.restart()
        assert refused.value.what.id == "desk.restart.upload" and not desk.restarting
        desk.uploads.job.stop()
        assert desk.working() == ""
    finally:
        go_on.set()
        worker.close(10)
