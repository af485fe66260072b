"""Folds a run's events into what the window shows of it: pure, so that every tab and every reload shows the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from studio.core.events import (
    CheckpointSaved,
    DataPrepared,
    Diagnosis,
    EvalLogged,
    GpuSampled,
    KernelFellBack,
    MemoryFreed,
    PhaseStarted,
    RepairApplied,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPlanned,
    RunResumed,
    RunStalled,
    RunStopped,
    SampleWritten,
    StallEnded,
    StepLogged,
    TrialFinished,
    Warned,
)
from studio.core.facts import BackendPlan, DataFacts
from studio.core.text import Text, literal, text

LOG_LINES = 60
LOG_STEPS = 10
"""The log tells every tenth step: the status card shows each, and every new line costs each open page a layout."""
PACE_STEPS = 20
"""The time left is reckoned from the pace of the last PACE_STEPS steps."""
PAYLOAD_ROWS = 6000
"""Above that a full replay sends every n-th row: a chart is some 600 pixels wide."""

Row = tuple[Any, ...]
"""A point of the charts, one of
("step", step, loss, lr, grad_norm, tokens_per_s, vram_bytes)
("eval", step, loss)
("gpu", seconds since the start, utilisation 0..1, memory_bytes)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLine:
    """One line of the log: Unix time in seconds, `info`, `good`, `warn` or `bad`, and the words."""

    time_s: float
    level: str
    message: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveView:
    """All that the window shows of one run; `seq` is the last event folded in."""

    seq: int = 0
    state: str = "waiting"
    """waiting, running, stopped, failed or finished"""
    phase: str = ""
    step: int = 0
    total_steps: int = 0
    epoch: float = 0.0
    loss: float | None = None
    eval_loss: float | None = None
    tokens_per_s: float = 0.0
    started_s: float = 0.0
    updated_s: float = 0.0
    pace: tuple[tuple[int, float], ...] = ()
    """(step, Unix time) of the last steps of this attempt."""
    rows: tuple[Row, ...] = ()
    generation: int = 0
    """Counts how often rows were taken back, so that a chart knows when to begin anew."""
    log: tuple[LogLine, ...] = ()
    plan: BackendPlan | None = None
    plan_seq: int = 0
    """seq of the plan's event: a page that has it need not get it again."""
    swaps: tuple[Text, ...] = ()
    facts: DataFacts | None = None
    samples: tuple[SampleWritten, ...] = ()
    saved_step: int = 0
    diagnosis: Diagnosis | None = None
    artifact: str = ""
    stall: RunStalled | None = None
    """The run stands still: this is what the watchdog found; None while it moves."""
    twins: tuple[tuple[str, int], ...] = ()
    """(op, step) of each op that went over to its PyTorch twin in the course of the run."""

    @property
    def left_s(self) -> float | None:
        """Seconds that the remaining steps will take at the present pace; None when unknown."""
        if len(self.pace) < 2 or self.state != "running" or self.phase != "train":
            return None
        (first, begun), (last, now) = self.pace[0], self.pace[-1]
        return (now - begun) / max(last - first, 1) * max(self.total_steps - last, 0)


def fold(view: LiveView, events: Iterable[RunEvent]) -> LiveView:
    """Return `view` with `events` (ordered by seq) taken in; an event that was folded before changes nothing."""
    changes: dict[str, Any] = {}
    rows, log = list(view.rows), list(view.log)
    seq = view.seq
    started_s = view.started_s
    for event in events:
        if event.seq <= seq:
            continue
        seq = event.seq
        started_s = started_s or event.time_s
        changes["updated_s"] = event.time_s
        step = changes.get("step", view.step)
        # A run that died before its first checkpoint begins anew without a RunResumed: its steps come again.
        again = isinstance(event, StepLogged) and event.step <= step
        if again or isinstance(event, RunResumed):
            last = event.step - 1 if again else event.step
            kept = [row for row in rows if row[0] == "gpu" or row[1] <= last]
            if len(kept) != len(rows):
                rows = kept
                changes["generation"] = changes.get("generation", view.generation) + 1
        row = _row(event, started_s)
        if row is not None:
            rows.append(row)
        changes |= _facts(event, changes.get("pace", view.pace), changes.get("samples", view.samples))
        changes |= _trouble(event, changes.get("twins", view.twins))
        log.extend(_log_lines(event))
    if seq == view.seq:
        return view
    return replace(
        view, seq=seq, started_s=started_s, rows=tuple(rows), log=tuple(log[-LOG_LINES:]), **changes
    )


def _trouble(event: RunEvent, twins: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    """What `event` says of a stall or of a kernel that was given up."""
    match event:
        case RunStalled():
            return {"stall": event}
        case KernelFellBack():
            return {"twins": (*twins, (event.op, event.step))}
        case RunPlanned():
            return {"twins": (), "stall": None}
        case StallEnded() | StepLogged() | RunResumed() | RunStopped() | RunFailed() | RunFinished():
            return {"stall": None}
    return {}


def _facts(event: RunEvent, pace: tuple, samples: tuple) -> dict[str, Any]:
    """The fields of the view that `event` sets."""
    match event:
        case RunPlanned():
            return {"plan": event.plan, "plan_seq": event.seq, "swaps": event.swaps, "state": "running"}
        case PhaseStarted():
            return {"phase": event.phase, "state": "running", "pace": ()}
        case DataPrepared():
            return {"facts": event.facts, "total_steps": event.total_steps, "state": "running"}
        case StepLogged():
            return {
                "state": "running",
                "phase": "train",
                "step": event.step,
                "total_steps": event.total_steps,
                "epoch": event.epoch,
                "loss": event.loss,
                "tokens_per_s": event.tokens_per_s,
                "pace": (*pace, (event.step, event.time_s))[-PACE_STEPS:],
            }
        case EvalLogged():
            return {"eval_loss": event.loss}
        case SampleWritten():
            return {"samples": (*samples, event)[-12:]}
        case CheckpointSaved():
            return {"saved_step": event.step}
        case RunResumed():
            return {"state": "running", "step": event.step, "diagnosis": None, "pace": (), "artifact": ""}
        case RunStopped():
            return {"state": "stopped", "step": event.step, "pace": ()}
        case RunFailed():
            return {"state": "failed", "step": event.step, "diagnosis": event.diagnosis, "pace": ()}
        case RunFinished():
            return {"state": "finished", "step": event.step, "artifact": event.artifact, "pace": ()}
    return {}


def _row(event: RunEvent, started_s: float) -> Row | None:
    match event:
        case StepLogged():
            numbers = (event.loss, event.lr, event.grad_norm, event.tokens_per_s)
            return ("step", event.step, *map(_finite, numbers), event.vram_bytes)
        case EvalLogged():
            return ("eval", event.step, _finite(event.loss))
        case GpuSampled():
            return ("gpu", round(event.time_s - started_s, 1), event.utilisation, event.memory_bytes)
    return None


def _finite(number: float) -> float | None:
    """A value that JSON can carry: a gap in the curve where the number is not one."""
    return number if math.isfinite(number) else None


def _log_lines(event: RunEvent) -> Iterable[LogLine]:
    level, message = "info", None
    match event:
        case RunPlanned():
            message = text(
                "ui.log.planned", device=str(event.plan.device.value), dtype=str(event.plan.dtype.value)
            )
        case PhaseStarted():
            message = event.detail or text(f"ui.log.phase.{event.phase}")
        case DataPrepared(facts=facts):
            message = text("ui.log.data", rows=facts.rows_used, tokens=facts.tokens, steps=event.total_steps)
            yield from (
                LogLine(time_s=event.time_s, level="warn", message=problem) for problem in facts.problems
            )
        case StepLogged(skipped=True):
            level, message = "warn", text("ui.log.skipped", step=event.step)
        case StepLogged(step=step, total_steps=total) if step in (1, total) or step % LOG_STEPS == 0:
            message = text("ui.log.step", step=step, total=total, loss=event.loss, lr=event.lr)
        case EvalLogged():
            message = text("ui.log.eval", step=event.step, loss=event.loss)
        case SampleWritten():
            message = text(
                "ui.log.sample", prompt=literal(event.prompt[:120]), answer=literal(event.answer[:200])
            )
        case CheckpointSaved():
            message = text("ui.log.saved", step=event.step)
        case KernelFellBack():
            level, message = "warn", text("ui.log.fell_back", op=event.op, reason=event.reason)
        case Warned() | MemoryFreed():
            level, message = "warn", event.message
        case RepairApplied():
            message = event.message
        case TrialFinished():
            message = text("ui.log.trial", took=event.took_s, tokens=event.longest_tokens)
        case RunStalled():
            level, message = "bad", text("ui.log.stalled", step=event.step, message=event.message)
        case StallEnded():
            message = text("ui.log.stall_ended", step=event.step)
        case RunResumed():
            message = text("ui.log.resumed", step=event.step)
        case RunStopped():
            message = text("ui.log.stopped.saved" if event.saved else "ui.log.stopped", step=event.step)
        case RunFailed():
            level, message = "bad", event.diagnosis.what
        case RunFinished():
            level, message = "good", text("ui.log.finished", step=event.step, loss=event.loss)
    if message is not None:
        yield LogLine(time_s=event.time_s, level=level, message=message)


def payload(run: str, view: LiveView, shown: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rows that a chart lacks, None when it lacks none.

    `shown` is what the chart has: {"run", "generation", "cursor"}. Rows go on from `since` when the chart shows the
    same run and generation, else all are sent with `since` 0.
    """
    total = len(view.rows)
    same = shown.get("run") == run and shown.get("generation") == view.generation
    since = min(shown.get("cursor", 0), total) if same else 0
    if same and since == total:
        return None
    rows = view.rows[since:]
    if since == 0 and total > PAYLOAD_ROWS:
        stride = math.ceil(total / PAYLOAD_ROWS)
        rows = tuple(
            row for i, row in enumerate(rows) if i % stride == 0 or row[0] == "eval" or i == total - 1
        )
    return {
        "run": run,
        "generation": view.generation,
        "since": since,
        "until": total,
        "rows": [list(row) for row in rows],
    }
