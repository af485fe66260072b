"""Log-probabilities of examples by the model as it is now: a few rows at a time, fewer where memory runs out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from studio.data.sequence_packing import Example, count_trained
from studio.engine.train_step import Step
from studio.models.adapt import evaluation_mode


class Scorer(Protocol):
    """What evaluates: the Trainer."""

    model: torch.nn.Module
    step: Step
    evaluation_batch: int
    """Rows at a time; try_batch() makes them fewer."""

    def try_batch(
        self, part: Sequence[Example], compute: Callable[[Sequence[Example]], torch.Tensor]
    ) -> list[float] | None:
        """Return what `compute` finds for `part`; None when something was changed: do it again."""


def score(
    scorer: Scorer, examples: Sequence[Example], order: Sequence[int], tell: Callable[[], None]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (i, float32): the log-probabilities of the tokens that count in examples[i], for the i of `order`.

    `tell` is called before each few rows.
    """
    done = 0
    while done < len(order):
        tell()
        places = order[done : done + scorer.evaluation_batch]
        part = [examples[i] for i in places]
        with evaluation_mode(scorer.model):
            found = scorer.try_batch(part, scorer.step.log_probabilities)
        if found is None:
            continue
        start = 0
        for i, example in zip(places, part, strict=True):
            count = count_trained(example)
            yield i, np.asarray(found[start : start + count], dtype=np.float32)
            start += count
        done += len(part)


def add_measured(scorer: Scorer, window: Sequence[Example], tell: Callable[[int], None]) -> Sequence[Example]:
    """Return `window` with what its objective measures of the whole of it, where it does; `tell` hears of rows."""
    if not window:
        return window

    def score_all(examples: Sequence[Example]) -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        order = sorted(range(len(examples)), key=lambda i: -len(examples[i].token_ids))
        for place, values in score(scorer, examples, order, lambda: tell(len(found))):
            found[place] = values
        return [found[place] for place in range(len(examples))]

    measured = scorer.step.objective.measure_window(window, score_all)
    if measured is None:
        return window
    return [dataclasses.replace(one, window=measured) for one in window]
