"""Odds ratio preference optimization: fine-tuning on the better answers, whose odds gain on the worse ones'.

    a = c / n_c     b = r / n_r     o = a - b - log(1 - e^a) + log(1 - e^b)     L = NLL(prompt, chosen) - beta log s(o)

Hong et al., 2024 (arXiv:2403.07691). Needs no reference; the prompt is learned, too, as the authors do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from studio.core.events import Metric
from studio.data.sequence_packing import (
    Example,
    WrappedExamples,
    document_starts,
)
from studio.engine.objectives.pairs import NLL, REWARDS, Compared, PairObjective, Sides

if TYPE_CHECKING:
    from torch import Tensor

MOST = -1e-6
"""Of a mean log-probability: an answer known by heart would give odds without end, and a gradient of 1 / 0."""


class OddsRatioPreferenceOptimization(PairObjective):
    """The loss of prompt and better answer, and the odds between both answers."""

    name = "orpo"
    averaged = True
    metrics = (
        NLL,
        *REWARDS,
        Metric(name="log_odds_chosen", better="higher"),
        Metric(name="log_odds_ratio", better="higher"),
    )

    @property
    def nll_weight(self) -> float:
        """See PairObjective: the paper weighs the odds, not this term."""
        return 1.0

    def view(self, examples: Sequence[Example]) -> Sequence[Example]:
        """See Objective: the better answer's prompt is learned, too."""
        return WithPrompts(examples)

    def compare(self, sides: Sides) -> Compared:
        """See PairObjective."""
        from torch.nn.functional import logsigmoid

        beta = self.beta
        a, b = sides.chosen / sides.chosen_tokens, sides.rejected / sides.rejected_tokens
        (log_a, by_a), (log_b, by_b) = _log_odds(a), _log_odds(b)
        o = log_a - log_b
        pull = -beta * (-o).sigmoid()
        ratio = logsigmoid(o)
        return Compared(
            -beta * ratio,
            pull * by_a / sides.chosen_tokens,
            -pull * by_b / sides.rejected_tokens,
            (beta * a, beta * b),
            {"log_odds_chosen": o, "log_odds_ratio": ratio},
        )


def _log_odds(mean: Tensor) -> tuple[Tensor, Tensor]:
    """Return log(p / (1 - p)) of p = e^mean, and its derivative in `mean`."""
    import torch

    held = mean.clamp(max=MOST)
    rest = -torch.expm1(held)  # 1 - p, exact near p = 1
    return held - rest.log(), (mean < MOST) / rest


class WithPrompts(WrappedExamples):
    """Pairs whose chosen sequence is learned from its second token on; `answers` says where its answer stands."""

    def make(self, i: int) -> Example:
        """Return example `i`."""
        example = self.examples[i]
        learned = example.trained.copy()
        starts = document_starts(example)
        for start, length in list(zip(starts, example.lengths, strict=True))[0::2]:
            learned[start : start + length] = True
        learned[starts] = False
        return dataclasses.replace(example, trained=learned, answers=example.trained)


ORPO = OddsRatioPreferenceOptimization()
