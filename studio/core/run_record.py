"""run.json: what a run was and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from studio.core.events import Diagnosis, HeldOutScore
from studio.core.facts import Slower
from studio.core.start_clock import BEFORE_RUN

RECORD_VERSION = 1
RunState = Literal["waiting", "running", "paused", "stopped", "failed", "finished"]
"""`paused` is told of the run that is on; its run.json says running meanwhile."""
SIDES = ("base", "tuned")
"""Who answers: the model as it came, and as it was trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run's identity, surroundings and result; timings in seconds, memory in bytes."""

    version: int = RECORD_VERSION
    run: str
    name: str
    state: RunState
    created_s: float
    ended_s: float = 0.0
    steps: int = 0
    total_steps: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    eval_reward: float | None = None
    """In the place of a loss: of held-out questions, where it learned from its own answers."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of its objective, at the last step."""
    scores: tuple[HeldOutScore, ...] = ()
    """Of its result on held-out rows; () where it has none."""
    kept_step: int = 0
    """The step whose weights are the result, where those were the best; 0: the last one's."""
    artifact: str = ""
    """Folder of the result, relative to the run's folder; "" when there is none."""
    base: str = ""
    """The base model by hub id or folder name, never by a local path."""
    base_hash: str = ""
    adapter: bool = True
    seed: int = 0
    data_hash: str = ""
    gpu: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    peak_vram_bytes: int = 0
    skipped_steps: int = 0
    slower: tuple[Slower, ...] = ()
    """What made it clearly slower than it could have been, the costliest first."""
    diagnosis: Diagnosis | None = None

    @property
    def worked_s(self) -> float:
        """How long its phases took together, waiting and rests left out; 0 before its first attempt has ended."""
        return sum(took_s for part, took_s in self.timings_s.items() if part not in BEFORE_RUN)
