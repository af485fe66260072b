"""How long a run may stand still before it is held for stalled: from its own pace, phase by phase. Pure.

Both judges use it, the thread inside the engine's process and the supervisor outside:
    pace.beat(("train", 7, 1), now_s)       at each sign of life: phase, step, micro-step
    pace.tick(now_s, wall_s)                at each look; returns how long the machine slept meanwhile
    pace.waited_s(now_s) > pace.limit_s()   it stands still
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from studio.core.json_file import parse_json

BUDGETS_VARIABLE = "FINETUNE_STUDIO_BUDGETS"
"""Environment variable with a JSON object of seconds that replace entries of BUDGETS_S (for tests)."""
BUDGETS_S: Mapping[str, float] = {
    "floor": 60.0,  # no phase is held for stalled before
    "start": 600.0,  # torch and transformers are imported: 10 s, minutes from a slow disk with a virus scanner
    "load": 900.0,
    "download": 600.0,  # without a byte: each progress line is a sign of life
    "open": 600.0,  # as the weights are written, it says so every few seconds
    "prepare": 600.0,
    "reference": 600.0,  # compiles the kernels that evaluate
    "first": 600.0,  # the first step of a process compiles kernels and loads libraries
    "compile": 600.0,
    "warmup": 600.0,
    "trial": 600.0,
    "answers": 300.0,
    "rewards": 600.0,  # code of a person's own, within its limits, or a judge over the network
    "evaluate": 300.0,
    "save": 600.0,
    "verify": 600.0,
    "check": 1.0,  # how often the judges look
    "answer": 300.0,  # how long a person has to choose before the run goes on by itself
}
FACTOR = 10.0
"""Times the median interval of a phase: late data, a longer row and a busy machine stay below it."""
REMEMBERED = 50
SLEPT_S = 20.0
"""Wall clock and monotonic clock drift apart by less, and a thread waits less for its turn, than this."""


@dataclass(slots=True)
class Pace:
    """The intervals between signs of life, and since when there was none; all times in seconds."""

    budgets_s: Mapping[str, float]
    place: tuple[str, int, int] | None = None
    since_s: float = 0.0
    intervals_s: dict[str, deque[float]] = field(default_factory=dict)
    patience: float = 1.0
    """Multiplies the limit of the present standstill; 1 again at the next sign of life."""
    first_step: int | None = None
    """The first step that this process trains: with its optimizer it builds kernels and loads libraries."""
    clocks_s: tuple[float, float] | None = None

    def beat(self, place: tuple[str, int, int], now_s: float) -> None:
        """Note a sign of life at `place` (phase, step, micro-step); the same place again is one too."""
        if self.place is not None and not self._is_first():
            # From one optimizer step to the next is a step of its own: a validation or a save between two belongs to
            # its own phase.
            intervals = self.intervals_s.setdefault(self.place[0], deque(maxlen=REMEMBERED))
            intervals.append(now_s - self.since_s)
        if place[0] == "train" and self.first_step is None:
            self.first_step = place[1]
        self.place, self.since_s, self.patience = place, now_s, 1.0

    def waited_s(self, now_s: float) -> float:
        """Return how long ago the last sign of life was; 0 before the first."""
        return now_s - self.since_s if self.place is not None else 0.0

    def limit_s(self) -> float:
        """Return how long the present phase may give no sign of life."""
        if self.place is None:
            return float("inf")
        phase = self.place[0]
        known = self.intervals_s.get(phase, ())
        budget_s = self.budgets_s.get(phase, 0.0)
        if self._is_first() or (phase == "train" and not known):
            budget_s = self.budgets_s["first"]
        usual_s = FACTOR * median(known) if known else 0.0
        return max(self.budgets_s["floor"], budget_s, usual_s) * self.patience

    def _is_first(self) -> bool:
        """Whether it is in the first step, whose length says nothing about the others."""
        return self.place is not None and self.place[0] == "train" and self.place[1] == self.first_step

    def tick(self, now_s: float, wall_s: float) -> float:
        """Look at both clocks; after a sleep of the machine wait anew and return its length, else 0.

        On Linux and macOS the monotonic clock stands still while the machine sleeps. On Windows it goes on; there a gap
        between two looks may be a sleep or a thread that did not get its turn: wait anew, but claim nothing.
        """
        before, self.clocks_s = self.clocks_s, (now_s, wall_s)
        if before is None:
            return 0.0
        passed_s = now_s - before[0]
        slept_s = wall_s - before[1] - passed_s
        if slept_s > SLEPT_S or passed_s - self.budgets_s["check"] > SLEPT_S:
            self.since_s = now_s
        return slept_s if slept_s > SLEPT_S else 0.0

    def extend(self, now_s: float) -> None:
        """Wait at least as long again as until now before the present standstill is looked at anew."""
        self.patience *= max(2.0, 2.0 * self.waited_s(now_s) / self.limit_s())


def read_budgets(environment: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Return BUDGETS_S with what BUDGETS_VARIABLE replaces. Raises ValueError when that is no object of seconds."""
    given = parse_json(environment.get(BUDGETS_VARIABLE) or "{}")
    unknown = set(given) - set(BUDGETS_S)
    if unknown:
        raise ValueError(f"{BUDGETS_VARIABLE}: no budget is called {', '.join(sorted(unknown))}")
    return dict(BUDGETS_S) | {name: float(seconds) for name, seconds in given.items()}
