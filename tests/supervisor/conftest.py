"""A stand-in for the child of the supervisor, and what starts, watches and asks it: fixtures and helpers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from studio.engine.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]

# A stand-in for `python -m studio.cli --child`: it notes each start, follows the plan in the workspace (one entry a
# start: a step to die at, an exit code, or "wait"), and speaks the child's side of the protocol.
CHILD = """
import json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from studio.supervisor import parent_pipe
from studio.core.heartbeat import Heartbeat, Standstill, request_restart, write_stall
root = Path(os.environ["FINETUNE_STUDIO_WORKSPACE"])
extra = {n[16:]: v for n, v in os.environ.items() if n.startswith("FINETUNE_STUDIO_")}
with (root / "starts").open("a") as file:
    file.write(json.dumps({"command": sys.argv[1:], "pid": os.getpid(), "cwd": os.getcwd(), "env": extra}) + "\\n")
plan = json.loads((root / "plan").read_text())
act = plan[min(len((root / "starts").read_text().splitlines()), len(plan)) - 1]
stopped = threading.Event()
parent_pipe.watch_parent(stopped.set)
def show_page():
    address = {"url": f"http://127.0.0.1:{act.get('port', 9)}/?token=once", "pid": os.getpid()}
    (root / "address.json").write_text(json.dumps(address))
if "wish" in act:
    if act.get("then") == "page":
        show_page()
        time.sleep(0.4)
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
    show_page()
(root / "ready").write_text(str(os.getpid()))
if act["then"] == "beating":
    from studio.core.recipe import RunSpec
    from studio.engine.run_folder import RunFolder
    from studio.engine.watchdog import Watch
    with Watch(RunFolder(folder), RunSpec(), lambda event: None, heart) as watch:
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


def wait_for(condition, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


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
            "run": {"on_stall": on_stall},
        }
        (folder.path / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
        return folder

    return make


# keep_alive in a process of its own, which the tests send signals to. Who starts the tests by nohup hands a deaf ear
# for SIGHUP on to every process: this one listens, whoever started it.
DRIVER = """
import signal, sys
from pathlib import Path
from studio.machine.workspace import open_workspace
from studio.supervisor.restarts import keep_alive
if "deaf" not in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
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
