"""What the phases of one run share, and what each leaves for those after it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.core.events import PhaseStarted, RunEvent, Warned
from studio.core.facts import BackendPlan, Gpu, MachineFacts, ModelFacts
from studio.core.i18n import Text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.data.prepare import PreparedData
from studio.engine.fault_recovery import Recovery
from studio.engine.proof_cache import Proof
from studio.engine.rewards.reward import RewardSet
from studio.engine.run_folder import RunFolder
from studio.engine.trainer import Trainer
from studio.hub.access_token import NO_MIRROR, Mirror
from studio.models.load import Loaded
from studio.models.optimize_model import Fast
from studio.models.weights import Weights
from studio.planning.learned_limits import Remembered


class Stopped(Exception):
    """The person asked for the end between two phases."""


@dataclass(slots=True)
class Run:
    """What the phases of one run share."""

    recipe: Recipe
    machine: MachineFacts
    folder: RunFolder
    emit: Callable[[RunEvent], None]
    should_stop: Callable[[], bool]
    beat: Callable[[str, int, int], None]
    record: RunRecord
    remembered: Remembered | None = None
    mirror: Mirror = NO_MIRROR
    data_cache: Path | None = None
    should_pause: Callable[[], bool] = lambda: False
    should_save: Callable[[], bool] = lambda: True
    weights: Weights | None = None
    exits: ExitStack = field(default_factory=ExitStack)
    """What is undone at the run's end."""
    timings_s: dict[str, float] = field(default_factory=dict)

    def stop_when_asked(self) -> None:
        """Raise Stopped when the person asked for the end."""
        if self.should_stop():
            raise Stopped

    @contextmanager
    def phase(self, name: str, detail: Text | None = None) -> Iterator[None]:
        """Announce a phase and record how long it took. Raises Stopped when the end was asked for before it."""
        self.stop_when_asked()
        self.emit(PhaseStarted(phase=name, step=self.record.steps, detail=detail))
        self.beat(name, self.record.steps, 0)
        started_s = time.perf_counter()
        yield
        self.timings_s[name] = round(time.perf_counter() - started_s, 3)

    def change_record(self, **changes: Any) -> None:
        """Replace fields of the run's record; run.json follows at the end."""
        self.record = dataclasses.replace(self.record, **changes)

    def warn(self, message: Text) -> None:
        """Emit Warned for the step that the run has come to."""
        self.emit(Warned(step=self.record.steps, message=message))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What is known before any weights are read."""

    facts: ModelFacts
    tokenizer: Any
    data: PreparedData
    gpu: Gpu | None
    budget_bytes: int
    """GPU memory that the run may use; 0 on the processor."""
    hashing: Future[str]
    """The hash of the base model's files, under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """What holds the model: it goes before the result is loaded again, which has its memory."""

    prepared: Prepared
    plan: BackendPlan
    loaded: Loaded
    fast: Fast
    trainer: Trainer
    recovery: Recovery
    proof: Proof
    frozen_sum: Any
    """Of the weights that are not trained, to be found again at the end."""
    rewards: RewardSet | None = None
    """What judges the model's own answers, where it learns from these."""
