"""What a run's folder tells without being read as a whole: its size, the shape of its loss, how long it worked."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.events import HELD_OUT_REWARD
from studio.core.json_file import parse_json
from studio.core.run_record import RunRecord
from studio.engine.checkpoint import list_checkpoints
from studio.engine.run_folder import RunFolder

SPARK_POINTS = 60
CURVE_POINTS = 1000
"""Points of one run in an overlay: more than a screen has columns for them."""
READ_POINTS = 4
"""Lines are read for so many times the points that are kept: steps that came twice are sorted out among them."""

CurveRow = tuple[str, int, float]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Read anew when one of the run's files changed."""

    size_bytes: int
    spark: tuple[float, ...]
    """At most SPARK_POINTS losses, the first and the last among them."""
    span_s: float
    """From the first event to the last."""
    checkpoint: int | None
    """Step of the newest checkpoint; None without one."""
    best_eval_loss: float | None
    """The lowest evaluation loss; None without an evaluation."""
    best_eval_reward: float | None = None
    """The highest mean reward of held-out questions; None of who learns from examples."""


def mark(folder: RunFolder) -> tuple[int, ...]:
    """Return numbers that change with what summarise() reads. Raises FileNotFoundError when the run is gone."""
    stat = os.stat(folder.path / "run.json")
    marks = [stat.st_mtime_ns, stat.st_size]
    for path in (folder.events, folder.checkpoints):
        try:
            stat = path.stat()
            marks += [stat.st_mtime_ns, stat.st_size]
        except FileNotFoundError:
            marks += [0, 0]
    return tuple(marks)


def summarise(folder: RunFolder) -> RunSummary:
    """Return the Summary of a run's folder; what cannot be read counts as nothing."""
    steps, evaluations, rewards, span_s = _read_events(folder.events, SPARK_POINTS * READ_POINTS)
    checkpoints = list_checkpoints(folder.checkpoints)
    losses = tuple(round(loss, 5) for _, loss in thin(steps, SPARK_POINTS))
    return RunSummary(
        measure(folder.path),
        losses,
        span_s,
        checkpoints[0].step if checkpoints else None,
        best_eval_loss=min((loss for _, loss in evaluations), default=None),
        best_eval_reward=max((reward for _, reward in rewards), default=None),
    )


def read_curve(folder: RunFolder) -> tuple[CurveRow, ...]:
    """Return a run's ("step", step, loss) and ("eval", step, loss), at most CURVE_POINTS of each, in order."""
    steps, evaluations, _, _ = _read_events(folder.events, CURVE_POINTS * READ_POINTS)
    rows = [("step", *point) for point in thin(steps, CURVE_POINTS)]
    return (*rows, *(("eval", *point) for point in thin(evaluations, CURVE_POINTS)))


def measure(folder: Path) -> int:
    """Return the bytes of all files below `folder`; links count as nothing."""
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:  # a checkpoint that made room for a newer one meanwhile
            continue
    return total


def worked_s(record: RunRecord, summary: RunSummary) -> float:
    """Return how long a run worked: its phases together, or its events' span where its process never wrote those."""
    return record.worked_s or summary.span_s


def thin(points: list[Any], limit: int) -> list[Any]:
    """Return at most `limit` of `points`, evenly spread, the first and the last among them."""
    if len(points) <= limit:
        return points
    return [points[round(i * (len(points) - 1) / (limit - 1))] for i in range(limit)]


StepPoints = list[tuple[int, float]]


def _read_events(path: Path, lines: int) -> tuple[StepPoints, StepPoints, StepPoints, float]:
    """Return (step, loss) of steps and of evaluations, (step, reward) of those that are no loss, and the events' span.

    About `lines` lines of each kind are read.
    """
    try:
        every = path.read_bytes().splitlines()
    except OSError:
        return [], [], [], 0.0
    found = []
    for kind in (b'"step_logged"', b'"eval_logged"'):
        # The kind stands first in a line; looking there alone keeps prompts and answers out.
        of_kind = [line for line in every if kind in line[:40]]
        found.append([_parse(line) for line in thin(of_kind, lines)])
    steps, looks = found
    rewards = [
        {"step": look.get("step"), "loss": look["metrics"][HELD_OUT_REWARD]}
        for look in looks
        if isinstance(look.get("metrics"), dict) and HELD_OUT_REWARD in look["metrics"]
    ]
    losses = [] if rewards else looks
    # The last line may be torn.
    times = [time_s for line in (*every[:1], *every[-2:]) if (time_s := _parse(line).get("time_s"))]
    known = [
        time_s for time_s in times if isinstance(time_s, (int, float)) and abs(time_s) <= sys.float_info.max
    ]
    return _follow(steps), _follow(losses), _follow(rewards), max(known) - min(known) if known else 0.0


def _follow(events: Any) -> list[tuple[int, float]]:
    """Return (step, loss) in the order of steps: what comes again after a restart takes the place of what was."""
    points: list[tuple[int, float]] = []
    for event in events:
        step, loss = event.get("step"), event.get("loss")
        if not isinstance(step, int) or not isinstance(loss, (int, float)):
            continue
        if not abs(loss) <= sys.float_info.max:  # NaN, infinity, a whole number beyond all floats
            continue
        while points and points[-1][0] >= step:
            points.pop()
        points.append((step, float(loss)))
    return points


def _parse(line: bytes) -> dict[str, Any]:
    try:
        data = parse_json(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
