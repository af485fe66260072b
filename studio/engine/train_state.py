"""Where a run is: the part of a checkpoint beside weights, optimizer and random generators."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Evaluation(NamedTuple):
    """What an evaluation found."""

    loss: float
    """The mean over what the examples count."""
    metrics: dict[str, float]


@dataclass(slots=True)
class TrainState:
    """Where the run is: everything that a resume needs beside weights, optimizer and random generators."""

    step: int = 0
    """Optimizer steps done (applied or skipped)."""
    micro_batch: int = 1
    """A micro-step needs no more memory than so many rows that are as long as the longest; short ones go by more."""
    skipped: int = 0
    skipped_in_a_row: int = 0
    best_eval: float = math.inf
    """The lowest validation loss; where the best is kept by a metric, minus the highest value of that."""
    best_step: int = 0
    """The step after which it was so; 0 before the first evaluation."""
    best_loss: float | None = None
    """The validation loss there."""
    evals_without_gain: int = 0
    evaluated: int = 0
    """The step after which `last_eval` was measured."""
    last_loss: float = math.nan
    last_eval: float | None = None
    last_metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    base_scores: dict[str, float] = field(default_factory=dict)
    """What the model as it came is worth by each metric of engine/held_out_score.py, where its weights are trained."""
    base_answers: list[str] = field(default_factory=list)
    """What the model as it came answered to the prompts of engine/sample_generations.py."""
