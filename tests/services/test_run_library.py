"""The shelf on real folders: quick lists, names, deletion, comparison, running again, and guests from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from studio.core.atomic_files import write_json
from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.events import EvalLogged, PhaseStarted, RunResumed, StepLogged
from studio.core.facts import Choice
from studio.core.heartbeat import Heartbeat
from studio.core.i18n import literal, text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder, create_run
from studio.services.desk import Desk
from studio.services.run_library import judge_resume
from studio.services.run_summary import SPARK_POINTS
from tests.slowness import processor_slowness
from tests.ui.conftest import MACHINE

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + b"\0\0\0\0"
RECIPE = Recipe(name="try", model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))


def step(number: int, loss: float) -> StepLogged:
    """Return the event of one step."""
    return StepLogged(
        step=number, total_steps=1000, epoch=0.1, loss=loss, lr=1e-4, grad_norm=1.0, tokens_per_s=9.0
    )


def write_events(folder: RunFolder, events: list) -> None:
    """Write a run's events, numbered, a second apart."""
    lines = []
    for seq, event in enumerate(events, 1):
        lines.append(json.dumps(to_json(dataclasses.replace(event, seq=seq, time_s=1000.0 + seq))) + "\n")
    folder.events.write_text("".join(lines), encoding="utf-8")


def make_run(runs: Path, losses=(3.0, 2.0, 1.0), recipe: Recipe = RECIPE, **record: object) -> RunFolder:
    """Make a run's folder as the engine leaves it."""
    runs.mkdir(parents=True, exist_ok=True)
    folder = create_run(runs, recipe)
    write_events(folder, [PhaseStarted(phase="train"), *(step(i + 1, loss) for i, loss in enumerate(losses))])
    whole = {"state": "stopped", "steps": len(losses)} | record
    folder.write_record(dataclasses.replace(folder.read_record(), **whole))
    return folder


def make_checkpoint(folder: RunFolder, number: int) -> None:
    """Make what counts as a checkpoint's folder."""
    path = folder.checkpoints / f"step-{number:08d}"
    path.mkdir(parents=True)
    (path / "trained.safetensors").write_bytes(b"x" * 1000)


def make_result(folder: RunFolder) -> None:
    """Make a finished run's adapter: its files hold what such files hold."""
    adapter = folder.path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (adapter / "adapter_config.json").write_text('{"r": 8}', encoding="utf-8")
    (adapter / "README.md").write_text("# card\n", encoding="utf-8")
    folder.write_record(
        dataclasses.replace(folder.read_record(), state="finished", artifact="adapter", loss=1.0)
    )


@pytest.fixture
def desk(workspace, monkeypatch):
    """A desk on a known machine, closed at the end."""
    desk = Desk(workspace)
    monkeypatch.setattr(desk.machine, "facts", lambda: MACHINE)
    monkeypatch.setattr(desk.library, "_machine", lambda: MACHINE)
    yield desk
    desk.close()


# The list ------------------------------------------------------------------------------------------------------------


def test_entries_tell_what_a_list_shows(desk, workspace):
    old = make_run(workspace.runs, created_s=10.0, timings_s={"load": 1.5, "train": 8.5})
    new = make_run(workspace.runs, created_s=20.0, losses=[4.0 - i / 100 for i in range(300)])
    make_checkpoint(new, 200)
    first, second = desk.library.entries()
    assert (first.record.run, second.record.run) == (new.run, old.run)
    assert second.spark == (3.0, 2.0, 1.0) and second.took_s == 10.0 and second.recipe == RECIPE
    assert len(first.spark) == SPARK_POINTS and first.spark[0] == 4.0 and first.spark[-1] == 1.01
    assert first.took_s == 300.0, "of a run that wrote no timings: from its first event to its last"
    assert first.size_bytes == sum(p.stat().st_size for p in new.path.rglob("*") if p.is_file())
    assert first.resumable.ok and first.resumable.reason.values == {"step": 200}
    assert second.resumable.ok and second.resumable.reason.id == "shelf.resume.anew"


def test_what_changes_is_read_again_and_what_is_broken_left_out(desk, workspace):
    folder, other = make_run(workspace.runs), make_run(workspace.runs)
    assert len(desk.library.entries()) == 2
    write_events(folder, [step(1, 9.0), step(2, 8.0)])
    (other.path / "run.json").write_text("{", encoding="utf-8")
    (workspace.runs / "no-run").mkdir()
    (workspace.runs / ".deleted-x").mkdir()
    shutil.copy(folder.path / "run.json", workspace.runs / ".deleted-x")
    (entry,) = desk.library.entries()
    assert entry.spark == (9.0, 8.0)
    (folder.path / "recipe.json").write_text("{", encoding="utf-8")
    folder.write_record(folder.read_record())
    (entry,) = desk.library.entries()
    assert entry.recipe is None and entry.resumable.reason.id == "shelf.resume.recipe"
    assert desk.runs.list()[0].run == folder.run


@pytest.mark.parametrize("words", ["null", "[1]", '"abc"', "12", "[" * 900 + "]" * 900])
def test_a_spoilt_run_hides_no_other(desk, workspace, words):
    good, bad, blank = (make_run(workspace.runs) for _ in range(3))
    (bad.path / "run.json").write_text(words, encoding="utf-8")
    (blank.path / "recipe.json").write_text(words, encoding="utf-8")
    assert {record.run for record in desk.runs.list()} == {good.run, blank.run}
    assert {entry.record.run: entry.recipe for entry in desk.library.entries()} == {
        good.run: RECIPE,
        blank.run: None,
    }
    with pytest.raises(StudioError):
        desk.library.duplicate(blank.run)


@pytest.mark.parametrize("number", [1e300, "nan", "inf", -1e20, 10**400])
def test_times_that_no_calendar_holds_break_no_list(desk, workspace, number):
    from studio.core.i18n import load_catalogue
    from studio.ui.tabs.runs.table import Panel, runs_table

    good, odd = make_run(workspace.runs, created_s=9.0), make_run(workspace.runs)
    data = json.loads((odd.path / "run.json").read_text(encoding="utf-8"))
    spoilt = data | {"created_s": number, "ended_s": number, "timings_s": {"train": number}}
    (odd.path / "run.json").write_text(json.dumps(spoilt), encoding="utf-8")
    assert desk.runs.list()[0].run == good.run
    say, entries = load_catalogue("en").say, desk.library.entries()
    words = runs_table(
        entries,
        lambda id, **values: say(text(id, **values) if isinstance(id, str) else id),
        total=2,
        shown=9,
        words="",
        panel=Panel(run=odd.run),
        active="",
    )
    assert good.run in words
    assert all(entry.record.created_s in (0.0, 9.0) for entry in entries)


def test_losses_that_no_float_holds_are_passed_over(desk, workspace):
    folder = make_run(workspace.runs)
    with folder.events.open("a", encoding="utf-8") as file:
        file.write(
            '{"kind": "step_logged", "version": 1, "seq": 99, "step": 9, "loss": 1' + "0" * 400 + "}\n"
        )
    (entry,) = desk.library.entries()
    assert entry.spark == (3.0, 2.0, 1.0)


def test_steps_that_came_twice_count_once(desk, workspace):
    folder = make_run(workspace.runs)
    events = [
        step(1, 5.0),
        step(2, 4.0),
        step(3, 9.0),
        RunResumed(step=1),
        step(2, 3.5),
        EvalLogged(step=2, loss=3.4),
    ]
    write_events(folder, [*events, dataclasses.replace(step(3, float("nan")), skipped=True), step(4, 3.0)])
    with folder.events.open("ab") as file:
        file.write(b'{"kind": "step_logged", "step": 5, "lo')
    (entry,) = desk.library.entries()
    assert entry.spark == (5.0, 3.5, 3.0)
    rows = desk.library.curves([folder.run])[folder.run]
    assert rows == (("step", 1, 5.0), ("step", 2, 3.5), ("step", 4, 3.0), ("eval", 2, 3.4))


@pytest.mark.computing
def test_500_runs_are_listed_quickly(desk, workspace):
    first = make_run(workspace.runs, losses=[2.0] * 400)
    for i in range(499):
        shutil.copytree(first.path, workspace.runs / f"run-{i:04}")
    begun_s = time.process_time()
    assert len(desk.library.entries()) == 500
    first_s, begun_s = time.process_time() - begun_s, time.process_time()
    desk.library.entries()
    again_s, begun_s = time.process_time() - begun_s, time.process_time()
    other = Desk(workspace)
    assert [len(entry.spark) for entry in other.library.entries()] == [60] * 500
    restarted_s = time.process_time() - begun_s
    slow = processor_slowness()  # beside another program the same work takes more of a processor, too
    assert again_s < 0.3 * slow, f"{again_s:.2f} s"
    assert restarted_s < 0.9 * slow, f"{restarted_s:.2f} s after a restart, {first_s:.2f} s at first"


def test_a_spoilt_cache_is_read_over(desk, workspace):
    folder = make_run(workspace.runs)
    cache = workspace.root / "cache" / "shelf.json"
    desk.library.entries()
    good = json.loads(cache.read_text(encoding="utf-8"))
    marks = good["runs"][folder.run][0]
    for spoilt in (
        "{",
        "[]",
        '{"version": 1, "runs": 3}',
        '{"version": 1, "runs": {"RUN": [MARKS, "x", [], 1, 2]}}',
    ):
        cache.write_text(spoilt.replace("RUN", folder.run).replace("MARKS", str(marks)), encoding="utf-8")
        assert Desk(workspace).library.entries()[0].spark == (3.0, 2.0, 1.0)


def test_only_what_can_go_on_is_said_to(workspace):
    record = RunRecord(run="r", name="r", state="stopped", created_s=1.0)
    there = change_recipe(RECIPE, {"data.source": str(workspace.root)})
    gone = change_recipe(RECIPE, {"data.source": str(workspace.root / "gone.jsonl")})
    assert judge_resume(record, there, 7).ok
    refused = judge_resume(record, gone, 7)
    assert not refused.ok and refused.reason.values["name"] == literal("gone.jsonl")
    for state, reason in (("running", "running"), ("waiting", "running"), ("finished", "finished")):
        verdict = judge_resume(dataclasses.replace(record, state=state), there, 7)
        assert (verdict.ok, verdict.reason.id) == (False, f"shelf.resume.{reason}")
    # Nobody is asked whose name a recipe from elsewhere holds.
    assert judge_resume(record, change_recipe(RECIPE, {"model.source": "//host/share/model"}), 7).ok


# What a person does --------------------------------------------------------------------------------------------------


def test_a_name_changes_and_the_id_stays(desk, workspace):
    folder = make_run(workspace.runs)
    desk.library.rename(folder.run, "  my\tbest \n run \x00 ")
    assert desk.runs.read(folder.run).name == "my best run" == desk.library.entries()[0].record.name
    desk.library.rename(folder.run, "中文 <b>")
    assert folder.read_record().name == "中文 <b>"
    desk.library.rename(folder.run, "x" * 300)
    assert len(folder.read_record().name) == 100
    for name in ("", " \n", "\x00\x1b"):
        with pytest.raises(StudioError) as refused:
            desk.library.rename(folder.run, name)
        assert refused.value.what.id == "shelf.name"


def test_a_new_name_and_the_end_of_a_run_come_at_once_and_neither_is_lost(desk, workspace, monkeypatch):
    folder = make_run(workspace.runs, state="running")
    read, ended = threading.Event(), threading.Event()
    real = RunFolder.read_record

    def read_slowly(self: RunFolder) -> RunRecord:
        record = real(self)
        if threading.current_thread() is renaming and not read.is_set():
            read.set()
            ended.wait(0.3)  # in which the engine has time enough to write
        return record

    monkeypatch.setattr(RunFolder, "read_record", read_slowly)
    renaming = threading.Thread(target=desk.library.rename, args=(folder.run, "better"))
    renaming.start()
    assert read.wait(10)
    folder.change_record(lambda kept: dataclasses.replace(kept, state="finished", artifact="adapter"))
    ended.set()
    renaming.join()
    record = folder.read_record()
    assert (record.name, record.state, record.artifact) == ("better", "finished", "adapter")


def test_a_run_is_deleted_with_its_place_in_the_queue(desk, workspace):
    folder = make_run(workspace.runs)
    make_checkpoint(folder, 3)
    size_bytes = desk.library.entries()[0].size_bytes
    assert desk.runs.events(folder.run)
    desk.chat.files.keep(folder.run, {"base": [], "tuned": [{"role": "user", "content": "a secret"}]})
    desk.queue._put(
        desk.queue.add(RECIPE).__class__(id="i", name="x", recipe=RECIPE, state="done", run=folder.run)
    )
    assert desk.library.delete(folder.run) == size_bytes > 1000
    assert not list(workspace.runs.iterdir()) and desk.library.entries() == ()
    assert all(item.run != folder.run for item in desk.queue.items())
    assert not list((workspace.root / "talks").iterdir()), "what was said to it goes with it"
    for act in (desk.library.delete, desk.runs.events, desk.runs.read):
        with pytest.raises(StudioError) as refused:
            act(folder.run)
        assert refused.value.what.id == "run.unknown"


def test_a_run_that_is_worked_on_is_not_deleted(desk, workspace):
    folder = make_run(workspace.runs)
    heart = Heartbeat(workspace.heartbeat)
    heart.beat(folder.run, folder.path, "train", 3)
    with pytest.raises(StudioError) as refused:
        desk.library.delete(folder.run)
    assert refused.value.what.id == "shelf.active" and folder.path.is_dir()
    heart.clear()
    for run in ("../runs", "..", "", "a/b", ".deleted-x"):
        with pytest.raises(StudioError):
            desk.library.delete(run)


def test_a_deletion_that_was_cut_off_is_finished_at_the_next_start(desk, workspace):
    folder = make_run(workspace.runs)
    folder.path.rename(workspace.runs / f".deleted-{folder.run}")
    (workspace.runs / ".import-1234").mkdir()
    assert desk.library.entries() == ()
    desk.reopen()
    assert not list(workspace.runs.iterdir())


def test_what_killed_exports_left_is_swept(desk, workspace):
    hour_s = 3600
    for name, age_s in (("one-ab12-merged", 2 * hour_s), ("two-ab12-adapter", 60), ("my notes", 9 * hour_s)):
        folder = workspace.exports / f".{name}.staging"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"x" * 99)
        for path in (folder / "model.safetensors", folder):
            os.utime(path, (time.time() - age_s,) * 2)
    desk.reopen()
    assert sorted(path.name for path in workspace.exports.iterdir()) == [
        ".my notes.staging",
        ".two-ab12-adapter.staging",
    ]


def test_a_duplicate_has_a_name_of_its_own(desk, workspace):
    folder = make_run(workspace.runs)
    copy = desk.library.duplicate(folder.run)
    assert copy == dataclasses.replace(RECIPE, name="try-2")
    second = make_run(workspace.runs, recipe=copy)
    assert desk.library.duplicate(folder.run).name == desk.library.duplicate(second.run).name == "try-3"
    desk.library.rename(second.run, "better")
    assert desk.library.duplicate(second.run).name == "better-2", "the name that it has now"
    year = make_run(workspace.runs, recipe=dataclasses.replace(RECIPE, name="run-2026"))
    assert desk.library.duplicate(year.run).name == "run-2026-2"


def test_running_again_tells_what_differs(desk, workspace, tmp_path, jsonl):
    from tests.conftest import chat_rows

    data = jsonl(tmp_path / "chats.jsonl", chat_rows(24))
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (base / "model.safetensors").write_bytes(WEIGHTS)
    recipe = change_recipe(RECIPE, {"model.source": str(base), "data.source": str(data), "seed": 7})
    from studio.data.convert import convert
    from studio.models.file_hashes import hash_weights

    known = {
        "packages": {"torch": "2.0"},
        "base_hash": hash_weights(base),
        "data_hash": convert(recipe.data, workspace.data_cache).content_hash,
    }
    folder = make_run(workspace.runs, recipe=recipe, **known, gpu="")
    again, differences = desk.library.again(folder.run)
    assert again == recipe and again.seed == 7
    assert [each.id for each in differences] == ["again.package"]
    assert differences[0].values["before"] == "2.0"
    jsonl(data, chat_rows(24, start=5))
    (base / "model.safetensors").write_bytes(WEIGHTS[:-4] + b"\1\2\3\4")
    folder.write_record(dataclasses.replace(folder.read_record(), gpu="RTX 3060", packages={"torch": "2"}))
    ids = [each.id for each in desk.library.again(folder.run)[1]]
    assert ids == ["again.gpu", "again.base", "again.data", "again.package"]
    shutil.rmtree(base)
    data.unlink()
    ids = [each.id for each in desk.library.again(folder.run)[1]]
    assert ids == ["again.gpu", "again.base.gone", "again.data.gone", "again.package"]


def test_a_comparison_has_what_differs_only(desk, workspace):
    one = make_run(workspace.runs, packages={"torch": "2.1", "peft": "1"}, gpu="A")
    other = make_run(
        workspace.runs,
        recipe=change_recipe(RECIPE, {"optim.learning_rate": 1e-3, "name": "other", "data.mix": {"a": "2"}}),
        packages={"torch": "2.2", "peft": "1", "trl": "3"},
        gpu="B",
    )
    choice = Choice(value="cuda:0", reason=literal(""))
    parts = dict.fromkeys(("device", "dtype", "attention", "quantization", "optimizer"), choice)
    write_json(one.path / "plan.json", to_json(parts | {"kernels": {"rope": choice}}))
    (other.path / "plan.json").write_text("[]", encoding="utf-8")
    found = desk.library.compare([one.run, other.run])
    assert found.settings == (("data.mix", ({}, {"a": "2"})), ("optim.learning_rate", (0.0, 1e-3)))
    environment = dict(found.environment)
    assert environment["gpu"] == ("A", "B") and environment["package.torch"] == ("2.1", "2.2")
    assert environment["package.trl"] == ("", "3") and "package.peft" not in environment
    assert environment["plan.device"] == ("cuda:0", "") and environment["plan.kernels.rope"] == ("cuda:0", "")
    for runs in ([], [one.run], [one.run, one.run], [f"r{i}" for i in range(6)], [one.run, "nobody"]):
        with pytest.raises(StudioError):
            desk.library.compare(runs)
    (other.path / "recipe.json").unlink()
    assert ("seed", (42, None)) in desk.library.compare([one.run, other.run]).settings
