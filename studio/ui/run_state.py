"""Folds a run's events into what the window shows of it: pure, so that every tab and every reload shows the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from studio.core.events import (
    HELD_OUT_REWARD,
    TOLD_METRICS,
    AnswersScored,
    CheckpointSaved,
    DataPrepared,
    Diagnosis,
    EvalLogged,
    GpuSampled,
    HeldOutScore,
    KernelFellBack,
    MemoryFreed,
    Metric,
    PhaseStarted,
    RepairApplied,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPaused,
    RunPlanned,
    RunResumed,
    RunStalled,
    RunStopped,
    RunUnpaused,
    SampleWritten,
    StallEnded,
    StepLogged,
    TrialFinished,
    Warned,
    name_metric,
)
from studio.core.facts import BackendPlan, DataFacts, Slower
from studio.core.i18n import Text, text
from studio.ui.metric_columns import Points

LOG_LINES = 60
ALARM_LINES = 40
"""Warnings and errors stay in the log longer than other lines."""
LOG_STEPS = 10
"""The page's log tells every tenth step: the status card shows each, and every new line costs each page a layout."""
PACE_STEPS = 20
"""The time left is reckoned from the pace of the last PACE_STEPS steps."""
SAMPLES = 400
BEFORE = {
    "prepare": (("download",), ("open",), ("load",)),
    "load": (("download",), ("open",), ("prepare",)),
}
"""Behind these a phase goes on with an attempt, else it begins one; runs of older studios loaded first."""
"""Answers that are kept: 50 evaluations of 8 prompts."""


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
    """waiting, running, paused, stopped, failed or finished"""
    phase: str = ""
    phase_s: float = 0.0
    """Unix time at which the phase began."""
    phase_detail: Text | None = None
    """What the phase itself says: how much is downloaded."""
    passed: tuple[str, ...] = ()
    """The phases of this attempt so far, each once, the present one last."""
    step: int = 0
    total_steps: int = 0
    epoch: float = 0.0
    loss: float | None = None
    eval_loss: float | None = None
    eval_reward: float | None = None
    """In the place of a loss, see EvalLogged.reward."""
    scores: tuple[HeldOutScore, ...] = ()
    """What the result is worth on held-out rows."""
    tokens_per_s: float = 0.0
    skipped: int = 0
    """Steps of this attempt that were left out because a value was not finite."""
    started_s: float = 0.0
    updated_s: float = 0.0
    stepped_s: float = 0.0
    """Unix time of the last step; 0 before the first of this attempt."""
    pace: tuple[tuple[int, float], ...] = ()
    """(step, Unix time) of the last steps of this attempt."""
    points: Points = field(default_factory=Points)
    generation: int = 0
    """Counts how often points were taken back, so that a chart knows when to begin anew."""
    log: tuple[LogLine, ...] = ()
    plan: BackendPlan | None = None
    plan_seq: int = 0
    """seq of the plan's event: a page that has it need not get it again."""
    swaps: tuple[Text, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """What its objective logs beside the loss."""
    facts: DataFacts | None = None
    samples: tuple[SampleWritten, ...] = ()
    saved_step: int = 0
    diagnosis: Diagnosis | None = None
    artifact: str = ""
    away_s: float = 0.0
    """Of the time since the start: it had been stopped, or its process was gone."""
    lost: tuple[int, int] = (0, 0)
    """It went on after the first step of these although it had come to the second."""
    stall: RunStalled | None = None
    """The run stands still: this is what the watchdog found; None while it moves."""
    twins: tuple[tuple[str, int], ...] = ()
    """(op, step) of each op that went over to its PyTorch twin in the course of the run."""

    @property
    def slower(self) -> tuple[Slower, ...]:
        """What makes it clearly slower than it could be."""
        return self.plan.slower if self.plan else ()

    @property
    def on_card(self) -> bool | None:
        """Whether the run is on a graphics card; None before its plan is made."""
        if self.points.counts["gpu"]:
            return True
        return str(self.plan.device.value) != "cpu" if self.plan else None

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
    log, points = list(view.log), view.points
    seq = view.seq
    started_s = view.started_s
    for event in events:
        if event.seq <= seq:
            continue
        seq = event.seq
        started_s = started_s or event.time_s
        if _begins(event, changes.get("state", view.state), changes.get("passed", view.passed)):
            gone_s = event.time_s - (changes.get("updated_s", view.updated_s) or event.time_s)
            changes["away_s"] = changes.get("away_s", view.away_s) + max(0.0, gone_s)
        changes["updated_s"] = event.time_s
        step = changes.get("step", view.step)
        # A run that died before its first checkpoint begins anew without a RunResumed: its steps come again.
        again = isinstance(event, StepLogged) and event.step <= step
        if again or isinstance(event, RunResumed):
            last = event.step - 1 if again else event.step
            kept = points.cut(last)
            if kept is not points:
                points = kept
                changes["generation"] = changes.get("generation", view.generation) + 1
            changes["samples"] = tuple(
                sample for sample in changes.get("samples", view.samples) if sample.step <= last
            )
        lost = (last, step) if again or isinstance(event, RunResumed) else (0, 0)
        if lost[0] < lost[1] and (isinstance(event, RunResumed) or event.step == 1):
            changes["lost"] = lost
            log.append(LogLine(time_s=event.time_s, level="warn", message=say_lost(lost)))
        metrics = changes.get("metrics", view.metrics)
        points = _add_point(points, event, event.time_s - started_s, metrics)
        changes |= _facts(event, changes.get("pace", view.pace), changes.get("samples", view.samples))
        changes |= _phases(event, changes.get("passed", view.passed), changes.get("skipped", view.skipped))
        changes |= _trouble(event, changes.get("twins", view.twins))
        log.extend(log_lines(event, LOG_STEPS))
    if seq == view.seq:
        return view
    alarms = [line for line in log[:-LOG_LINES] if line.level in ("warn", "bad")][-ALARM_LINES:]
    lines = (*alarms, *log[-LOG_LINES:])
    return replace(view, seq=seq, started_s=started_s, points=points, log=lines, **changes)


def say_lost(lost: tuple[int, int]) -> Text:
    """Return what is told of steps that are done again."""
    step, furthest = lost
    return text("ui.status.lost" if step else "ui.status.anew", step=step, count=furthest - step)


def _begins(event: RunEvent, state: str, passed: tuple[str, ...]) -> bool:
    """Return whether an attempt begins with `event`: what lies before it is no time of the run's."""
    if state in ("stopped", "failed", "finished"):
        return True
    return (
        isinstance(event, PhaseStarted)
        and event.phase in BEFORE
        and passed[-1:] not in (*BEFORE[event.phase], (event.phase,))
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


def _phases(event: RunEvent, passed: tuple[str, ...], skipped: int) -> dict[str, Any]:
    """What `event` says of the phase that the run is in."""
    match event:
        case PhaseStarted(phase="load" | "prepare") if (
            passed[-1:] not in BEFORE[event.phase]
        ):  # an attempt begins
            return {"phase_s": event.time_s, "phase_detail": event.detail, "passed": (event.phase,), "skipped": 0,
                    "stepped_s": 0.0}  # fmt: skip
        case PhaseStarted() if passed[-1:] == (event.phase,):  # a download tells how far it is
            return {"phase_detail": event.detail}
        case PhaseStarted():
            earlier = tuple(name for name in passed if name != event.phase)
            return {"phase_s": event.time_s, "phase_detail": event.detail, "passed": (*earlier, event.phase)}
        case StepLogged(skipped=True):
            return {"skipped": skipped + 1, "stepped_s": event.time_s}
        case StepLogged():
            return {"stepped_s": event.time_s}
    return {}


def _facts(event: RunEvent, pace: tuple, samples: tuple) -> dict[str, Any]:
    """The fields of the view that `event` sets."""
    match event:
        case RunPlanned():
            told = {"plan": event.plan, "plan_seq": event.seq, "swaps": event.swaps, "metrics": event.metrics}
            return {**told, "state": "running"}
        case PhaseStarted():
            return {"phase": event.phase, "state": "running", "pace": (), "diagnosis": None}
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
            return {"eval_loss": event.loss} if event.reward is None else {"eval_reward": event.reward}
        case AnswersScored():
            return {"scores": event.scores}
        case SampleWritten():
            return {"samples": (*samples, event)[-SAMPLES:]}
        case CheckpointSaved():
            return {"saved_step": event.step}
        case RunPaused():
            return {"state": "paused", "pace": ()}
        case RunUnpaused():
            return {"state": "running", "pace": ()}
        case RunResumed():
            return {"state": "running", "step": event.step, "diagnosis": None, "pace": (), "artifact": ""}
        case RunStopped():
            return {"state": "stopped", "step": event.step, "pace": ()}
        case RunFailed():
            return {"state": "failed", "step": event.step, "diagnosis": event.diagnosis, "pace": ()}
        case RunFinished():
            return {"state": "finished", "step": event.step, "artifact": event.artifact, "pace": ()}
    return {}


def _add_point(points: Points, event: RunEvent, seconds: float, metrics: Sequence[Metric]) -> Points:
    if isinstance(event, (StepLogged, EvalLogged)):
        held_out = float(isinstance(event, EvalLogged))
        for number, metric in enumerate(metrics):
            if metric.name in event.metrics:
                value = event.metrics[metric.name]
                points = points.add("metric", event.step, seconds, number, value, held_out)
    match event:
        case StepLogged():
            figures = (event.loss, event.lr, event.grad_norm, event.tokens_per_s, event.vram_bytes)
            return points.add("step", event.step, seconds, *figures)
        case EvalLogged() if event.reward is None:
            return points.add("eval", event.step, seconds, event.loss)
        case GpuSampled():
            figures = (event.utilisation, event.memory_bytes, event.temperature_c, event.power_w)
            return points.add("gpu", seconds, *figures)
    return points


def _tell_metrics(before: Text, metrics: Mapping[str, float]) -> Text:
    """Return a line with an objective's metrics behind it."""
    for name, value in islice(metrics.items(), TOLD_METRICS):
        before = text("ui.log.metric", before=before, metric=name_metric(name), value=f"{value:.4g}")
    return before


def log_lines(event: RunEvent, every_steps: int = 1) -> Iterable[LogLine]:
    """Yield what the log says of an event; of steps that went well only every so many, the first and the last."""
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
        case StepLogged(step=step, total_steps=total) if step in (1, total) or step % every_steps == 0:
            message = text("ui.log.step", step=step, total=total, loss=event.loss, lr=event.lr)
            message = _tell_metrics(message, event.metrics)
        case EvalLogged():
            message, metrics = text("ui.log.eval", step=event.step, loss=event.loss), dict(event.metrics)
            if event.reward is not None:
                message = text("ui.log.eval.reward", step=event.step, reward=metrics.pop(HELD_OUT_REWARD))
            message = _tell_metrics(message, metrics)
        case AnswersScored():
            message = event.scores[0].sentence
        case CheckpointSaved():
            message = text("ui.log.saved", step=event.step)
        case KernelFellBack():
            level, message = "warn", text("ui.log.fell_back", op=event.op, reason=event.reason)
        case Warned() | MemoryFreed():
            level, message = "warn", event.message
        case RepairApplied():
            message = event.message
        case TrialFinished():
            known = "ui.log.trial.known" if event.saving_known else "ui.log.trial"
            message = text(known, took=event.took_s, tokens=event.longest_tokens)
        case RunStalled():
            level = "bad"
            message = text(f"ui.log.stalled.{event.action}", step=event.step, message=event.message)
        case StallEnded():
            message = text("ui.log.stall_ended", step=event.step)
        case RunPaused():
            message = text("ui.log.paused", step=event.step)
        case RunUnpaused():
            message = text("ui.log.unpaused", step=event.step)
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
