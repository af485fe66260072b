"""The studio as a person starts it: `launch.py --here` in a process of its own, on tiny models and short recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from studio.machine.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]
RUN_KEYS = {"run", "state", "steps", "loss", "artifact", "diagnosis"}

# Loaded by every Python that has its folder on PYTHONPATH: acts in the engine's thread, where the heartbeat is written.
SITECUSTOMIZE = """
import os, sys, threading, time
ABORT_STEP = int(os.environ.get("TEST_ABORT_STEP", "0"))
MARKER = os.environ.get("TEST_ABORT_ONCE", "")
SLEEP_S = float(os.environ.get("TEST_STEP_SLEEP_S", "0"))
STALL_STEP = int(os.environ.get("TEST_STALL_STEP", "0"))
STALL_ONCE = os.environ.get("TEST_STALL_ONCE", "")
STALL_KIND = os.environ.get("TEST_STALL_KIND", "event")
STALL_S = float(os.environ.get("TEST_STALL_S", "1000"))
at_step = {}

def stand_still():
    if STALL_KIND == "lock":  # holds Python's lock all the while
        import ctypes
        ctypes.PyDLL(None).sleep(int(STALL_S))
    elif STALL_KIND == "print":
        while True:
            print("x" * 1000, file=sys.stderr, flush=True)
    else:
        threading.Event().wait(STALL_S)

def act(event, arguments):
    thread = threading.get_ident()
    if event == "finetune_studio.beat":
        time.sleep(SLEEP_S)
        phase, step = arguments
        if phase == "train":
            at_step[thread] = step
    elif STALL_STEP and at_step.get(thread) == STALL_STEP:
        at_step[thread] = 0
        if STALL_ONCE:
            if os.path.exists(STALL_ONCE):
                return
            open(STALL_ONCE, "w").close()
        stand_still()
    elif ABORT_STEP and at_step.get(thread) == ABORT_STEP:
        if MARKER:
            if os.path.exists(MARKER):
                return
            at_step[thread] = 0
            open(MARKER, "w").close()
        os.abort()

if ABORT_STEP or SLEEP_S or STALL_STEP:
    sys.addaudithook(act)
"""


def write_recipe(folder: Path, base: Path, rows: Path, /, **parts: Any) -> Path:
    """Write folder/recipe.json, 12 quick steps of `base` on `rows`; `parts` join its parts; return its path."""
    recipe: dict[str, Any] = {
        "version": 1,
        "name": "try",
        "model": {"source": str(base)},
        "data": {"source": str(rows), "max_length": 64},
        "optim": {"learning_rate": 0.01, "max_steps": 12, "batch_size": 8},
        "run": {"save_every": 2},
    }
    for part, values in parts.items():
        recipe[part] = recipe.get(part, {}) | values if isinstance(values, dict) else values
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    return path


def environment(workspace: Path, *paths: Path, **more: str) -> dict[str, str]:
    """Return the environment of a launch: English, `workspace`, and `paths` before everything else that is imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FINETUNE_STUDIO_")}
    return kept | {
        "FINETUNE_STUDIO_WORKSPACE": str(workspace),
        "FINETUNE_STUDIO_LANGUAGE": "en",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        **more,
    }


def command(*words: object) -> list[str]:
    """Return the command line of `launch.py --here` with `words`."""
    return [sys.executable, str(ROOT / "launch.py"), "--here", *map(str, words)]


def launch(
    workspace: Path, *words: object, paths: tuple[Path, ...] = (), **more: str
) -> subprocess.CompletedProcess:
    """Run `launch.py --here` with `words` to its end, in a folder that is not the checkout."""
    return subprocess.run(
        command(*words),
        env=environment(workspace, *paths, **more),
        cwd=workspace.parent,
        capture_output=True,
        encoding="utf-8",
        timeout=280,
        check=False,
    )


def start(workspace: Path, *words: object, paths: tuple[Path, ...] = (), **more: str) -> subprocess.Popen:
    """Start `launch.py --here` with `words`; what it prints goes to pipes."""
    return subprocess.Popen(
        command(*words),
        env=environment(workspace, *paths, **more),
        cwd=workspace.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def read_answer(stdout: str) -> dict[str, Any]:
    """Return the one JSON object that is all of `stdout`."""
    (line,) = stdout.splitlines()
    answer = json.loads(line)
    assert isinstance(answer, dict)
    return answer


def read_events(workspace: Path) -> list[dict[str, Any]]:
    """Return the whole lines of the events of the workspace's only run; [] before it has any."""
    files = list((workspace / "runs").glob("*/events.jsonl"))
    lines = files[0].read_text(encoding="utf-8").split("\n")[:-1] if files else []
    return [json.loads(line) for line in lines]


def last_step(workspace: Path) -> int:
    """Return the step that the workspace's only run has logged last."""
    return max(
        (event["step"] for event in read_events(workspace) if event["kind"] == "step_logged"), default=0
    )


def wait_for(condition: Callable[[], object], limit_s: float = 90.0) -> None:
    """Wait until `condition` holds; fails after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def processes_of(workspace: Path) -> list[psutil.Process]:
    """Return the living processes that work in `workspace`, by their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue  # where no init reaps orphans they stay as zombies
            if process.environ().get("FINETUNE_STUDIO_WORKSPACE") == str(workspace):
                found.append(process)
        except psutil.Error:
            continue
    return found


def list_files(folder: Path) -> set[str]:
    """Return every path below `folder`, relative to it, but the facts of the machine, which every command may keep."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return {name for name in names if "cache/facts-" not in name}


@contextmanager
def claimed_elsewhere(workspace: Workspace, run: str = "elsewhere") -> Iterator[None]:
    """Let another process hold the claim of the workspace's one run, as a training does; it is killed at the end."""
    code = (
        "import sys, time\n"
        "from studio.machine.workspace import open_workspace\nfrom studio.machine.workspace_lock import claim\n"
        "held = claim(open_workspace(sys.argv[1]), 'run', run=sys.argv[2])\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(workspace.root), run], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline().strip() == b"held"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
