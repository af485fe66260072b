"""Who works in a workspace: one studio and one run at a time, each held by an OS lock that dies with its process.

`claim(workspace, "studio" | "run")` gives a Claim, or the Holder that has it. A claim of the supervisor counts as its
child's own: the child's claim() gives a Claim that fills in the run and leaves the lock to the parent.

The window's gate keeps in address.json, which only this user can read, an address whose token nobody has used yet: it
is what the supervisor opens in the browser, and what a second start of the studio opens instead of another window.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE, read_beat
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.machine.workspace import Workspace
from studio.machine.wsl_lease import refuse_handed_over

Kind = Literal["studio", "run"]
ADDRESS_FILE = "address.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a claim: `run` is the run's id, "" until it is known."""

    host: str
    pid: int
    run: str
    time_s: float


class Claim:
    """A held claim; `tell` fills in its file, `release` (or leaving the `with` block) gives it up."""

    def __init__(self, file: Path, lock: FileLock | None) -> None:
        self.file = file
        self._lock = lock

    def tell(self, run: str = "") -> None:
        """Write who holds the claim, readable by this user alone; a `run` told earlier stays. Raises OSError."""
        known = _read_holder(self.file)
        mine = known is not None and known.pid in (os.getpid(), _supervisor_pid())
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid() if self._lock else _supervisor_pid(),
            "run": run or (known.run if mine else ""),
            "time_s": time.time(),
        }
        self.file.parent.mkdir(mode=0o700, exist_ok=True)
        write_file(self.file, json.dumps(holder).encode(), private=True)

    def release(self) -> None:
        """Give the claim up; a claim of the parent's stays with the parent."""
        if self._lock:
            try:
                self.file.unlink(missing_ok=True)
            finally:
                self._lock.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(workspace: Workspace, kind: Kind, *, run: str = "") -> Claim | Holder:
    """Return a Claim of `kind` in `workspace` naming `run`, or the Holder that has it.

    Raises OSError, and StudioError when the workspace is handed over to a WSL (studio/machine/wsl_lease.py).
    """
    refuse_handed_over(workspace)
    file = workspace.locks / f"{kind}.json"
    # Not thread-local: a run is claimed by one thread and released by another.
    lock = FileLock(workspace.locks / f"{kind}.lock", mode=0o600, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _read_holder(file) or Holder(host="", pid=0, run="", time_s=0.0)
        if holder.pid != _supervisor_pid() or not holder.pid:
            return holder
        held = Claim(file, None)
    else:
        file.unlink(missing_ok=True)  # what a killed process left
        held = Claim(file, lock)
    held.tell(run)
    return held


def claim_run(workspace: Workspace, *, run: str = "") -> Claim:
    """Return the claim of the workspace's one run. Raises StudioError naming the run that is active."""
    held = claim(workspace, "run", run=run)
    if isinstance(held, Holder):
        beat = read_beat(workspace.heartbeat)
        raise StudioError(
            text("claim.run.active", run=held.run or (beat and beat.run) or "?"),
            text("claim.run.active.why", pid=held.pid),
            text("claim.run.active.fix"),
        )
    return held


def find_holder(workspace: Workspace, kind: Kind) -> Holder | None:
    """Return the other process that holds the claim of `kind`; None for nobody, this process or its supervisor.

    It only looks: trying the lock would refuse who tries it at the same moment.
    """
    holder = _read_holder(workspace.locks / f"{kind}.json")
    if holder is None or holder.pid in (os.getpid(), _supervisor_pid()):
        return None
    return holder if is_alive(holder.pid, holder.time_s) else None


def is_worked_on(workspace: Workspace, run: str) -> bool:
    """Return whether the process that last gave a sign of life for `run`, or its supervisor, is still there."""
    beat = read_beat(workspace.heartbeat)
    if beat is None or beat.run != run:
        return False
    return is_alive(beat.pid, beat.time_s) or is_alive(beat.parent, beat.time_s)


def is_alive(pid: int, time_s: float) -> bool:
    """Return whether the process that had the number `pid` at `time_s` is still there."""
    import psutil

    try:
        process = psutil.Process(pid)
        # A younger one only got the number of one that is gone. Start times are known to a hundredth of a second.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= time_s + 0.1
    except (psutil.Error, ValueError):
        return False


def read_address(workspace: Workspace) -> str:
    """Return the address, token included, of the window that works in `workspace`; "" while there is none."""
    file = workspace.root / ADDRESS_FILE
    try:
        written_s = file.stat().st_mtime
        data = read_json(file)
        return str(data["url"]) if is_alive(int(data["pid"]), written_s) else ""
    except (OSError, StudioError, ValueError, OverflowError, KeyError, TypeError):
        return ""


def _read_holder(file: Path) -> Holder | None:
    try:
        data = read_json(file)
        return Holder(**{name: data[name] for name in Holder.__slots__})
    except (StudioError, KeyError, TypeError):
        return None


def _supervisor_pid() -> int:
    return int(os.environ.get(PARENT_VARIABLE, "0"))
