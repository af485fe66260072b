"""The supervisor and a child that stands still: ended, restarted with safer settings, or only told of."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from studio.core.heartbeat import Heartbeat
from studio.engine.crash_records import read_deaths
from studio.supervisor import restarts as supervisor
from studio.supervisor.child_process import StallJudge, watch
from tests.supervisor.conftest import starts, wait_for

ROOT = Path(__file__).resolve().parents[2]


def test_a_frozen_child_is_ended_and_its_run_goes_on_with_safer_settings(
    workspace, stage, impatient, run_folder, tmp_path, monkeypatch, capfd
):
    folder = run_folder()
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho seen from outside: $*\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    argv = stage({"steps": 3, "then": "freeze"}, {"steps": 3, "then": "abort"}, {"code": 0})
    assert supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv) == 0
    made = starts(workspace)
    assert [start["command"] for start in made] == [["train", "r.json"], ["resume", "r1"], ["resume", "r1"]]
    assert [start["env"].get("SAFER") for start in made] == [None, supervisor.SAFER, supervisor.SAFER]
    assert all(start["env"]["UNATTENDED"] == "1" for start in made)
    stalled, aborted = read_deaths(folder)
    assert (stalled.why, stalled.verdict, stalled.name, stalled.step) == ("stalled", "blocked", "SIGKILL", 3)
    assert (aborted.why, aborted.name) == ("", "SIGABRT")
    (event,) = map(json.loads, folder.events.read_text(encoding="utf-8").splitlines())
    assert (event["kind"], event["seq"], event["action"], event["step"]) == ("run_stalled", 1, "restart", 3)
    stacks = (folder.path / "stacks.txt").read_text(encoding="utf-8")
    assert f"seen from outside: dump --pid {made[0]['pid']}" in stacks
    assert "no sign of life at step 3" in capfd.readouterr().err


@pytest.mark.computing
def test_the_window_is_restarted_when_it_stands_still_itself(workspace, stage, impatient, run_folder):
    run_folder()
    argv = stage({"steps": 3, "then": "freeze"}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    first, second = starts(workspace)
    assert "UNATTENDED" not in first["env"]
    assert (second["env"]["RESUME"], second["env"]["SAFER"]) == ("r1", supervisor.SAFER)


@pytest.mark.computing
def test_a_recipe_that_says_stop_ends_the_run_with_its_cause(workspace, stage, impatient, run_folder, capfd):
    folder = run_folder("stop")
    argv = stage({"steps": 3, "then": "freeze"})
    assert supervisor.keep_alive(["train", "r", "--json"], workspace, headless=True, argv=argv) == 1
    answer = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert (answer["state"], answer["diagnosis"]["id"]) == ("failed", "stalled")
    assert "Nothing moves" in answer["diagnosis"]["why"]
    kinds = [json.loads(line)["kind"] for line in folder.events.read_text(encoding="utf-8").splitlines()]
    assert kinds == ["run_stalled", "run_failed"] and len(starts(workspace)) == 1


@pytest.mark.computing
def test_a_recipe_that_says_wait_is_only_told(workspace, driver, impatient, run_folder, capfd):
    run_folder("wait")
    process = driver({"steps": 3, "then": "deaf"})
    wait_for(lambda: "No sign of life at step 3" in (seen := capfd.readouterr().err) or print(seen, end=""))
    assert process.poll() is None and len(starts(workspace)) == 1


@pytest.mark.computing
def test_the_third_standstill_at_one_step_is_the_last(workspace, stage, impatient, run_folder, capfd):
    folder = run_folder()
    argv = stage({"steps": 3, "then": "told", "want": "restart"})
    assert supervisor.keep_alive(["train", "r", "--json"], workspace, headless=True, argv=argv) == 1
    assert [death.frame for death in read_deaths(folder)] == ["a.py:1 in f"] * 3
    assert json.loads(capfd.readouterr().out.strip().splitlines()[-1])["diagnosis"]["id"] == "stalled"


@pytest.mark.computing
def test_restarts_that_a_person_chose_count_for_nothing(workspace, stage, impatient, run_folder):
    folder = run_folder()
    wanted = {"steps": 3, "then": "told", "want": "restart", "person": True}
    argv = stage(*[wanted] * 4, {"steps": 3, "then": "told", "want": "stop", "person": True}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    made = starts(workspace)
    assert [start["env"].get("RESUME") for start in made] == [None, "r1", "r1", "r1", "r1", None]
    assert made[5]["env"]["FAILED"] == "r1" and len(read_deaths(folder)) == 5


def test_the_supervisor_waits_anew_after_a_sleep_and_for_compilers(workspace, run_folder, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", str(os.getpid()))
    folder, heart, now = run_folder(), Heartbeat(workspace.heartbeat), {"s": 100.0, "wall": 0.0}
    vitals = {"time_s": 0.0, "compilers": 0.0}
    monkeypatch.setattr("studio.supervisor.child_process.read_vitals", lambda *_: dict(vitals))
    monkeypatch.setattr("studio.supervisor.child_process._dump_from_outside", lambda *_: None)
    clock, wall = (lambda: now["s"]), (lambda: now["s"] + now["wall"])
    judge = StallJudge(workspace, unattended=True, clock=clock, wall=wall)

    def go(seconds: int) -> list:
        found = []
        for _ in range(seconds):
            now["s"] += 1.0
            found.append(judge())
        return [stall for stall in found if stall]

    for step in range(5):
        heart.beat("r1", folder.path, "train", step)
        assert go(1) == []
    assert go(50) == []
    now["wall"] += 7200
    assert go(60) == []
    vitals["compilers"] = 1.0
    assert go(300) == []
    vitals["compilers"] = 0.0
    (stall, *_) = go(30)
    assert (stall.action, stall.verdict, stall.event.step) == ("restart", "blocked", 4)
    heart.clear()
    assert go(100) == [] and not workspace.heartbeat.exists()


def test_a_child_that_stands_still_is_not_waited_for(workspace, stage, impatient, run_folder):
    run_folder()
    argv = stage({"steps": 3, "then": "freeze"})
    asked: list[float] = []
    environment = dict(os.environ, FINETUNE_STUDIO_WORKSPACE=str(workspace.root), PYTHONPATH=str(ROOT))
    environment["FINETUNE_STUDIO_PARENT"] = str(os.getpid())
    started = time.monotonic()

    def ask():
        if (workspace.root / "heartbeat.json").exists():
            asked.append(0.0)

    judge = StallJudge(workspace, unattended=True)
    ending = watch(argv([]), workspace, environment, asked, on_tick=ask, judge=judge, grace_s=120.0)
    assert ending.asked and ending.intended and ending.stall is None and ending.code == -signal.SIGKILL
    assert time.monotonic() - started < 120
