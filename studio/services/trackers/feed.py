"""Mirrors a run's points to a tracker, in a process of its own that reads events.jsonl: the run never waits for it.

`python -m studio.services.trackers.feed RUN_FOLDER TRACKER FOLDER`. It ends when its standard input does, after the
last point: then the run has ended, or whoever started it is dead. Whatever a tracker does (raise, hang, fill a disk)
ends this process alone; what it said stands in tracker.log in the run's folder.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from studio.core.errors import Problem
from studio.core.events import EvalLogged, RunEvent, StepLogged, Warned
from studio.core.i18n import text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, read_value
from studio.engine.run_folder import RunFolder
from studio.services.event_log import EventLog
from studio.services.trackers import get_tracker
from studio.services.trackers.tracker import OpenTracker, StepValues

LOOK_S = 1.0
"""How often new events are looked for."""
LONGEST_S = 120.0
"""A tracker that takes longer for one thing hangs: its process ends."""
LOG = "tracker.log"
PRIVATE = ("model.source", "model.adapter", "data.", "adapter.tokens_file")
"""Settings that can hold a path, a name or words of the data: no tracker gets them."""


@contextmanager
def mirroring(folder: RunFolder, recipe: Recipe, trackers: Path, emit: Any) -> Iterator[None]:
    """Mirror the run in `folder` inside, where its recipe asks for it; `trackers`: the folder of all trackers."""
    name = recipe.run.tracker
    child = _start(folder, name, trackers / name) if get_tracker(name) is not None else None
    try:
        yield
    finally:
        if child is not None:
            failed = child.poll() not in (None, 0)
            with suppress(OSError):
                child.stdin.close()  # nobody waits for what it still writes
            if failed:
                emit(Warned(message=text("tracker.failed", name=name, reason=_last_line(folder.path / LOG))))


def _start(folder: RunFolder, name: str, place: Path) -> subprocess.Popen[bytes] | None:
    line = [sys.executable, "-P", "-m", "studio.services.trackers.feed", str(folder.path), name, str(place)]
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment |= get_tracker(name).environment(place)
    with (folder.path / LOG).open("ab") as log:
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1][:200] if lines else "-"


def main(run_folder: str, name: str, place: str) -> int:
    """Mirror until standard input ends; the exit code is 1 where the tracker cannot be opened."""
    tracker = get_tracker(name)
    if tracker is None:
        return 1
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    watch = _Watch()
    folder = RunFolder(Path(run_folder))
    Path(place).mkdir(parents=True, exist_ok=True)
    if hasattr(os, "nice"):
        os.nice(10)  # the run goes first
    try:
        # One mirror a run: that of a killed studio may still be writing its last points.
        with FileLock(Path(place) / f".{folder.run}.lock", timeout=LONGEST_S):
            with watch.limit():
                opened = tracker.open(Path(place), folder.run, plain_settings(folder.read_recipe()))
            _follow(folder, opened, ended, watch)
            with watch.limit():
                opened.close()
    except Timeout:
        return 1
    return 0


def _follow(folder: RunFolder, opened: OpenTracker, ended: threading.Event, watch: _Watch) -> None:
    log, cursor = EventLog(folder.events), 0
    while True:
        last = ended.is_set()  # asked before reading: what was written before the end is read
        log.refresh()
        events = log.since(cursor)
        cursor = events[-1].seq if events else cursor
        points = [point for event in events if (point := _to_point(event, opened.written)) is not None]
        if points:
            with watch.limit():
                opened.write(points)
        if last:
            return
        ended.wait(LOOK_S)


def _to_point(event: RunEvent, written: set[tuple[str, int]]) -> StepValues | None:
    """Return the numbers of an event that are not there yet; a step that was done again after a resume is there."""
    if isinstance(event, StepLogged):
        values = {"loss": event.loss, "learning_rate": event.lr, "grad_norm": event.grad_norm}
        values |= {"tokens_per_s": event.tokens_per_s, **event.metrics}
    elif isinstance(event, EvalLogged):
        values = {"eval_loss": event.loss} if event.reward is None else {"eval_reward": event.reward}
    else:
        return None
    new = {
        name: float(value)
        for name, value in values.items()
        if math.isfinite(value) and (name, event.step) not in written
    }
    written |= {(name, event.step) for name in new}
    return StepValues(event.step, new, event.time_s) if new else None


def plain_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's settings by dotted path, without what is private."""
    return {
        knob.path: read_value(recipe, knob.path)
        for knob in knobs_of(Recipe)
        if knob.kind in (int, float, bool, str) and not knob.path.startswith(PRIVATE)
    }


def _wait_for_end(ended: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    ended.set()


class _Watch:
    """Ends the process when one thing takes longer than LONGEST_S: a hanging tracker hangs here alone."""

    def __init__(self) -> None:
        self._until_s: float | None = None
        threading.Thread(target=self._look, daemon=True).start()

    @contextmanager
    def limit(self) -> Iterator[None]:
        """Allow LONGEST_S for what is inside."""
        self._until_s = time.monotonic() + LONGEST_S
        try:
            yield
        finally:
            self._until_s = None

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            until_s = self._until_s
            if until_s is not None and time.monotonic() > until_s:
                print(f"the tracker took more than {LONGEST_S:.0f} s", flush=True)
                os._exit(3)


def find_tracker_problem(recipe: Recipe) -> Problem | None:
    """Return that the recipe's tracker is not installed; None where it is, or none is asked for."""
    tracker = get_tracker(recipe.run.tracker)
    if tracker is None or importlib.util.find_spec(tracker.module) is not None:
        return None
    message, fix = (
        text("tracker.missing", name=tracker.name),
        text("tracker.missing.fix", package=tracker.package),
    )
    return Problem(field="run.tracker", message=message, fix=fix)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
