"""Who works in a workspace: one studio and one run at a time, each held by an OS lock that dies with its process.

`claim(workspace, "studio" | "run")` gives a Claim, or the Holder that has it. A claim of the supervisor counts as its
child's own: the child's claim() gives a Claim that fills in the address or the run and leaves the lock to the parent.

The second start of a studio opens the first one's page: it leaves an entry (a random token, stored as a hash in a file
that only this user can write) and opens `address + "/?token=" + token`; the first one's gate redeems it once.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE, read_beat
from studio.core.text import text
from studio.host.workspace import Workspace

Kind = Literal["studio", "run"]
ENTRY_LIFE_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a claim: `address` is the studio's ("" until it listens), `run` the run's id ("" until known)."""

    host: str
    pid: int
    address: str
    run: str
    time_s: float


class Claim:
    """A held claim; `tell` fills in its file, `release` (or leaving the `with` block) gives it up."""

    def __init__(self, file: Path, lock: FileLock | None) -> None:
        self.file = file
        self._lock = lock

    def tell(self, *, address: str = "", run: str = "") -> None:
        """Write who holds the claim, readable by this user alone. Raises OSError."""
        known = _read_holder(self.file)
        mine = known is not None and known.pid in (os.getpid(), _supervisor_pid())
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid() if self._lock else _supervisor_pid(),
            "address": address or (known.address if mine else ""),
            "run": run or (known.run if mine else ""),
            "time_s": time.time(),
        }
        _write_private(self.file, json.dumps(holder))

    def release(self) -> None:
        """Give the claim up; a claim of the parent's stays with the parent."""
        if self._lock:
            self.file.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(workspace: Workspace, kind: Kind, *, run: str = "") -> Claim | Holder:
    """Return a Claim of `kind` in `workspace` naming `run`, or the Holder that has it. Raises OSError."""
    file = workspace.root / f"{kind}.json"
    # Not thread-local: a run is claimed by one thread and released by another.
    lock = FileLock(workspace.root / f"{kind}.lock", mode=0o600, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = _read_holder(file) or Holder(host="", pid=0, address="", run="", time_s=0.0)
        if holder.pid != _supervisor_pid() or not holder.pid:
            return holder
        held = Claim(file, None)
    else:
        file.unlink(missing_ok=True)  # what a killed process left
        held = Claim(file, lock)
    held.tell(run=run)
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


def is_worked_on(workspace: Workspace, run: str) -> bool:
    """Return whether the process that last gave a sign of life for `run`, or its supervisor, is still there."""
    import psutil

    beat = read_beat(workspace.heartbeat)
    for pid in (beat.pid, beat.parent) if beat is not None and beat.run == run else ():
        try:
            process = psutil.Process(pid)
            # Younger than the beat: another process that got the number of one that is gone.
            if process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= beat.time_s:
                return True
        except psutil.Error:
            continue
    return False


def read_address(workspace: Workspace) -> str:
    """Return the address of the studio that works in `workspace`; "" while it has none."""
    holder = _read_holder(workspace.root / "studio.json")
    return holder.address if holder else ""


def issue_entry(workspace: Workspace) -> str:
    """Leave an entry for the studio of `workspace` and return its token, good once and for ENTRY_LIFE_S."""
    token = secrets.token_urlsafe(32)
    for file in (workspace.root / "entries").glob("*"):
        if time.time() - file.stat().st_mtime > ENTRY_LIFE_S:
            file.unlink(missing_ok=True)
    _write_private(_entry_file(workspace, token), "")
    return token


def redeem_entry(workspace: Workspace, token: str) -> bool:
    """Return whether `token` was left by issue_entry and not used yet; from now on it is used."""
    file = _entry_file(workspace, token)
    try:
        age_s = time.time() - file.stat().st_mtime
        file.unlink()
    except FileNotFoundError:
        return False
    return age_s <= ENTRY_LIFE_S


def _entry_file(workspace: Workspace, token: str) -> Path:
    # The hash keeps the token itself off the disk and makes any string a safe file name.
    return workspace.root / "entries" / hashlib.sha256(token.encode()).hexdigest()


def _write_private(file: Path, content: str) -> None:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    staged = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(content)
    os.replace(staged, file)


def _read_holder(file: Path) -> Holder | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return Holder(**{name: data[name] for name in Holder.__slots__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _supervisor_pid() -> int:
    return int(os.environ.get(PARENT_VARIABLE, "0"))
