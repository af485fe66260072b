"""One child process: started in a group of its own, told to stop through standard input, ended with all it started.

A Judge looks at its heartbeat from outside and ends it where it stands still and cannot say so itself, or wishes it.
"""

from __future__ import annotations

import linecache
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from studio.core.atomic_files import LOG_LIMIT_BYTES, cut_log
from studio.core.errors import StudioError
from studio.core.events import RunStalled
from studio.core.heartbeat import Beat, read_beat, read_stall, write_stall
from studio.core.json_file import read_json
from studio.core.stall_timeout import Pace, read_budgets
from studio.engine.crash_records import STACKS
from studio.engine.run_folder import RunFolder
from studio.machine.process_metrics import compare, read_vitals
from studio.machine.stall_diagnosis import (
    HEADER,
    add_sources,
    choose_action,
    choose_stack,
    find_cause,
    is_working,
    read_stacks,
)
from studio.machine.workspace import Workspace

FINAL_CODES = (0, 1, 2)
CONTROL_C = 0xC000013A
"""What Windows says of a process that ended by Ctrl-C or with its console."""
ASKING_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
GRACE_S = 20.0
TICK_S = 0.1
TAIL_BYTES = 16_384
"""The stacks of some fifteen threads: what ended the process stands above them."""
TAKEOVER_S = 2.0
"""The supervisor judges this much and four looks after the process itself would, whose C timer has then run out."""
PY_SPY_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """Why a child was ended that stood still: `action` is restart or stop."""

    action: str
    verdict: str
    frame: str
    person: bool = False
    """Whether a person chose it: such restarts are not counted."""
    event: RunStalled | None = None
    """What the child could not write into its events itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one child ended: exit code, whether it was asked to, its last Beat, how long it lived, what it said last."""

    code: int
    """Negative for a signal on POSIX, a status such as 3221225477 on Windows."""
    asked: bool
    beat: Beat | None
    lived_s: float
    log: str
    stall: Stall | None = None
    """Set when it was ended because it stood still."""

    @property
    def intended(self) -> bool:
        """Whether this is no death: an exit code of ours, or an end that somebody asked for."""
        return self.stall is None and (
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
    judge: Callable[[], Stall | None] | None = None,
    grace_s: float = GRACE_S,
) -> Ending:
    """Start `argv`, wait for its end and return how it was.

    Once `asked` is not empty the child is told to stop, and killed when it stands still or has not ended after
    `grace_s`. Its output goes to the file `log`, or where ours goes when None; the end of `log` or of the file
    `evidence` becomes Ending.log. Every TICK_S `on_tick` is called, and `judge` until it returns the Stall for which
    the child is killed. Nothing that the child started outlives it. Raises OSError when it cannot be started.
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
        told, stall = 0.0, None
        try:
            while child.poll() is None:
                # Not child.wait(TICK_S): on POSIX that asks 70 times a second, 0.8 % of a core while the studio idles.
                time.sleep(TICK_S)
                if asked and not told:
                    told = time.monotonic()
                    _tell_stop(child)
                if told and time.monotonic() - told > grace_s:
                    _kill_group(child)
                if log:
                    cut_log(output, log, LOG_LIMIT_BYTES)
                if on_tick:
                    on_tick()
                if judge and stall is None and (found := judge()) is not None:
                    _kill_group(child)
                    stall = None if told else found  # an end that somebody asked for is no death
        finally:
            _kill_group(child)
            child.wait()
            child.stdin.close()
    beat = read_beat(workspace.heartbeat)
    own = beat is not None and beat.parent == os.getpid() and beat.time_s >= born_s
    if own:
        workspace.heartbeat.unlink(missing_ok=True)  # nobody is to take it for a sign of life
        write_stall(workspace.heartbeat, None)
    return Ending(
        code=child.returncode,
        asked=bool(asked),
        beat=beat if own else None,
        lived_s=time.monotonic() - started,
        log=_tail(log or evidence, born_s),
        stall=stall,
    )


class StallJudge:
    """Looks at one child's signs of life each tick; returns the Stall for which it is to be ended, else None."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        unattended: bool,
        tell: Callable[[RunStalled], None] = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`tell` is told of a stall that only a person can end. Raises ValueError for budgets that are none."""
        self.workspace, self.unattended, self.tell = workspace, unattended, tell
        self.clock, self.wall = clock, wall
        self.budgets_s = read_budgets()
        self.pace = Pace(self.budgets_s)
        self.next_s = self._look_s = 0.0
        self.seen: Beat | None = None
        """The last sign of life, also of a run that has ended since."""
        self._before: dict[str, float] | None = None

    def __call__(self) -> Stall | None:
        """Look, once in each `check` of the budgets: on Windows a reader makes the writer miss its turn."""
        now_s = self.clock()
        if now_s < self._look_s:
            return None
        self._look_s = now_s + self.budgets_s["check"]
        self.pace.tick(now_s, self.wall())
        beat = read_beat(self.workspace.heartbeat)
        # Not by pid: the child of a virtual environment on Windows starts the interpreter as another process.
        if beat is None or beat.parent != os.getpid():
            self.pace.place = None  # no run, or one of an earlier child
            return None
        if beat != self.seen:
            self.seen, self._before = beat, None
            self.pace.beat((beat.phase, beat.step, beat.micro), now_s)
        waited_s, limit_s = self.pace.waited_s(now_s), self.pace.limit_s()
        told = read_stall(self.workspace.heartbeat, 8 * self.budgets_s["check"] + TAKEOVER_S)
        if told is not None and (told.pid, told.run) == (beat.pid, beat.run):
            if told.wish:
                return Stall(action=told.wish, verdict=told.verdict, frame=told.frame, person=told.person)
            return None  # its own thread looks after it
        if waited_s > limit_s / 2 and self._before is None:
            self._before = self._measure(beat)
        late_s = limit_s + TAKEOVER_S + 4 * self.budgets_s["check"]
        if waited_s < late_s or now_s < self.next_s:
            return None
        return self._judge(beat, waited_s, limit_s)

    def _judge(self, beat: Beat, waited_s: float, limit_s: float) -> Stall | None:
        folder = RunFolder(Path(beat.folder))
        after = self._measure(beat)
        measures = {name: round(value, 3) for name, value in compare(self._before or after, after).items()}
        dump = folder.path / STACKS
        known = dump.read_text(encoding="utf-8", errors="replace") if dump.is_file() else ""
        frames = add_sources(choose_stack(read_stacks(known), beat.thread), linecache.getline)
        self.next_s = self.clock() + max(self.budgets_s["check"], self.budgets_s["floor"] / 4)
        if is_working(beat.phase, frames, measures, waited_s, limit_s, self.budgets_s):
            self._before = after
            return None
        _dump_from_outside(beat.pid, dump)
        found = find_cause(frames, measures)
        action = choose_action(_read_wish(folder), found.verdict, unattended=self.unattended, supervised=True)
        # The window stands still with its process: there is nobody to ask.
        action = "restart" if action == "ask" else action
        event = RunStalled(
            step=beat.step,
            phase=beat.phase,
            waited_s=round(waited_s, 1),
            verdict=found.verdict,
            message=found.message,
            frame=found.frame,
            measures=measures,
            action=action,
        )
        if action == "wait":
            self.pace.extend(self.clock())
            self.tell(event)
            return None
        return Stall(action=action, verdict=found.verdict, frame=found.frame, event=event)

    def _measure(self, beat: Beat) -> dict[str, float]:
        return read_vitals(beat.pid, self.workspace.triton_cache, _read_gpu(RunFolder(Path(beat.folder))))


def _read_gpu(folder: RunFolder) -> int | None:
    """Return the number of the GPU that the run's plan names; None on a processor or before there is a plan."""
    try:
        kind, _, index = read_json(folder.path / "plan.json")["device"]["value"].partition(":")
    except (StudioError, KeyError, TypeError, AttributeError):
        return None
    return int(index or 0) if kind == "cuda" else None


def _read_wish(folder: RunFolder) -> str:
    """Return the recipe's run.on_stall; a damaged recipe counts as `auto`."""
    try:
        return folder.read_recipe().run.on_stall
    except StudioError:
        return "auto"


def _dump_from_outside(pid: int, path: Path) -> None:
    """Add what py-spy sees of the process to `path`, where py-spy is installed and allowed to look."""
    program = shutil.which("py-spy")
    if program is None:
        return
    words = [program, "dump", "--pid", str(pid)]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, timeout=PY_SPY_S, check=False)
        with path.open("ab") as file:
            file.write(f"{HEADER}py-spy ===\n".encode() + done.stdout)


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
