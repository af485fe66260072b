"""How a run's process died or stood still: the evidence in its folder, and the failure that it becomes in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.codec import event_from_json, to_json
from studio.core.errors import StudioError
from studio.core.events import Diagnosis, Fix, RunEvent, RunFailed, RunStalled, StepLogged
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.engine.run_folder import RunFolder

DEATHS = "deaths.jsonl"
STACKS = "stacks.txt"
"""The stacks of all threads while a run stood still."""
STALLED = "stalled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One unintended end of a process; `run` and its place are as the heartbeat told, `log` is what it last printed."""

    time_s: float
    code: int
    """Exit code; negative for a signal on POSIX, a status such as 3221225477 on Windows."""
    run: str | None = None
    folder: str = ""
    phase: str = ""
    step: int = 0
    micro: int = 0
    log: str = ""
    why: str = ""
    """STALLED when the supervisor ended it because it gave no sign of life, "" when it ended by itself."""
    verdict: str = ""
    frame: str = ""

    @property
    def name(self) -> str:
        """The end in words that can be searched for: SIGABRT, 0xC0000005, exit code 134."""
        return describe_code(self.code)


def describe_code(code: int) -> str:
    """Return the name of an exit code: a signal's, a Windows status in hexadecimal, or `exit code N`."""
    number = -code if code < 0 else code - 128  # a shell reports signal N as 128 + N
    if code < 0 or 128 < code < 160:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}" if code < 0 else f"exit code {code}"
    return f"0x{code:08X}" if code >= 0x80000000 else f"exit code {code}"


def record_death(death: Death) -> None:
    """Append `death` to deaths.jsonl in its run's folder, flushed to disk. Raises OSError."""
    line = json.dumps(dataclasses.asdict(death) | {"name": death.name}, ensure_ascii=False)
    with (Path(death.folder) / DEATHS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_deaths(folder: RunFolder) -> list[Death]:
    """Return the recorded deaths of a run, oldest first; a torn last line is left out."""
    names = {part.name for part in dataclasses.fields(Death)}
    lines = _read_lines(folder.path / DEATHS)
    return [Death(**{name: value for name, value in line.items() if name in names}) for line in lines]


def diagnose_death(death: Death, verdict: Text | None = None) -> Diagnosis:
    """Return what ended a run whose process died or stood still (`verdict` in words) for good."""
    if death.why == STALLED:
        return Diagnosis(
            id=STALLED,
            what=text("failure.stalled", step=death.step),
            why=verdict or text("failure.stalled.why", line=death.frame),
            fixes=(
                Fix(title=text("failure.stalled.fix.resume")),
                Fix(title=text("failure.stalled.fix.stacks")),
            ),
        )
    killed = death.name == "SIGKILL"
    why = "failure.engine_died.killed" if killed else "failure.engine_died.why"
    fixes = [Fix(title=text("failure.engine_died.fix.resume"))]
    if killed:
        fixes.insert(0, Fix(title=text("failure.engine_died.fix.memory")))
    return Diagnosis(
        id="engine_died",
        what=text("failure.engine_died", step=death.step, end=death.name),
        why=text(why, end=death.name),
        fixes=tuple(fixes),
    )


def append_event(folder: RunFolder, event: RunEvent) -> RunEvent:
    """Number `event`, time it and write it behind the events of a run that no process works on. Raises OSError."""
    events = _read_lines(folder.events)
    last = int(events[-1].get("seq", 0)) if events else 0
    event = dataclasses.replace(event, seq=last + 1, time_s=round(time.time(), 3))
    line = json.dumps(to_json(event), ensure_ascii=False, allow_nan=False) + "\n"
    with folder.events.open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # the last line may be torn
        file.write(line.encode("utf-8"))
    return event


def fail_run(folder: RunFolder, death: Death) -> RunFailed:
    """Write the end of a run that cannot go on into its events.jsonl and run.json, and return the event.

    Only for a run that no process is working on. Raises OSError.
    """
    # A process that died while it loaded had not come to any step: the run had.
    death = dataclasses.replace(death, step=max(death.step, _last_step(folder)))
    diagnosis = diagnose_death(death, last_verdict(folder))
    event = append_event(folder, RunFailed(step=death.step, diagnosis=diagnosis))
    ended = {"state": "failed", "ended_s": event.time_s, "diagnosis": diagnosis, "steps": death.step}
    with suppress(StudioError):  # the record itself is damaged; the event is the truth
        folder.change_record(lambda record: dataclasses.replace(record, **ended))
    return event


def last_verdict(folder: RunFolder) -> Text | None:
    """Return why the run stood still last, in words; None when it never did."""
    lines = [line for line in _read_lines(folder.events) if line.get("kind") == RunStalled.kind]
    event = event_from_json(lines[-1]) if lines else None
    return event.message if isinstance(event, RunStalled) else None


def _last_step(folder: RunFolder) -> int:
    logged = (line for line in _read_lines(folder.events) if line.get("kind") == StepLogged.kind)
    return max((int(line.get("step", 0)) for line in logged), default=0)


def last_loss(folder: RunFolder) -> float | None:
    """Return the loss of the last logged step that has a finite one; None without one."""
    steps = [event for event in _read_lines(folder.events) if event.get("kind") == "step_logged"]
    losses = [step["loss"] for step in steps if isinstance(step["loss"], float)]  # NaN is written as a name
    return losses[-1] if losses else None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of JSON lines; a torn line is left out."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    found = []
    for line in lines:
        try:
            data = parse_json(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found.append(data)
    return found
