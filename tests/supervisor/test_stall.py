"""A run that stands still, in real processes: its cause told, restarted with the same weights, ended, waited for."""

from __future__ import annotations

import json
import sys
import time

import pytest

from studio.machine.workspace import open_workspace
from studio.supervisor import restarts as supervisor
from tests.launched import environment, launch, processes_of, read_answer, read_events, start, wait_for
from tests.slowness import slowness
from tests.supervisor.test_crash import calm, recipe, room, site, weights  # noqa: F401 - fixtures

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
"""Three stalls are four starts of torch and transformers: 140 s on two quiet cores."""
BUDGETS = json.dumps({"floor": 1.0, "first": 8.0, "check": 0.1, "answer": 1.0, "start": 60.0, "save": 5.0})


def stalls(folder) -> list[dict]:
    return [event for event in read_events(folder) if event["kind"] == "run_stalled"]


def deaths(folder) -> list[dict]:
    (path,) = (folder / "runs").glob("*/deaths.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_blocked_step_restarts_with_the_same_weights(room, site, recipe, calm, tmp_path):  # noqa: F811
    done = launch(
        room,
        "train",
        recipe,
        "--json",
        paths=(site,),
        TEST_STALL_STEP="7",
        TEST_STALL_ONCE=str(tmp_path / "stalled"),
        FINETUNE_STUDIO_BUDGETS=BUDGETS,
    )
    assert done.returncode == 0, done.stderr
    answer = read_answer(done.stdout)
    assert (answer["state"], answer["steps"]) == ("finished", 12)
    (stall,) = stalls(room)
    assert (stall["step"], stall["phase"], stall["verdict"], stall["action"]) == (
        7,
        "train",
        "blocked",
        "restart",
    )
    assert "in stand_still" in stall["frame"] and "sitecustomize.py" in stall["frame"]
    assert stall["waited_s"] <= 1.0 + 3 * 0.1 + 0.5  # within three looks, on a busy machine
    assert stall["measures"]["ram_total_bytes"] > 0 and "cpu_share" in stall["measures"]
    stacks = (room / "runs" / answer["run"] / "stacks.txt").read_text(encoding="utf-8")
    assert "in stand_still" in stacks and "studio/engine/trainer.py" in stacks
    (death,) = deaths(room)
    assert (death["why"], death["step"], death["verdict"]) == ("stalled", 7, "blocked")
    assert [event["step"] for event in read_events(room) if event["kind"] == "run_resumed"] == [6]
    assert "no sign of life at step 7" in done.stderr and "Traceback" not in done.stderr
    assert weights(answer) == calm(recipe)
    assert processes_of(room) == []


def test_a_held_lock_is_judged_by_the_supervisor(room, site, recipe, calm, tmp_path):  # noqa: F811
    done = launch(
        room,
        "train",
        recipe,
        "--json",
        paths=(site,),
        TEST_STALL_STEP="7",
        TEST_STALL_KIND="lock",
        TEST_STALL_ONCE=str(tmp_path / "stalled"),
        FINETUNE_STUDIO_BUDGETS=BUDGETS,
    )
    assert done.returncode == 0, done.stderr
    answer = read_answer(done.stdout)
    (stall,) = stalls(room)
    assert (stall["step"], stall["verdict"], stall["action"]) == (7, "blocked", "restart")
    assert "in stand_still" in stall["frame"]
    (death,) = deaths(room)
    assert (death["why"], death["name"]) == ("stalled", "SIGKILL") and death["frame"] == stall["frame"]
    stacks = (room / "runs" / answer["run"] / "stacks.txt").read_text(encoding="utf-8")
    assert stacks.startswith("Timeout (0:00:0")
    seqs = [event["seq"] for event in read_events(room)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert weights(answer) == calm(recipe)


# A window without a page: it starts the recipe's run, or goes on with one, and answers the first stall as told.
WINDOW = """
import os, sys
from studio.core.errors import StudioError
from studio.core.events import RunStalled
from studio.services.desk import Desk
from studio.services.recipes import read_recipe
from studio.machine.workspace import open_workspace
from studio.supervisor.parent_pipe import watch_parent
from pathlib import Path

def main():
    desk = Desk(open_workspace())
    watch_parent(desk.runs.stop_all)
    run, failed = os.environ.get("FINETUNE_STUDIO_RESUME"), os.environ.get("FINETUNE_STUDIO_FAILED")
    if failed:
        desk.runs.note_death(failed)
        return 0
    if run:
        desk.queue.resume(run)
    else:
        run = desk.queue.start(read_recipe(sys.argv[1]), checked=True)
    answered, cursor = bool(os.environ.get("FINETUNE_STUDIO_RESUME")), 0
    while desk.runs.active:
        for event in desk.runs.events(run, cursor, 0.2):
            cursor = event.seq
            if isinstance(event, RunStalled) and event.action == "ask" and not answered:
                answered = desk.runs.answer_stall(run, sys.argv[2])
    desk.close()
    return 0

sys.exit(main())
"""


@pytest.mark.parametrize("choice", ["wait", "restart", "stop"])
def test_a_person_at_the_window_chooses(room, site, recipe, calm, tmp_path, monkeypatch, choice):  # noqa: F811
    expected = None if choice == "stop" else calm(recipe)
    script = tmp_path / "window.py"
    script.write_text(WINDOW, encoding="utf-8")
    for name, value in environment(
        room,
        site,
        TEST_STALL_STEP="7",
        TEST_STALL_ONCE=str(tmp_path / "stalled"),
        TEST_STALL_S="4" if choice == "wait" else "1000",
        FINETUNE_STUDIO_BUDGETS=json.dumps(json.loads(BUDGETS) | {"answer": 60.0}),
    ).items():
        monkeypatch.setenv(name, value)
    code = supervisor.keep_alive(
        ["studio", "--no-browser"],
        open_workspace(str(room)),
        headless=False,
        argv=lambda command: [sys.executable, str(script), str(recipe), choice],
    )
    assert code == 0, (room / "logs" / "studio.log").read_text(encoding="utf-8")
    kinds = [event["kind"] for event in read_events(room)]
    assert [stall["action"] for stall in stalls(room)][:2] == ["ask", choice]
    assert kinds[-1] == ("run_failed" if choice == "stop" else "run_finished")
    assert ("run_resumed" in kinds) == (choice == "restart")
    if choice == "wait":
        assert "stall_ended" in kinds and not list((room / "runs").glob("*/deaths.jsonl"))
    else:
        assert [death["why"] for death in deaths(room)] == ["stalled"]
    if expected:
        (folder,) = (room / "runs").iterdir()
        assert weights({"artifact": folder / "adapter"}) == expected


def test_the_third_stall_at_one_step_ends_the_run(room, site, recipe):  # noqa: F811
    done = launch(
        room, "train", recipe, "--json", paths=(site,), TEST_STALL_STEP="7", FINETUNE_STUDIO_BUDGETS=BUDGETS
    )
    assert done.returncode == 1, done.stderr
    answer = read_answer(done.stdout)
    assert (answer["state"], answer["steps"], answer["diagnosis"]["id"]) == ("failed", 7, "stalled")
    assert "stand_still" in answer["diagnosis"]["why"] and len(answer["diagnosis"]["fixes"]) == 2
    assert [death["why"] for death in deaths(room)] == ["stalled"] * 3
    assert [stall["action"] for stall in stalls(room)] == ["restart"] * 3
    assert read_events(room)[-1]["kind"] == "run_failed"


def test_a_pipe_that_nobody_reads_is_named_and_waited_for(room, site, recipe, tmp_path):  # noqa: F811
    process = start(
        room,
        "train",
        recipe,
        "--json",
        paths=(site,),
        TEST_STALL_STEP="7",
        TEST_STALL_KIND="print",
        FINETUNE_STUDIO_BUDGETS=BUDGETS,
    )
    try:
        wait_for(lambda: stalls(room))
        (stall,) = stalls(room)
        assert (stall["verdict"], stall["action"]) == ("output_blocked", "wait")
        assert "in stand_still" in stall["frame"] and stall["measures"]["output_full"] == 1.0
        time.sleep(0.5)
        assert len(processes_of(room)) == 2  # nobody was ended for it
        limit_s = 3.0 * slowness()
    finally:
        process.kill()
        process.communicate()
    wait_for(lambda: not processes_of(room), limit_s)
