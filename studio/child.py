"""One child process: started in a group of its own, told to stop through standard input, ended with all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from studio.core.heartbeat import Beat, read_beat
from studio.host.workspace import Workspace

FINAL_CODES = (0, 1, 2)
CONTROL_C = 0xC000013A
"""What Windows says of a process that ended by Ctrl-C or with its console."""
ASKING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
GRACE_S = 20.0
TICK_S = 0.1
TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one child ended: exit code, whether it was asked to, its last Beat, how long it lived, what it said last."""

    code: int
    """Negative for a signal on POSIX, a status such as 3221225477 on Windows."""
    asked: bool
    beat: Beat | None
    lived_s: float
    log: str

    @property
    def intended(self) -> bool:
        """Whether this is no death: an exit code of ours, or an end that somebody asked for."""
        return (
            self.asked
            or self.code in FINAL_CODES
            or self.code == CONTROL_C
            or -self.code in map(int, ASKING_SIGNALS)
        )


def watch(
    argv: Sequence[str],
    workspace: Workspace,
    environment: Mapping[str, str],
    asked: list[float],
    *,
    log: Path | None = None,
    evidence: Path | None = None,
    on_tick: Callable[[], None] | None = None,
    grace_s: float = GRACE_S,
) -> Ending:
    """Start `argv`, wait for its end and return how it was.

    Once `asked` is not empty the child is told to stop, and killed when it has not ended after `grace_s`. Its output
    goes to the file `log`, or where ours goes when None; the end of `log` or of the file `evidence` becomes
    Ending.log. `on_tick` is called every TICK_S; a judge of stuck children belongs there too. Nothing that the child
    started outlives it. Raises OSError when it cannot be started.
    """
    born_s, started = time.time(), time.monotonic()
    with log.open("ab") if log else nullcontext() as output:
        child = subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # The window's child serves files below its working folder, so that one is always empty.
            cwd=workspace.server_cwd if log else None,
            **_own_group(console=log is None),
        )
    told = 0.0
    try:
        while child.poll() is None:
            try:
                child.wait(TICK_S)
            except subprocess.TimeoutExpired:
                if asked and not told:
                    told = time.monotonic()
                    _tell_stop(child)
                if told and time.monotonic() - told > grace_s:
                    _kill_group(child)
                if on_tick:
                    on_tick()
    finally:
        _kill_group(child)
        child.wait()
        child.stdin.close()
    beat = read_beat(workspace.heartbeat)
    own = beat is not None and beat.parent == os.getpid() and beat.time_s >= born_s
    if own:
        workspace.heartbeat.unlink(missing_ok=True)  # nobody is to take it for a sign of life
    return Ending(
        code=child.returncode,
        asked=bool(asked),
        beat=beat if own else None,
        lived_s=time.monotonic() - started,
        log=_tail(log or evidence, born_s),
    )


def _own_group(*, console: bool) -> dict[str, object]:
    """Return what puts a child in a group of its own, so that the terminal's Ctrl-C reaches the supervisor alone.

    Without `console` it has none on Windows: closing ours would kill it, a click into ours would freeze it.
    """
    if os.name == "nt":
        hidden = 0 if console else subprocess.CREATE_NO_WINDOW
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | hidden}
    return {"start_new_session": True}


def _kill_group(child: subprocess.Popen) -> None:
    """Kill `child`, if it lives, and everything that it started."""
    if os.name != "nt":
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # all gone; macOS says PermissionError for a group of zombies
        return
    import psutil

    try:
        family = [*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue


def _tell_stop(child: subprocess.Popen) -> None:
    try:
        child.stdin.write(b"stop\n")
        child.stdin.flush()
    except OSError:
        return  # it is ending already


def _tail(path: Path | None, since_s: float) -> str:
    """Return the last TAIL_BYTES of `path`, or "" when it was not written since `since_s`."""
    try:
        if path is None or path.stat().st_mtime < since_s:
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
