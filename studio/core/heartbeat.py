"""The sign of life of a run: one small file that the engine rewrites each micro-step and the supervisor reads.

In the engine:  heart = Heartbeat(workspace.heartbeat)
                heart.beat(run, folder, phase, step, micro)     at every phase, step and micro-step
                heart.clear()                                   when the run has ended, well or not

Beside it lie two wishes of the studio's process to its supervisor: stall.json, written anew at each look while the
engine stands still and the process can tell (write_stall), and restart.json before a planned restart (request_restart).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.json_file import read_json

PARENT_VARIABLE = "FINETUNE_STUDIO_PARENT"
"""Environment variable in which a supervised process finds its supervisor's pid."""
UNATTENDED_VARIABLE = "FINETUNE_STUDIO_UNATTENDED"
"""Set for train, resume and demo: no window asks a person."""
RESUME_VARIABLE = "FINETUNE_STUDIO_RESUME"
"""The run that the window's process goes on with after a restart."""
SAFER_VARIABLE = "FINETUNE_STUDIO_SAFER"
"""After a stall: settings that cannot change a result, separated by commas: `pytorch_kernels`."""
RESTART_CODE = 75
"""Exit code of a process that wants to be started again, in an environment made anew: a wish, no death."""
RETRIES = 10
REPEAT_S = 0.25
"""Within one step the file is rewritten at most this often."""
ROOM_BYTES = 1024
"""Signs of life are filled up with blanks to a multiple of this, so that one takes the place of another. Writing over
the file costs 10 us; replacing it takes 0.1 ms, and 1.7 ms on a file system that then writes its data out."""


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
    thread: int = 0
    """threading.get_ident() of the engine's thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standstill:
    """What the studio's own process says of an engine that stands still; it is written anew at each look."""

    pid: int
    run: str
    step: int
    verdict: str
    frame: str
    wish: str
    """What the supervisor is to do: "" nothing (yet), restart, stop"""
    person: bool = False
    """Whether a person chose it."""


class Heartbeat:
    """Writes Beats to `path`: at every change of run, phase or step, else every REPEAT_S.

    The first one replaces the file at once, those of the same length are written over it in one call.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._parent = int(os.environ.get(PARENT_VARIABLE, "0"))
        self._written: tuple[object, ...] = ()
        self._time_s = 0.0
        self._file: BinaryIO | None = None
        self._length = 0

    def beat(self, run: str | None, folder: Path | str, phase: str, step: int, micro: int = 0) -> None:
        """Say that `run` (its folder beside it) is alive in `phase` at `step`, micro-step `micro`. Raises OSError.

        What is written is an auditing event of Python before: finetune_studio.beat with phase and step.
        """
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
            "thread": threading.get_ident(),
        }
        sys.audit("finetune_studio.beat", phase, step)
        line = json.dumps(beat).encode("utf-8")
        line = line.ljust(-(-len(line) // ROOM_BYTES) * ROOM_BYTES)
        if self._file is not None and self._length == len(line) and os.fstat(self._file.fileno()).st_nlink:
            self._file.seek(0)
            self._file.write(line)
        elif not self._replace(line):
            return  # `_written` is unchanged, so the next beat writes
        self._written, self._time_s = place, now

    def _replace(self, line: bytes) -> bool:
        """Put a new file there and keep it open; returns whether it could: on Windows a reader may hold the old one."""
        self._close()
        self._staged.write_bytes(line)
        try:
            os.replace(self._staged, self.path)
            self._file, self._length = self.path.open("r+b", buffering=0), len(line)
        except PermissionError:
            return False
        return True

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def clear(self) -> None:
        """Say that no run is active (it ended, well or not): what dies from now on is no run."""
        self._close()
        for _ in range(RETRIES):
            try:
                self.path.unlink(missing_ok=True)
                break
            except (
                PermissionError
            ):  # Windows: the supervisor reads it just now; left there, it would look like a stall
                time.sleep(0.02)
        self._written = ()


def read_beat(path: Path) -> Beat | None:
    """Return the last Beat in `path`; None when there is none or it cannot be read."""
    return _read(Beat, path)


def write_stall(heartbeat: Path, stall: Standstill | None) -> None:
    """Put `stall` beside the heartbeat file, None to take it away. Raises OSError."""
    path = heartbeat.with_name("stall.json")
    if stall is None:
        path.unlink(missing_ok=True)
        return
    write_file(path, json.dumps(dataclasses.asdict(stall)).encode())


def read_stall(heartbeat: Path, fresh_s: float) -> Standstill | None:
    """Return what write_stall put there at most `fresh_s` ago: an older one was left by a process that is stuck."""
    path = heartbeat.with_name("stall.json")
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    return _read(Standstill, path) if age_s <= fresh_s else None


def request_restart(heartbeat: Path, run: str | None) -> int:
    """Ask for a restart that goes on with `run`, if any; return the exit code to end with. Raises OSError."""
    heartbeat.with_name("restart.json").write_text(json.dumps({"run": run}), encoding="utf-8")
    return RESTART_CODE


def take_restart(heartbeat: Path) -> str | None:
    """Return the run of request_restart, once; None when none was named."""
    path = heartbeat.with_name("restart.json")
    try:
        run = read_json(path)["run"]
        path.unlink()
    except (OSError, StudioError, KeyError, TypeError):
        return None
    return run if isinstance(run, str) else None


def read_safer(run: str, environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the safer settings that `run` goes on with: only the run that stood still has them, no later one."""
    resumed = environment.get(RESUME_VARIABLE, run)
    names = environment.get(SAFER_VARIABLE, "") if resumed == run else ""
    return frozenset(name for name in names.split(",") if name)


def _read(kind: type, path: Path) -> Any:
    try:
        data = read_json(path)
        return kind(**{name: data[name] for name in kind.__slots__})
    except (StudioError, KeyError, TypeError):
        return None
