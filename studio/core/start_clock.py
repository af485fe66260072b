"""When each part of a start began, from the command to a run's first phase: handed down by the environment.

launch.py writes the first mark, the supervisor and its child theirs; the run keeps the lengths in its timings_s as
start_NAME: command (launch.py and the command line), supervisor (until the child's first line of ours), child (until
the recipe is looked at), check, machine (waiting for facts), libraries (waiting for imports).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping

VARIABLE = "FINETUNE_STUDIO_CLOCK"
BEFORE_RUN = ("start_command", "start_supervisor", "start_child", "start_check")
"""Parts that lie before a run is created; the first holds a whole installation, 45 s of a first demo."""


def mark(environment: MutableMapping[str, str], name: str) -> None:
    """Note that the part `name` of the start begins now, where somebody began to note."""
    if VARIABLE in environment:
        environment[VARIABLE] += f" {name}:{time.time():.3f}"


def split(environment: Mapping[str, str], now_s: float) -> dict[str, float]:
    """Return how many seconds each part took; the last one ends at `now_s`. What cannot be read counts for nothing."""
    marks = []
    for word in environment.get(VARIABLE, "").split():
        name, _, began = word.rpartition(":")
        try:
            marks.append((name, float(began)))
        except ValueError:
            return {}
    ends = [*(began for _, began in marks[1:]), now_s]
    return {f"start_{name}": round(end - began, 3) for (name, began), end in zip(marks, ends, strict=False)}
