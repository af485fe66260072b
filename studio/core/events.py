"""Everything that can happen in a run, as one append-only list of typed events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from studio.core.facts import BackendPlan, DataFacts
from studio.core.i18n import Text, text

EVENTS_VERSION = 1

HELD_OUT_REWARD = "reward"
"""The metric of an evaluation that is no loss but a reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """Something to do about a failure; `change` holds recipe values by dotted path, one click to apply and retry."""

    title: Text
    change: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What ended a run, why, and what helps."""

    id: str
    what: Text
    why: Text
    fixes: tuple[Fix, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEvent:
    """One thing that happened. The log numbers and times it: `seq` counts from 1, `time_s` is Unix time."""

    kind: ClassVar[str] = ""
    seq: int = 0
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A number that a run logs beside its loss; its label is what name_metric() says."""

    name: str
    unit: str = ""
    """"share" (0..1, shown in percent), or what is written behind the number."""
    better: str = ""
    """higher, lower, or nothing where neither is."""
    first: bool = False
    """Whether it says more than the loss does, and is drawn before it."""


TOLD_METRICS = 6
"""So many of a step's metrics fit in a line that tells of it: those that are logged first."""


def name_metric(name: str) -> Text:
    """Return the words for a metric by its name, of which a reward's own or an answer metric's may be a part."""
    head, _, rest = name.partition("/")
    if head == "drawn":
        return text("metric.drawn", metric=text(f"metric.{rest}"))
    reward, _, figure = rest.rpartition("/")
    return (
        text(f"metric.rewards/{figure}", name=reward)
        if head == "rewards" and reward
        else text(f"metric.{name}")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlanned(RunEvent):
    """Every choice of the run with its reason."""

    kind: ClassVar[str] = "run_planned"
    plan: BackendPlan
    swaps: tuple[Text, ...] = ()
    metrics: tuple[Metric, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseStarted(RunEvent):
    """The run entered a phase: wait (for an export), download, load, prepare, reference, compile, trial, sample, train,
    score, save, verify.
    """

    kind: ClassVar[str] = "phase_started"
    phase: str
    step: int = 0
    detail: Text | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPrepared(RunEvent):
    """The data set is tokenised: what was used, cut and left out."""

    kind: ClassVar[str] = "data_prepared"
    facts: DataFacts
    total_steps: int
    validation_rows: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLogged(RunEvent):
    """One optimizer step. `loss` is the mean over the step's trained tokens."""

    kind: ClassVar[str] = "step_logged"
    step: int
    total_steps: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    tokens_per_s: float
    vram_bytes: int = 0
    skipped: bool = False
    """True when a value was not finite and the step was not applied."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the objective, by Metric.name: RunPlanned declares them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSampled(RunEvent):
    """What the GPU's driver reports."""

    kind: ClassVar[str] = "gpu_sampled"
    utilisation: float
    """0..1"""
    memory_bytes: int
    temperature_c: float
    power_w: float


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalLogged(RunEvent):
    """The loss on the validation rows, and the objective's metrics there."""

    kind: ClassVar[str] = "eval_logged"
    step: int
    loss: float
    """What is to become smaller: minus `reward`, where there is one."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """The mean reward of answers to held-out questions; None of who learns from examples, and has a loss."""
        return self.metrics.get(HELD_OUT_REWARD)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleWritten(RunEvent):
    """An answer that the model wrote to a fixed prompt; at step 0 that of the model as it came."""

    kind: ClassVar[str] = "sample_written"
    step: int
    prompt: str
    answer: str
    expected: str = ""
    base: str = ""
    """What the model as it came answered; "" where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutScore:
    """What a run's result is worth on its held-out rows by one metric of studio/core/metrics."""

    metric: str
    value: float
    low: float
    high: float
    """95 % of what other rows of the same kind would give lie between `low` and `high`."""
    rows: int
    base: float | None = None
    """The same of the model as it came; None where that is not known."""

    @property
    def sentence(self) -> Text:
        """It in words: in percent, with its bounds, its base's too where that is known."""
        metric = text(f"metric.{self.metric}")
        value, low, high = (f"{100 * part:.1f}" for part in (self.value, self.low, self.high))
        said = {"metric": metric, "value": value, "low": low, "high": high, "rows": self.rows}
        if self.base is None:
            return text("event.scored", **said)
        return text("event.scored.base", base=f"{100 * self.base:.1f}", **said)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswersScored(RunEvent):
    """The result answered held-out rows; the first score is the one that lists of runs show."""

    kind: ClassVar[str] = "answers_scored"
    step: int
    """Whose weights answered."""
    scores: tuple[HeldOutScore, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved(RunEvent):
    """A checkpoint is complete on disk."""

    kind: ClassVar[str] = "checkpoint_saved"
    step: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelFellBack(RunEvent):
    """An op went over to its PyTorch twin."""

    kind: ClassVar[str] = "kernel_fell_back"
    step: int
    op: str
    reason: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairApplied(RunEvent):
    """Something in the environment of our own process was set right before it started (machine/repairs.py)."""

    kind: ClassVar[str] = "repair_applied"
    repair: str
    message: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialFinished(RunEvent):
    """The trial run went through what usually breaks later; nothing did."""

    kind: ClassVar[str] = "trial_finished"
    took_s: float
    longest_tokens: int
    """Tokens of the longest row, with which the trial trained."""
    step_s: float
    """How long an optimizer step will take, reckoned from the longest rows: real ones are usually shorter."""
    total_s: float
    """How long the whole run will take at most."""
    peak_vram_bytes: int = 0
    left_out: tuple[str, ...] = ()
    """Parts that the time did not allow, or that went well in an earlier run of the same model and versions."""
    draws: bool = False
    """Whether the steps learn from answers that are drawn meanwhile: how long that takes is not in total_s."""

    @property
    def saving_known(self) -> bool:
        """Whether an earlier run answered and saved with the same model and versions: the time never leaves it out."""
        return "result" in self.left_out


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFreed(RunEvent):
    """Memory ran out; the step is replayed in a form that needs less, with the same result."""

    kind: ClassVar[str] = "memory_freed"
    step: int
    rung: str
    """Which rung of the ladder (engine/oom_fallback.py)."""
    micro_batch: int
    message: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStalled(RunEvent):
    """The run gives no sign of life; its stacks are in stacks.txt of the run's folder."""

    kind: ClassVar[str] = "run_stalled"
    step: int
    phase: str
    waited_s: float
    verdict: str
    """compiling, spilling, growing, reading, output_blocked, gpu_busy, slept, blocked"""
    message: Text
    """The verdict in words."""
    frame: str = ""
    """Where the engine's thread stands: `file.py:123 in name`."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What was measured at that moment: gpu_utilisation, vram_used_bytes, ram_available_bytes, ..."""
    action: str = "ask"
    """What follows: ask (the person decides), wait (only told), restart, stop"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StallEnded(RunEvent):
    """A run that was held for stalled goes on."""

    kind: ClassVar[str] = "stall_ended"
    step: int
    waited_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(RunEvent):
    """Something that the person should know; the run goes on."""

    kind: ClassVar[str] = "warned"
    message: Text
    step: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPaused(RunEvent):
    """The person paused the run: it holds after `step`, its state saved, and keeps its memory."""

    kind: ClassVar[str] = "run_paused"
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunUnpaused(RunEvent):
    """A paused run goes on."""

    kind: ClassVar[str] = "run_unpaused"
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResumed(RunEvent):
    """The run goes on from a checkpoint; steps logged after `step` by an earlier attempt no longer count."""

    kind: ClassVar[str] = "run_resumed"
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStopped(RunEvent):
    """The person stopped the run; it can be resumed when `saved`."""

    kind: ClassVar[str] = "run_stopped"
    step: int
    saved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFailed(RunEvent):
    """The run ended in a failure."""

    kind: ClassVar[str] = "run_failed"
    step: int
    diagnosis: Diagnosis


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished(RunEvent):
    """The run ended well: the artefact was reloaded and compared."""

    kind: ClassVar[str] = "run_finished"
    step: int
    loss: float
    artifact: str
    """Folder of the result, relative to the run's folder."""


EVENTS: tuple[type[RunEvent], ...] = (
    RunPlanned,
    PhaseStarted,
    DataPrepared,
    StepLogged,
    GpuSampled,
    EvalLogged,
    SampleWritten,
    AnswersScored,
    CheckpointSaved,
    KernelFellBack,
    RepairApplied,
    TrialFinished,
    MemoryFreed,
    RunStalled,
    StallEnded,
    Warned,
    RunPaused,
    RunUnpaused,
    RunResumed,
    RunStopped,
    RunFailed,
    RunFinished,
)
