"""The small parent of the studio and of every training command: starts the child, watches it, starts it again.

`supervise(command, workspace, headless=...)` runs `python -P -m studio.cli --child COMMAND`, returns its exit code.
The child (parent_pipe.py) reads `stop` from standard input and ends itself when that closes; its engine beats in
workspace.heartbeat (studio.core.heartbeat). An end with exit code 0, 1 or 2, and every end that was asked for, is
final. Any other end is a death: it is recorded in the run's folder and the run resumes from its last checkpoint.
A child that stands still (child_process.Judge) is killed, which is a death with `why` stalled; its run resumes with
settings that cannot change the result. The exit code RESTART_CODE is a wish to be started anew, and no death.

What a child finds in its environment, beside studio.machine.environment.prepare_environment:
FINETUNE_STUDIO_PARENT     pid of the supervisor
FINETUNE_STUDIO_FAULT_LOG  where native crashes write their stacks
FINETUNE_STUDIO_UNATTENDED set for train, resume and demo: no window could ask
FINETUNE_STUDIO_SAFER      after a stall: what the engine is to avoid (studio.core.heartbeat.read_safer)
FINETUNE_STUDIO_RESUME     (the window's restarts) the run to go on with
FINETUNE_STUDIO_SESSION    (the window) this supervisor's name: sharing goes on under the same one alone
FINETUNE_STUDIO_PHRASES    (the window) the pass phrases that the terminal was told; the child takes it out at once
FINETUNE_STUDIO_FAILED     (the window's restarts) the run that died for good: write its end with
                           `fail_run(folder, read_deaths(folder)[-1])` of studio.engine.crash_records
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from studio.core import start_clock
from studio.core.atomic_files import LOG_LIMIT_BYTES, trim_log
from studio.core.errors import StudioError
from studio.core.events import RunStalled
from studio.core.heartbeat import (
    PARENT_VARIABLE,
    RESTART_CODE,
    RESUME_VARIABLE,
    SAFER_VARIABLE,
    UNATTENDED_VARIABLE,
    Beat,
    take_restart,
)
from studio.core.i18n import Text, choose_language, load_catalogue, text
from studio.engine.checkpoint import list_checkpoints
from studio.engine.crash_records import STALLED, Death, append_event, fail_run, last_loss, record_death
from studio.engine.run_folder import RunFolder
from studio.machine.environment import prepare_environment
from studio.machine.sleep_inhibitor import without_quick_edit
from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import Holder, claim, claim_run
from studio.supervisor.child_process import Ending, StallJudge, watch
from studio.supervisor.parent_pipe import FAULT_LOG_VARIABLE
from studio.supervisor.tunnels import hold_tunnels
from studio.supervisor.window_page import Page, join

ROOT = Path(__file__).resolve().parents[2]
RESTARTS = 2
WISHES = 5
"""A process may ask for a restart so often in a row within SETTLED_S: a fix that asks for itself must end."""
SAFER = "pytorch_kernels"
SETTLED_S = 60.0
"""A process that lived this long without a run had started well: its death does not count with earlier ones."""
SAY_S = 1.0


@dataclass(slots=True)
class Tally:
    """Counts deaths until a run may not be started again: the third one without getting past the same step."""

    furthest: dict[str | None, int] = field(default_factory=dict)
    count: dict[str | None, int] = field(default_factory=dict)

    def add(self, run: str | None, step: int) -> bool:
        """Count one death of `run` (None before any) at `step`; return whether it may be started again."""
        if step > self.furthest.get(run, -1):
            self.furthest[run], self.count[run] = step, 0
        self.count[run] += 1
        return self.count[run] <= RESTARTS


def supervise(command: Sequence[str], workspace: Workspace, *, headless: bool) -> int:
    """Run `command` (as given to launch.py; empty opens the window) in a supervised child; return the exit code.

    `headless` is true for train, resume and demo, which hold the workspace's one run; the window holds its one studio,
    and a second window opens the first one's page instead. Raises StudioError when another run is active, or when
    the child dies again and again before any run.
    """
    command = _without_workspace(command)
    if headless:
        with claim_run(workspace):
            return keep_alive(command, workspace, headless=True)
    held = claim(workspace, "studio")
    if isinstance(held, Holder):
        return join(workspace, command, _say)
    with held:
        return keep_alive(command, workspace, headless=False)


def keep_alive(
    command: Sequence[str],
    workspace: Workspace,
    *,
    headless: bool,
    argv: Callable[[Sequence[str]], list[str]] | None = None,
) -> int:
    """Run `argv(command)` until it ends for good, starting it again after deaths; return its exit code.

    `argv` makes the child's command line (child_argv when None). Raises StudioError as supervise does.
    """
    make_argv = argv or child_argv
    page = None if headless else Page(workspace, command, _say)
    tally, wishes, current, extra = Tally(), 0, list(command), {}
    # Who selects text in the window's console wants the address; a headless run prints all the time.
    with (
        stop_requests() as asked,
        without_quick_edit() if headless else nullcontext(),
        nullcontext() if headless else hold_tunnels(workspace, current, _say) as tunnels,
    ):
        while True:
            faults = trim_log(workspace.logs / "faults.log", LOG_LIMIT_BYTES)
            log = None if headless else trim_log(workspace.logs / "studio.log", LOG_LIMIT_BYTES)
            if page:
                page.look_again()
            judge = StallJudge(workspace, unattended=headless, tell=_tell_stall)
            ending = watch(
                make_argv(current),
                workspace,
                _make_environment(workspace, faults, headless=headless)
                | (tunnels.environment if tunnels else {})
                | extra,
                asked,
                log=log,
                evidence=faults,
                on_tick=_in_turn(page, tunnels),
                judge=judge,
            )
            if ending.code == RESTART_CODE and not ending.asked:
                wishes = wishes + 1 if ending.lived_s < SETTLED_S else 1
                if wishes > WISHES:
                    raise _cannot_start(_describe(ending))
                run = take_restart(workspace.heartbeat) or (ending.beat and ending.beat.run)
                current, extra = _go_on(command, run, headless=headless)
                continue
            if ending.intended:
                if not headless and ending.code in (1, 2):  # its words went to the log
                    print("\n".join(ending.log.splitlines()[-3:]), file=sys.stderr, flush=True)
                if ending.beat is not None:  # a run that had to be ended before it could write its own end
                    _say(text("supervise.cut_off", step=ending.beat.step))
                return _read_code(ending.code)
            ended = _read_state(judge.seen) if ending.beat is None else ""
            if headless and ended in ("finished", "stopped", "failed"):
                return int(
                    ended == "failed"
                )  # a library that crashes while the interpreter ends takes nothing back
            death = _record(ending)
            if death.run is None and ending.lived_s > SETTLED_S:
                tally = Tally()
            again = _may_go_on(ending, death, tally)
            if not again and death.run is None:
                raise _cannot_start(death)
            if not again and headless:
                return _end_run(death, as_json="--json" in command)
            if not again:
                tally = Tally()  # the person may resume the run by hand
            kind = (
                ("stalled" if again else "stalled.over")
                if ending.stall
                else ("restart" if again else "failed")
            )
            _say(text(f"supervise.{kind}{_way_on(death) if again else ''}", end=death.name, step=death.step))
            if death.run is None and judge.seen is None and (headless or ending.lived_s <= SETTLED_S):
                continue  # it died before it gave any sign of life: the next one has the same to do
            safer = extra.get(SAFER_VARIABLE) or (SAFER if death.why == STALLED else "")
            current, extra = _go_on(command, death.run, headless=headless, safer=safer)
            if not again:
                extra = {"FINETUNE_STUDIO_FAILED": death.run}


def _in_turn(*parts: Callable[[], None] | None) -> Callable[[], None]:
    """Return what calls those of `parts` that there are."""
    return lambda: [part() for part in parts if part]


def _make_environment(workspace: Workspace, faults: Path, *, headless: bool) -> dict[str, str]:
    """Return a child's environment, made from ours before each start: a repair may have been chosen meanwhile."""
    unattended = {UNATTENDED_VARIABLE: "1"} if headless else {}
    return (
        prepare_environment(workspace, os.environ)
        | {
            PARENT_VARIABLE: str(os.getpid()),
            FAULT_LOG_VARIABLE: str(faults),
            "PYTHONPATH": _search_path(),
        }
        | unattended
        | _pass_clock(headless=headless)
    )


def _pass_clock(*, headless: bool) -> dict[str, str]:
    """Return the clock of a start for the child; it counts once, and not for a window, whose runs begin when asked."""
    clock = os.environ.pop(start_clock.VARIABLE, "") if headless else ""
    passed = {start_clock.VARIABLE: clock}
    start_clock.mark(passed, "supervisor")
    return passed


def _go_on(
    command: Sequence[str], run: str | None, *, headless: bool, safer: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the further variables with which the next child goes on with `run`."""
    extra = {SAFER_VARIABLE: safer} if safer and run else {}
    if headless:
        return restart_command(command, run), extra
    return list(command), extra | ({RESUME_VARIABLE: run} if run else {})


def _may_go_on(ending: Ending, death: Death, tally: Tally) -> bool:
    """Return whether the run is started again; a restart that a person chose counts for nothing."""
    if ending.stall is None:
        return tally.add(death.run, death.step)
    if ending.stall.action == "stop":
        return False
    return ending.stall.person or tally.add(death.run, death.step)


def _read_state(beat: Beat | None) -> str:
    """Return the state that the run of `beat` has on disk, "" where there is none."""
    try:
        return RunFolder(Path(beat.folder)).read_record().state if beat else ""
    except StudioError:
        return ""


def _read_code(code: int) -> int:
    """Return our exit code for the child's: an end by a signal is a failure, a restart that came too late is none."""
    if code == RESTART_CODE:
        return 0
    return code if 0 <= code <= 255 else 1


def child_argv(command: Sequence[str]) -> list[str]:
    """Return the command line of the studio's own child; -P keeps the working folder off the search path."""
    return [sys.executable, "-P", "-m", "studio.cli", "--child", *command]


def restart_command(command: Sequence[str], run: str | None) -> list[str]:
    """Return the command that goes on with `run` after a death: its recipe is frozen, so only output flags stay."""
    if run is None:
        return list(command)
    flags = [flag for flag in command[1:] if flag in ("--json", "--events")]
    return ["demo", "--resume", run, *flags] if command[0] == "demo" else ["resume", run, *flags]


def _record(ending: Ending) -> Death:
    """Write the death into the run's folder, with what a child that stood still could not write itself."""
    death = _describe(ending)
    if death.run and Path(death.folder).is_dir():
        record_death(death)
        if ending.stall is not None and ending.stall.event is not None:
            append_event(RunFolder(Path(death.folder)), ending.stall.event)
    return death


def _way_on(death: Death) -> str:
    """Return the ending of the text's id: a run without a checkpoint begins anew."""
    if death.run is None:
        return "" if death.why == STALLED else ".idle"
    return "" if list_checkpoints(RunFolder(Path(death.folder)).checkpoints) else ".anew"


def _describe(ending: Ending) -> Death:
    beat, stall = ending.beat, ending.stall
    place = (
        {name: getattr(beat, name) for name in ("run", "folder", "phase", "step", "micro")} if beat else {}
    )
    why = {"why": STALLED, "verdict": stall.verdict, "frame": stall.frame} if stall else {}
    return Death(time_s=time.time(), code=ending.code, log=ending.log, **place, **why)


def _cannot_start(death: Death) -> StudioError:
    return StudioError(
        text("supervise.gave_up", end=death.name),
        text("supervise.gave_up.why", times=RESTARTS + 1),
        text("supervise.gave_up.fix"),
        exit_code=1,
    )


def _end_run(death: Death, *, as_json: bool) -> int:
    """Write the failure of a headless run into its folder and tell it as the command would have; return 1."""
    folder = RunFolder(Path(death.folder))
    diagnosis = fail_run(folder, death).diagnosis
    say = load_catalogue(choose_language()).say
    what, why, fixes = say(diagnosis.what), say(diagnosis.why), [say(fix.title) for fix in diagnosis.fixes]
    if as_json:
        answer = {
            "run": death.run,
            "state": "failed",
            "steps": death.step,
            "loss": last_loss(folder),
            "artifact": None,
            "diagnosis": {"id": diagnosis.id, "what": what, "why": why, "fixes": fixes},
        }
        print(json.dumps(answer, ensure_ascii=False), flush=True)
    print("\n".join([what, why, *fixes]), file=sys.stderr, flush=True)
    return 1


@contextmanager
def stop_requests() -> Iterator[list[float]]:
    """Yield a list that gains the time of every Ctrl-C and request to end, instead of their ending this process."""
    asked: list[float] = []
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGBREAK", "SIGHUP"):
        number = getattr(signal, name, None)
        # nohup ignores SIGHUP so that the work outlives the terminal: that stays.
        if number is None or (name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN):
            continue
        before[number] = signal.signal(number, lambda *_: asked.append(time.monotonic()))
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_stall(event: RunStalled) -> None:
    _say(
        text(
            "supervise.waiting", step=event.step, minutes=round(event.waited_s / 60, 1), message=event.message
        )
    )


def _say(message: Text) -> None:
    """Print `message` on standard error, waiting at most SAY_S: a pipe that nobody reads must not stop the watching."""
    if sys.stderr is None:  # pythonw
        return
    words = load_catalogue(choose_language()).say(message) + "\n"
    try:
        descriptor = sys.stderr.fileno()
    except OSError:  # not a file, so no pipe that could be full
        print(words, end="", file=sys.stderr, flush=True)
        return
    sys.stderr.flush()
    data = words.encode(sys.stderr.encoding or "utf-8", "backslashreplace")
    # Past Python's buffers: a thread that stands in one of their locks would make the end of this process hang.
    thread = threading.Thread(target=_write, args=(descriptor, data), name="say", daemon=True)
    thread.start()
    thread.join(SAY_S)


def _write(descriptor: int, data: bytes) -> None:
    with suppress(OSError):  # whoever read our output is gone; there is nobody to tell
        os.write(descriptor, data)


def _search_path() -> str:
    ours = [str(ROOT), str(ROOT / "kernels")]
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part not in ours]
    return os.pathsep.join(ours + given)


def _without_workspace(command: Sequence[str]) -> list[str]:
    """Drop --workspace DIR: the child finds it, made absolute, in its environment, whatever folder it works in."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == "--workspace":
            next(words, None)
        elif not word.startswith("--workspace="):
            kept.append(word)
    return kept
