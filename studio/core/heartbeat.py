"""The sign of life of a run: one small file that the engine rewrites each micro-step and the supervisor reads.

In the engine:  heart = Heartbeat(workspace.heartbeat)
                heart.beat(run, folder, phase, step, micro)     at every phase, step and micro-step
                heart.clear()                                   when the run has ended, well or not
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

PARENT_VARIABLE = "FINETUNE_STUDIO_PARENT"
"""Environment variable in which a supervised process finds its supervisor's pid."""
REPEAT_S = 0.25
"""Within one step the file is rewritten at most this often: a replace costs some 0.1 ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """Where a run was when it last gave a sign of life. `parent` is the pid of its supervisor, 0 without one."""

    pid: int
    parent: int
    run: str | None
    folder: str
    phase: str
    step: int
    micro: int
    time_s: float


class Heartbeat:
    """Writes Beats to `path`, each an atomic replace: at every change of run, phase or step, else every REPEAT_S."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._parent = int(os.environ.get(PARENT_VARIABLE, "0"))
        self._written: tuple[object, ...] = ()
        self._time_s = 0.0

    def beat(self, run: str | None, folder: Path | str, phase: str, step: int, micro: int = 0) -> None:
        """Say that `run` (its folder beside it) is alive in `phase` at `step`, micro-step `micro`. Raises OSError."""
        now = time.time()
        place = (run, phase, step)
        if place == self._written and now - self._time_s < REPEAT_S:
            return
        beat = {
            "pid": os.getpid(),
            "parent": self._parent,
            "run": run,
            "folder": str(folder),
            "phase": phase,
            "step": step,
            "micro": micro,
            "time_s": now,
        }
        self._staged.write_text(json.dumps(beat), encoding="utf-8")
        try:
            os.replace(self._staged, self.path)
        except PermissionError:
            return  # Windows: a reader has it open just now; `_written` is unchanged, so the next beat writes.
        self._written, self._time_s = place, now

    def clear(self) -> None:
        """Say that no run is active (it ended, well or not): what dies from now on is no run."""
        self.path.unlink(missing_ok=True)
        self._written = ()


def read_beat(path: Path) -> Beat | None:
    """Return the last Beat in `path`; None when there is none or it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Beat(**{name: data[name] for name in Beat.__slots__})
    except (OSError, ValueError, KeyError, TypeError):
        return None
