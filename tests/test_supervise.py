"""The supervisor with real processes, real signals and real aborts: restarts, their limit, intended ends, claims."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from studio import supervise as supervisor
from studio.child import Ending, Judge, watch
from studio.core.errors import StudioError
from studio.core.heartbeat import Heartbeat
from studio.engine.deaths import Death, describe_code, diagnose_death, read_deaths
from studio.engine.folder import RunFolder
from studio.host.claim import claim

ROOT = Path(__file__).resolve().parents[1]

# A stand-in for `python -m studio.cli --child`: it notes each start, follows the plan in the workspace (one entry a
# start: a step to die at, an exit code, or "wait"), and speaks the child's side of the protocol.
CHILD = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from studio import lifeline
from studio.core.heartbeat import Heartbeat, Standstill, request_restart, write_stall
root = Path(os.environ["FINETUNE_STUDIO_WORKSPACE"])
extra = {n[16:]: v for n, v in os.environ.items() if n.startswith("FINETUNE_STUDIO_")}
with (root / "starts").open("a") as file:
    file.write(json.dumps({"command": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd(), "env": extra}) + "\\n")
plan = json.loads((root / "plan").read_text())
act = plan[min(len((root / "starts").read_text().splitlines()), len(plan)) - 1]
stopped = threading.Event()
lifeline.watch_parent(stopped.set)
if "wish" in act:
    sys.exit(request_restart(root / "heartbeat.json", act["wish"]))
if "code" in act:
    sys.exit(act["code"])
heart = Heartbeat(root / "heartbeat.json")
folder = root / "runs" / "r1"
for step in range(act.get("steps", 0) + 1):
    if "steps" in act:
        folder.mkdir(exist_ok=True)
        heart.beat("r1", folder, "train", step, 0)
print("last words of", os.getpid(), flush=True)
if act["then"] == "freeze":
    os.kill(os.getpid(), signal.SIGSTOP)
if act["then"] == "told":
    told = {"pid": os.getpid(), "run": "r1", "step": 3, "verdict": "blocked", "frame": "a.py:1 in f"}
    write_stall(root / "heartbeat.json", Standstill(**told, wish=act["want"], person=act.get("person", False)))
    time.sleep(60)
if act["then"] == "abort":
    os.abort()
if act["then"] == "clear":
    time.sleep(0.5)
    heart.clear()
    os.abort()
if act["then"] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if act["then"] == "grandchild":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
if act["then"] == "page":
    address = {"url": "http://127.0.0.1:9/?token=once", "pid": os.getpid()}
    (root / "address.json").write_text(json.dumps(address))
(root / "ready").write_text(str(os.getpid()))
if act["then"] == "beating":
    from studio.core.recipe import Limits
    from studio.engine.folder import RunFolder
    from studio.engine.watch import Watch
    with Watch(RunFolder(folder), Limits(), lambda event: None, heart) as watch:
        (root / "beating").write_text("")
        for step in range(100000):
            watch.beat("train", step)
            time.sleep(0.001)
if act["then"] == "deaf":
    time.sleep(60)
stopped.wait()
(root / "checkpoint").write_text("saved")
"""


@pytest.fixture
def stage(workspace, tmp_path):
    """A function that writes the child's plan and returns the argv maker of the stand-in."""
    script = tmp_path / "child.py"
    script.write_text(CHILD, encoding="utf-8")

    def set_up(*plan):
        (workspace.root / "plan").write_text(json.dumps(plan), encoding="utf-8")
        return lambda command: [sys.executable, str(script), *command]

    return set_up


def starts(workspace) -> list[dict]:
    lines = (workspace.root / "starts").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # where no init reaps orphans they stay as zombies
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


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
    assert not workspace.heartbeat.exists()


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


def test_deaths_that_get_further_each_time_go_on(workspace, stage):
    argv = stage(*({"steps": step, "then": "kill"} for step in (3, 3, 4, 5, 6)), {"code": 0})
    assert supervisor.keep_alive(["resume", "r1"], workspace, headless=True, argv=argv) == 0
    assert len(starts(workspace)) == 6


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


# A child that stands still -------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    """Budgets of a fraction of a second."""
    budgets = {"floor": 0.2, "first": 0.2, "check": 0.05}
    monkeypatch.setenv("FINETUNE_STUDIO_BUDGETS", json.dumps(budgets))


@pytest.fixture
def run_folder(workspace):
    """The folder of r1 with a recipe; `on_stall` as given."""

    def make(on_stall: str = "auto") -> RunFolder:
        folder = RunFolder(workspace.runs / "r1")
        folder.path.mkdir()
        recipe = {
            "version": 1,
            "model": {"source": "m"},
            "data": {"source": "d"},
            "limits": {"on_stall": on_stall},
        }
        (folder.path / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
        return folder

    return make


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


def test_the_window_is_restarted_when_it_stands_still_itself(workspace, stage, impatient, run_folder):
    run_folder()
    argv = stage({"steps": 3, "then": "freeze"}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    first, second = starts(workspace)
    assert "UNATTENDED" not in first["env"]
    assert (second["env"]["RESUME"], second["env"]["SAFER"]) == ("r1", supervisor.SAFER)


def test_a_recipe_that_says_stop_ends_the_run_with_its_cause(workspace, stage, impatient, run_folder, capfd):
    folder = run_folder("stop")
    argv = stage({"steps": 3, "then": "freeze"})
    assert supervisor.keep_alive(["train", "r", "--json"], workspace, headless=True, argv=argv) == 1
    answer = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert (answer["state"], answer["diagnosis"]["id"]) == ("failed", "stalled")
    assert "Nothing moves" in answer["diagnosis"]["why"]
    kinds = [json.loads(line)["kind"] for line in folder.events.read_text(encoding="utf-8").splitlines()]
    assert kinds == ["run_stalled", "run_failed"] and len(starts(workspace)) == 1


def test_a_recipe_that_says_wait_is_only_told(workspace, driver, impatient, run_folder, capfd):
    run_folder("wait")
    process = driver({"steps": 3, "then": "deaf"})
    wait_for(lambda: "No sign of life at step 3" in (seen := capfd.readouterr().err) or print(seen, end=""))
    assert process.poll() is None and len(starts(workspace)) == 1


def test_the_third_standstill_at_one_step_is_the_last(workspace, stage, impatient, run_folder, capfd):
    folder = run_folder()
    argv = stage({"steps": 3, "then": "told", "want": "restart"})
    assert supervisor.keep_alive(["train", "r", "--json"], workspace, headless=True, argv=argv) == 1
    assert [death.frame for death in read_deaths(folder)] == ["a.py:1 in f"] * 3
    assert json.loads(capfd.readouterr().out.strip().splitlines()[-1])["diagnosis"]["id"] == "stalled"


def test_restarts_that_a_person_chose_count_for_nothing(workspace, stage, impatient, run_folder):
    folder = run_folder()
    wanted = {"steps": 3, "then": "told", "want": "restart", "person": True}
    argv = stage(*[wanted] * 4, {"steps": 3, "then": "told", "want": "stop", "person": True}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    made = starts(workspace)
    assert [start["env"].get("RESUME") for start in made] == [None, "r1", "r1", "r1", "r1", None]
    assert made[5]["env"]["FAILED"] == "r1" and len(read_deaths(folder)) == 5


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


def test_wishes_without_end_are_given_up(workspace, stage):
    argv = stage({"wish": None})
    with pytest.raises(StudioError) as refused:
        supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv)
    assert refused.value.what.id == "supervise.gave_up"
    assert len(starts(workspace)) == supervisor.WISHES + 1


def test_words_do_not_wait_for_a_reader():
    reader, writer = os.pipe()
    code = (
        "import os, sys; from studio import supervise; from studio.core.text import literal\n"
        "os.set_blocking(2, False)\n"
        "try:\n    while True: os.write(2, b'x' * 4096)\nexcept BlockingIOError: os.set_blocking(2, True)\n"
        "supervise._say(literal('y' * 5000)); os.write(1, b'went on')\n"
    )
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=writer
        )
        assert process.communicate(timeout=20)[0] == b"went on" and process.returncode == 0
    finally:
        os.close(reader)
        os.close(writer)


def test_the_supervisor_waits_anew_after_a_sleep_and_for_compilers(workspace, run_folder, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_PARENT", str(os.getpid()))
    folder, heart, now = run_folder(), Heartbeat(workspace.heartbeat), {"s": 100.0, "wall": 0.0}
    vitals = {"time_s": 0.0, "compilers": 0.0}
    monkeypatch.setattr("studio.child.read_vitals", lambda *_: dict(vitals))
    monkeypatch.setattr("studio.child._dump_from_outside", lambda *_: None)
    clock, wall = (lambda: now["s"]), (lambda: now["s"] + now["wall"])
    judge = Judge(workspace, unattended=True, clock=clock, wall=wall)

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


# keep_alive in a process of its own, which the tests send signals to.
DRIVER = """
import sys
from pathlib import Path
from studio.host.workspace import open_workspace
from studio.supervise import keep_alive
sys.exit(keep_alive(["train", "r.json"], open_workspace(sys.argv[1]), headless=True,
                    argv=lambda command: [sys.executable, sys.argv[2], *command]))
"""


@pytest.fixture
def driver(workspace, stage, tmp_path):
    """A function that starts the driver on a plan and waits until the child is ready."""
    running = []

    def start(*plan) -> subprocess.Popen:
        stage(*plan)
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(workspace.root), str(tmp_path / "child.py")], cwd=ROOT
        )
        running.append(process)
        wait_for((workspace.root / "ready").exists)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_saves_and_leaves_nobody_behind(workspace, driver, number):
    process = driver({"steps": 3, "then": "grandchild"})
    (child,) = psutil.Process(process.pid).children()
    family = [child, *child.children()]
    assert len(family) == 2 and os.getpgid(child.pid) != os.getpgid(process.pid)
    process.send_signal(number)
    assert process.wait(10) == 0
    assert (workspace.root / "checkpoint").read_text(encoding="utf-8") == "saved"
    assert len(starts(workspace)) == 1 and not (workspace.runs / "r1" / "deaths.jsonl").exists()
    wait_for(lambda: not any(map(is_alive, family)), 2.0)


def test_the_child_ends_within_2_s_of_its_parents_death(workspace, driver):
    process = driver({"steps": 3, "then": "deaf"})
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    wait_for(lambda: not is_alive(child), 2.0)


def test_the_watchs_clock_does_not_keep_an_orphan_alive(workspace, driver):
    process = driver({"steps": 3, "then": "beating"})
    (child,) = psutil.Process(process.pid).children()
    wait_for((workspace.root / "beating").exists)
    time.sleep(1.2)  # the clock was set more than once
    family = [child, *child.children()]
    process.kill()
    wait_for(lambda: not any(map(is_alive, family)), 2.0)


def test_nohup_stays_in_force(workspace, stage, tmp_path):
    stage({"steps": 1, "then": "deaf"})
    words = [sys.executable, "-c", DRIVER, str(workspace.root), str(tmp_path / "child.py")]
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
    assert time.monotonic() - started < 5


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

    judge = Judge(workspace, unattended=True)
    ending = watch(argv([]), workspace, environment, asked, on_tick=ask, judge=judge, grace_s=60.0)
    assert ending.asked and ending.intended and ending.stall is None and ending.code == -signal.SIGKILL
    assert time.monotonic() - started < 20


def test_a_death_before_the_first_sign_of_life_repeats_what_was_to_be_done(workspace, stage):
    argv = stage({"steps": 3, "then": "abort"}, {"then": "kill"}, {"code": 0})
    assert supervisor.keep_alive(["train", "r.json"], workspace, headless=True, argv=argv) == 0
    assert [start["command"] for start in starts(workspace)] == [["train", "r.json"], *[["resume", "r1"]] * 2]


def test_the_window_too_is_told_again_what_to_go_on_with(workspace, stage):
    argv = stage({"steps": 3, "then": "abort"}, {"then": "kill"}, {"code": 0})
    assert supervisor.keep_alive(["studio", "--no-browser"], workspace, headless=False, argv=argv) == 0
    assert [start["env"].get("RESUME") for start in starts(workspace)] == [None, "r1", "r1"]


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_a_crash_after_the_end_of_the_run_is_not_its_end(workspace, stage, impatient, state, code):
    """A library that crashes while the interpreter ends: the run is neither trained again nor failed."""
    from studio.core.record import RunRecord

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
    page = supervisor._Page.__call__

    def tick(self):
        page(self)
        if self.address and not second:
            second.append(0)
            second[0] = supervisor.supervise(["studio"], workspace, headless=False)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(supervisor._Page, "__call__", tick)
    assert supervisor.supervise(["--no-browser", "--workspace", "x"], workspace, headless=False) == 0
    assert (
        second == [0] and len(starts(workspace)) == 1 and starts(workspace)[0]["command"] == ["--no-browser"]
    )
    assert opened == ["http://127.0.0.1:9/?token=once"]


def test_importing_the_supervisor_loads_nothing_heavy():
    code = (
        "import sys, studio.supervise; sys.exit(bool({'torch', 'gradio', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
