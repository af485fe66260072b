"""The supervisor and ends: asked for, by a death of its own, after the run; what an end is called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from studio.engine.crash_records import Death, describe_code, diagnose_death, read_deaths
from studio.engine.run_folder import RunFolder
from studio.supervisor import restarts as supervisor
from studio.supervisor.child_process import GRACE_S, Ending, watch
from tests.each_time import rarely, some
from tests.slowness import slowness
from tests.supervisor.conftest import DRIVER, is_alive, starts, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.computing
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="only on Linux: a thread's own count of wake-ups"
)
def test_waiting_for_a_child_is_rest(workspace):
    import resource

    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    watch([sys.executable, "-c", "import time; time.sleep(2)"], workspace, os.environ, [])
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 60, (
        "it was 140: Popen.wait asks and asks"
    )


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGTERM))
def test_a_request_to_end_saves_and_leaves_nobody_behind(workspace, driver, number):
    process = driver({"steps": 3, "then": "grandchild"})
    (child,) = psutil.Process(process.pid).children()
    family = [child, *child.children()]
    assert len(family) == 2 and os.getpgid(child.pid) != os.getpgid(process.pid)
    process.send_signal(number)
    assert process.wait(30) == 0
    assert (workspace.root / "checkpoint").read_text(encoding="utf-8") == "saved"
    assert len(starts(workspace)) == 1 and not (workspace.runs / "r1" / "deaths.jsonl").exists()
    wait_for(lambda: not any(map(is_alive, family)))


def test_the_child_ends_within_2_s_of_its_parents_death(workspace, driver):
    process = driver({"steps": 3, "then": "deaf"})
    (child,) = psutil.Process(process.pid).children()
    limit_s = 2.0 * slowness()
    process.kill()
    wait_for(lambda: not is_alive(child), limit_s)


@pytest.mark.computing
def test_the_watchs_clock_does_not_keep_an_orphan_alive(workspace, driver):
    process = driver({"steps": 3, "then": "beating"})
    (child,) = psutil.Process(process.pid).children()
    wait_for((workspace.root / "beating").exists)
    time.sleep(1.2)  # the clock was set more than once
    family = [child, *child.children()]
    limit_s = 2.0 * slowness()
    process.kill()
    wait_for(lambda: not any(map(is_alive, family)), limit_s)


def test_nohup_stays_in_force(workspace, stage, tmp_path):
    stage({"steps": 1, "then": "deaf"})
    words = [sys.executable, "-c", DRIVER, str(workspace.root), str(tmp_path / "child.py"), "deaf"]
    process = subprocess.Popen(
        ["nohup", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for((workspace.root / "ready").exists)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.4)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_child_that_does_not_listen_is_killed_after_the_grace(workspace, stage):
    argv = stage({"steps": 3, "then": "deaf"})
    asked: list[float] = []

    def ask():
        if (workspace.root / "ready").exists():
            asked.append(0.0)

    environment = dict(os.environ, FINETUNE_STUDIO_WORKSPACE=str(workspace.root), PYTHONPATH=str(ROOT))
    started = time.monotonic()
    ending = watch(argv([]), workspace, environment, asked, on_tick=ask, grace_s=0.3)
    assert ending.asked and ending.intended and ending.code == -signal.SIGKILL
    assert time.monotonic() - started < GRACE_S


@pytest.mark.parametrize(("state", "code"), [("finished", 0), rarely("stopped", 0), rarely("failed", 1)])
def test_a_crash_after_the_end_of_the_run_is_not_its_end(workspace, stage, impatient, state, code):
    """A library that crashes while the interpreter ends: the run is neither trained again nor failed."""
    from studio.core.run_record import RunRecord

    folder = RunFolder(workspace.runs / "r1")
    folder.path.mkdir()
    folder.write_record(RunRecord(run="r1", name="r1", state=state, created_s=1.0, seed=0))
    argv = stage({"steps": 3, "then": "clear"})
    assert supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv) == code
    assert len(starts(workspace)) == 1 and read_deaths(folder) == []


def test_an_end_by_somebody_elses_request_is_no_death():
    def ending(code):
        return Ending(code=code, asked=False, beat=None, lived_s=1.0, log="")

    assert ending(-signal.SIGTERM).intended and ending(0xC000013A).intended and ending(2).intended
    assert not any(ending(code).intended for code in (-signal.SIGKILL, -signal.SIGABRT, 134, 3, 3221225477))


def test_ends_have_names():
    assert [describe_code(code) for code in (-6, -9, 134, 3221225477, 3)] == [
        "SIGABRT",
        "SIGKILL",
        "SIGABRT",
        "0xC0000005",
        "exit code 3",
    ]


def test_the_out_of_memory_killer_gets_its_own_advice():
    killed = diagnose_death(Death(time_s=0.0, code=-9, run="r", step=4))
    crashed = diagnose_death(Death(time_s=0.0, code=-11, run="r", step=4))
    assert killed.why.id != crashed.why.id and len(killed.fixes) == len(crashed.fixes) + 1
