"""A run from elsewhere: taken in without its checkpoints, hostile folders refused, links not followed."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.engine.run_folder import RunFolder
from tests.services import test_run_library
from tests.services.test_run_library import RECIPE, make_checkpoint, make_result, make_run

desk = test_run_library.desk


@pytest.fixture
def foreign(tmp_path):
    """A finished run's folder that lies outside the workspace."""
    folder = make_run(tmp_path / "elsewhere", created_s=5.0)
    make_result(folder)
    make_checkpoint(folder, 3)
    (folder.path / "log.txt").write_text("words\n", encoding="utf-8")
    return folder


def test_a_run_from_elsewhere_comes_in_without_its_checkpoints(desk, workspace, foreign):
    run = desk.library.import_run(foreign.path)
    assert run == foreign.run
    (entry,) = desk.library.entries()
    assert entry.record == foreign.read_record() and entry.recipe == RECIPE and entry.spark == (3.0, 2.0, 1.0)
    assert (workspace.runs / run / "adapter" / "adapter_model.safetensors").is_file()
    assert not (workspace.runs / run / "checkpoints").exists()
    second = desk.library.import_run(foreign.path)
    assert second != run and second[:-4] == run[:-4] and desk.runs.read(second).run == second
    assert [p.name for p in workspace.runs.iterdir() if p.name.startswith(".")] == []


def test_what_was_running_elsewhere_comes_in_as_stopped(desk, workspace, foreign):
    foreign.write_record(
        dataclasses.replace(
            foreign.read_record(), state="running", artifact="", name="\x1b[31m a ", created_s=9e12
        )
    )
    with foreign.events.open("ab") as file:
        file.write(b'{"torn')
    record = RunFolder(workspace.runs / desk.library.import_run(foreign.path)).read_record()
    assert (record.state, record.name) == ("stopped", "[31m a") and record.created_s <= time.time()


def link(target: str):
    def make(folder: Path) -> None:
        (folder / "log.txt").unlink()
        (folder / "log.txt").symlink_to(target)

    return make


def write(name: str, content: bytes):
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return make


def change_record(**changes: object):
    def make(folder: Path) -> None:
        data = json.loads((folder / "run.json").read_text(encoding="utf-8")) | changes
        (folder / "run.json").write_text(json.dumps(data), encoding="utf-8")

    return make


HOSTILE = {
    "a link to a file": (link("/etc/passwd"), "link"),
    "a link to itself": (link("log.txt"), "link"),
    "a linked folder": (lambda f: (f / "adapter" / "x.json").symlink_to("/etc"), "link"),
    "a pipe": (
        lambda f: ((f / "stacks.txt").unlink(missing_ok=True), os.mkfifo(f / "stacks.txt")),
        "unknown",
    ),
    "a pickle": (write("adapter/adapter_model.bin", b"\x80\x04."), "unknown"),
    "a program": (write("adapter/modeling.py", b"print(1)"), "unknown"),
    "another file": (write("notes.docx", b"x"), "unknown"),
    "another folder": (write("more/recipe.json", b"{}"), "unknown"),
    "a deeper folder": (write("adapter/deep/config.json", b"{}"), "unknown"),
    "a hidden file": (write("adapter/.env.json", b"{}"), "unknown"),
    "a strange name": (write("adapter/a\nb.json", b"{}"), "unknown"),
    "no recipe": (lambda f: (f / "recipe.json").unlink(), "damaged"),
    "no record": (lambda f: (f / "run.json").unlink(), "damaged"),
    "a recipe of a newer studio": (write("recipe.json", b'{"version": 99}'), "damaged"),
    "an unknown key": (change_record(surprise=1), "damaged"),
    "a wrong type": (change_record(steps="many"), "damaged"),
    "numbers that are none": (change_record(created_s="nan"), "numbers"),
    "a result elsewhere": (change_record(artifact="../../secret"), "result"),
    "no result": (change_record(artifact=""), "result"),
    "a result that is not there": (change_record(artifact="model"), "missing"),
    "weights without a header": (write("adapter/adapter_model.safetensors", b"\xff" * 40), "damaged"),
    "weights that are cut": (write("adapter/more.safetensors", b"\x02" + b"\0" * 7 + b"{}"[:1]), "damaged"),
    "broken JSON": (write("adapter/adapter_config.json", b"{"), "damaged"),
    "JSON of a number": (write("adapter/tokenizer_config.json", b"1"), "unreadable"),
    "deep JSON": (write("plan.json", b"[" * 200_000 + b"]" * 200_000), "damaged"),
    "events that are none": (write("events.jsonl", b"hello\n"), "event"),
    "deep events": (write("events.jsonl", b"[" * 100_000 + b"\n"), "event"),
    "an event without a number": (write("events.jsonl", b'{"kind": "warned"}\n'), "event"),
    "an event of another shape": (
        write("events.jsonl", b'{"kind": "step_logged", "version": 1, "seq": 1, "time_s": 1, "step": "x"}\n'),
        "event",
    ),
    "an event that comes twice": (
        write("events.jsonl", b'{"kind": "x", "seq": 1}\n{"kind": "x", "seq": 1}\n'),
        "event",
    ),
    "a line without end": (write("events.jsonl", b" " * (2**20 + 5) + b"\n"), "event"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused(desk, workspace, foreign, name):
    spoil, reason = HOSTILE[name]
    spoil(foreign.path)
    with pytest.raises(StudioError) as refused:
        desk.library.import_run(foreign.path)
    assert refused.value.what.id == "import.refused" and refused.value.why.id == f"import.{reason}"
    assert list(workspace.runs.iterdir()) == [], "nothing stays behind"


def test_what_is_no_folder_is_refused(desk, workspace, foreign, tmp_path):
    (tmp_path / "linked").symlink_to(foreign.path)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, reason in (
        (tmp_path / "nothing", "folder"),
        (tmp_path / "linked", "folder"),
        (foreign.path / "run.json", "folder"),
        (empty, "damaged"),
        (workspace.root, "unknown"),
    ):
        with pytest.raises(StudioError) as refused:
            desk.library.import_run(path)
        assert refused.value.why.id == f"import.{reason}", path


def test_a_link_that_takes_a_files_place_is_not_followed(desk, workspace, foreign, monkeypatch):
    from studio.services import run_import as foreign_run

    listed = foreign_run._list_files

    def swap(source: Path):
        found = list(listed(source))
        link("/etc/passwd")(source)
        return found

    monkeypatch.setattr(foreign_run, "_list_files", swap)
    with pytest.raises(StudioError):
        desk.library.import_run(foreign.path)
    assert list(workspace.runs.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: links for everybody")
def test_a_link_that_takes_a_folders_place_is_not_followed(desk, workspace, foreign, monkeypatch):
    """Its files have the names and sizes that were listed, and are another folder's."""
    from studio.services import run_import as foreign_run

    listed = foreign_run._list_files

    def swap(source: Path):
        found = list(listed(source))
        (source / "adapter").rename(source.parent / "private")
        (source / "adapter").symlink_to(source.parent / "private")
        return found

    monkeypatch.setattr(foreign_run, "_list_files", swap)
    with pytest.raises(StudioError):
        desk.library.import_run(foreign.path)
    assert list(workspace.runs.iterdir()) == []
