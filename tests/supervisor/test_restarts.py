"""The supervisor with real processes and real aborts: restarts, their limit, wishes, claims, the window."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.engine.crash_records import read_deaths
from studio.engine.run_folder import RunFolder
from studio.machine.settings import change_settings
from studio.machine.workspace_lock import claim
from studio.supervisor import restarts as supervisor
from studio.supervisor.window_page import Page
from tests.supervisor.conftest import starts

ROOT = Path(__file__).resolve().parents[2]


def test_a_window_that_is_refused_says_why_at_the_terminal(workspace, capfd):
    say = "import sys; print('Starting'); print('what\\nwhy\\nfix', file=sys.stderr); sys.exit(2)"
    argv = [sys.executable, "-c", say]
    assert (
        supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=lambda _: argv) == 2
    )
    assert capfd.readouterr().err.endswith("what\nwhy\nfix\n")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_codes_of_ours_are_final(workspace, stage, code):
    argv = stage({"code": code})
    assert supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv) == code
    assert len(starts(workspace)) == 1


def test_one_abort_resumes_the_run_with_the_same_flags(workspace, stage, capfd):
    argv = stage({"steps": 7, "then": "abort"}, {"code": 0})
    command = ["train", "r.json", "--json", "--events"]
    assert supervisor.keep_alive(command, workspace, headless=True, argv=argv) == 0
    first, second = starts(workspace)
    assert first["command"] == command and second["command"] == ["resume", "r1", "--json", "--events"]
    assert first["cwd"] == second["cwd"] == os.getcwd()
    (death,) = read_deaths(RunFolder(workspace.runs / "r1"))
    assert (death.step, death.phase, death.name, death.run) == (7, "train", "SIGABRT", "r1")
    assert "Fatal Python error: Aborted" in death.log
    captured = capfd.readouterr()
    assert "SIGABRT" in captured.err and "7" in captured.err and "last words" in captured.out
    assert "from the beginning, as no checkpoint" in captured.err
    assert not workspace.heartbeat.exists()


def test_what_is_gone_on_from_is_told_as_it_is(workspace, stage, capfd):
    """A run that has a checkpoint goes on from it; a window that died without a run has nothing to go on with."""
    (RunFolder(workspace.runs / "r1").checkpoints / "step-00000005").mkdir(parents=True)
    argv = stage({"steps": 7, "then": "abort"}, {"code": 0})
    supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv)
    assert "from the last checkpoint" in capfd.readouterr().err


def test_a_window_that_died_without_a_run_just_starts_again(workspace, stage, capfd):
    argv = stage({"then": "abort"}, {"code": 0})
    supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv)
    told = capfd.readouterr().err
    assert "studio's process" in told and "checkpoint" not in told


def test_the_third_death_at_one_step_fails_the_run(workspace, stage, capfd):
    argv = stage({"steps": 7, "then": "abort"})
    folder = RunFolder(workspace.runs / "r1")
    folder.path.mkdir()
    logged = json.dumps({"kind": "step_logged", "seq": 1, "time_s": 0.0, "loss": 2.5})
    folder.events.write_text(logged + '\n{"kind": "torn', encoding="utf-8")
    code = supervisor.keep_alive(["demo", "--json"], workspace, headless=True, argv=argv)
    assert code == 1 and len(starts(workspace)) == 3
    assert starts(workspace)[2]["command"] == ["demo", "--resume", "r1", "--json"]
    first, last = map(json.loads, folder.events.read_text(encoding="utf-8").splitlines())
    assert first["seq"] == 1 and last["seq"] == 2 and last["kind"] == "run_failed" and last["step"] == 7
    assert last["diagnosis"]["id"] == "engine_died"
    assert len(read_deaths(folder)) == 3
    answer = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert (answer["run"], answer["state"], answer["steps"], answer["loss"]) == ("r1", "failed", 7, 2.5)
    assert answer["diagnosis"]["fixes"] and "7" in answer["diagnosis"]["what"]


@pytest.mark.computing
def test_deaths_that_get_further_each_time_go_on(workspace, stage):
    argv = stage(*({"steps": step, "then": "kill"} for step in (3, 3, 4, 5, 6)), {"code": 0})
    assert supervisor.keep_alive(["resume", "r1"], workspace, headless=True, argv=argv) == 0
    assert len(starts(workspace)) == 6


@pytest.mark.computing
def test_a_child_that_never_gets_to_a_run_is_given_up(workspace, stage):
    argv = stage({"then": "abort"})
    with pytest.raises(StudioError) as refused:
        supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv)
    assert refused.value.exit_code == 1 and refused.value.what.id == "supervise.gave_up"
    assert [start["command"] for start in starts(workspace)] == [["train", "r.json"]] * 3


def test_the_window_is_told_what_to_resume_and_what_failed(workspace, stage):
    argv = stage(*[{"steps": 2, "then": "abort"}] * 3, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    made = starts(workspace)
    assert [start["env"].get("RESUME") for start in made] == [None, "r1", "r1", None]
    assert [start["env"].get("FAILED") for start in made] == [None, None, None, "r1"]
    assert all(start["command"] == ["studio", "--no-browser"] for start in made)
    assert {start["cwd"] for start in made} == {str(workspace.server_cwd)}
    log = (workspace.logs / "studio.log").read_text(encoding="utf-8")
    assert log.count("last words") == 3


def test_the_log_is_looked_at_before_each_start(workspace, stage, monkeypatch):
    """A studio may stay up for weeks."""
    monkeypatch.setattr(supervisor, "LOG_LIMIT_BYTES", 8)
    argv = stage(*[{"steps": step, "then": "kill"} for step in (1, 2)], {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    log = workspace.logs / "studio.log"
    second = starts(workspace)[1]["pid"]
    assert str(second) in log.with_name("studio.log.1").read_text(encoding="utf-8")
    assert not log.read_text(encoding="utf-8")


def test_a_wish_for_a_restart_is_no_death_and_has_an_environment_of_its_own(
    workspace, stage, monkeypatch, run_folder
):
    folder = run_folder()
    made_for: list[int] = []
    prepare = supervisor.prepare_environment

    def prepare_anew(*given):
        made_for.append(1)
        return prepare(*given) | {"FINETUNE_STUDIO_NUMBER": str(len(made_for))}

    monkeypatch.setattr(supervisor, "prepare_environment", prepare_anew)
    argv = stage({"wish": "r1"}, {"wish": None}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    made = starts(workspace)
    assert [start["env"].get("RESUME") for start in made] == [None, "r1", None]
    assert [start["env"]["NUMBER"] for start in made] == ["1", "2", "3"]
    assert read_deaths(folder) == [] and not (workspace.root / "restart.json").exists()


def test_a_headless_wish_goes_on_with_the_run(workspace, stage):
    argv = stage({"wish": "r1"}, {"code": 0})
    assert supervisor.keep_alive(["train", "r", "--json"], workspace, headless=True, argv=argv) == 0
    assert starts(workspace)[1]["command"] == ["resume", "r1", "--json"]


@pytest.mark.computing
def test_wishes_without_end_are_given_up(workspace, stage):
    argv = stage({"wish": None})
    with pytest.raises(StudioError) as refused:
        supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv)
    assert refused.value.what.id == "supervise.gave_up"
    assert len(starts(workspace)) == supervisor.WISHES + 1


@pytest.mark.computing
def test_words_do_not_wait_for_a_reader():
    reader, writer = os.pipe()
    code = (
        "import os, sys; from studio.supervisor import restarts; from studio.core.i18n import literal\n"
        "os.set_blocking(2, False)\n"
        "try:\n    while True: os.write(2, b'x' * 4096)\nexcept BlockingIOError: os.set_blocking(2, True)\n"
        "restarts._say(literal('y' * 5000)); os.write(1, b'went on')\n"
    )
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=writer
        )
        assert process.communicate(timeout=20)[0] == b"went on" and process.returncode == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_a_death_before_the_first_sign_of_life_repeats_what_was_to_be_done(workspace, stage):
    argv = stage({"steps": 3, "then": "abort"}, {"then": "kill"}, {"code": 0})
    assert supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv) == 0
    assert [start["command"] for start in starts(workspace)] == [["train", "r.json"], *[["resume", "r1"]] * 2]


def test_the_window_too_is_told_again_what_to_go_on_with(workspace, stage):
    argv = stage({"steps": 3, "then": "abort"}, {"then": "kill"}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    assert [start["env"].get("RESUME") for start in starts(workspace)] == [None, "r1", "r1"]


def test_training_is_refused_while_a_run_is_active(workspace, stage):
    stage({"code": 0})
    with claim(workspace, "run", run="busy-1"), pytest.raises(StudioError) as refused:
        supervisor.supervise(["train", "r.json"], workspace, headless=True)
    assert refused.value.exit_code == 2 and refused.value.what.values == {"run": "busy-1"}
    assert not (workspace.root / "starts").exists()


def test_a_second_window_opens_the_first_ones_page(workspace, stage, tmp_path, monkeypatch):
    argv = stage({"then": "page"})
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(supervisor, "child_argv", argv)
    second: list[int] = []
    page = Page.__call__

    def tick(self):
        page(self)
        if self.address and not second:
            second.append(0)
            second[0] = supervisor.supervise(["studio"], workspace, headless=False)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Page, "__call__", tick)
    assert supervisor.supervise(["--no-browser", "--workspace", "x"], workspace, headless=False) == 0
    assert (
        second == [0] and len(starts(workspace)) == 1 and starts(workspace)[0]["command"] == ["--no-browser"]
    )
    assert opened == ["http://127.0.0.1:9/?token=once"]


@pytest.mark.computing
def test_a_restart_on_another_port_is_shown_and_one_on_the_same_is_not(workspace, stage, monkeypatch):
    argv = stage(*({"then": "page", "port": port, "wish": None} for port in (9, 9, 8)), {"code": 0})
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    change_settings(workspace, window="tab")
    assert supervisor.keep_alive(["studio"], workspace, headless=False, argv=argv) == 0
    assert [address.partition("/?")[0] for address in opened] == ["http://127.0.0.1:9", "http://127.0.0.1:8"]


def test_importing_the_supervisor_loads_nothing_heavy():
    heavy = "{'torch', 'gradio', 'transformers'}"
    code = f"import sys, studio.supervisor.restarts; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
