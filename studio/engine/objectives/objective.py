"""What an objective is: which sequences an example has, which tokens count and how much, and what is made of them.

    lp_t = log p(token t)        loss L(lp)        g_t = dL/dlp_t        dL/dh_t = g_t dlp_t/dh_t

N tokens that count in a micro-batch, S sequences. An objective sees log-probabilities and says g: the head gives dlp/dh
beside lp in one pass, so that none needs logits, autograd or a kernel of its own. Both steps (studio/engine/train_step,
decoder_step) ask it the same way. A loss is a sum over examples divided by what all examples of the *step* count, so
neither the cut into micro-steps nor a replay changes the gradient. What a loss needs to know of the whole step beside
that (KTO's mean divergence, how many tokens another term is divided by) is measured once, before its first micro-step,
and given with each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from studio.core.events import Metric
from studio.core.recipe import PreferenceSpec
from studio.data.sequence_packing import Example, count_trained

if TYPE_CHECKING:  # a window lists objectives without torch
    from torch import Tensor


Score = Callable[[Sequence[Example]], list[np.ndarray]]
"""Gives the log-probabilities of each example's tokens that count, float32, by the model as it is now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """The tokens of a micro-batch that count, in their order; all tensors on the device."""

    weights: Tensor | None = None
    """(N,) float32, above 0; None: each counts once."""
    reference: Tensor | None = None
    """(N,) float32: log-probabilities by the model as it was before the first step; None where none is asked for."""
    counts: Tensor | None = None
    """(S,) int64: how many of the tokens each sequence has; None for a TokenObjective."""
    answers: Tensor | None = None
    """(N,) bool: which of the tokens are of answers, where prompts are learned, too; None: all."""
    labels: Tensor | None = None
    """(S,) bool: whether a sequence's answer is a good one; None where the data do not say."""
    window: Tensor | None = None
    """(1,) float32: what Objective.measure_window() found of the whole step; None where it finds nothing."""
    advantages: Tensor | None = None
    """(S,) float32: by how much each drawn answer was better than its group; None where none was drawn."""
    old: Tensor | None = None
    """(N,) float32: log-probabilities when the updates by these answers began; None: they are the present ones."""
    sampled: Tensor | None = None
    """(N,) float32: log-probabilities as they were drawn; None where that was not told."""
    entropies: Tensor | None = None
    """(N,) float32: of what may stand at each place, by the model as it is; None where nobody wants them."""

    def sum_sequences(self, values: Tensor) -> Tensor:
        """Return the sum of `values` (N,) over each sequence, (S,), in a fixed order: a replay gives the same bits."""
        import torch

        return torch.segment_reduce(values, "sum", lengths=self.counts, unsafe=True)

    def spread(self, values: Tensor, tokens: int) -> Tensor:
        """Return each sequence's value (S,) at each of its tokens, (N,); `tokens` is N."""
        return values.repeat_interleave(self.counts, output_size=tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What an objective makes of the log-probabilities of a micro-batch; tensors without autograd."""

    loss: Tensor
    """() float32: the sum over the examples."""
    gradient: Tensor
    """(N,) float32: of that sum in each log-probability."""
    metrics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Name -> (sum, count), () each: a step logs the sum of the sums over the sum of the counts."""


class Objective:
    """One way to train; a subclass says `name` and computes `loss`."""

    name: str
    usual_beta = 0.1
    updates = 1
    """Steps that are taken with the same examples, one after another."""
    sequences = 1
    """Sequences of an example, which stand behind each other as its documents; they are never parted."""
    answers_again = False
    """Whether several examples of a step are answers to the same prompt."""
    temperature = 1.0
    """What logits are divided by before they are log-probabilities: that by which answers were drawn."""
    scores = False
    """Whether the head gives a score at each place (models/score_head.py) in place of log-probabilities."""
    needs_reference = False
    """Whether `Picked.reference` is wanted: a pass over all examples before the first step."""
    wants_entropy = False
    """Whether `Picked.entropies` is wanted in training: some passes over the logits more."""
    measures_beside = False
    """Whether measure_window() needs the companions' log-probabilities alone: then measure_beside() finds the same."""
    metrics: tuple[Metric, ...] = ()
    """What `Terms.metrics` holds, in the order of the charts."""
    derived: tuple[Metric, ...] = ()
    """What complete() adds."""

    def __init__(self, settings: PreferenceSpec | None = None) -> None:
        self.settings = settings or PreferenceSpec()

    @property
    def beta(self) -> float:
        """How much a gain of one in a summed log-probability counts: the recipe's, or what is usual."""
        return self.settings.beta or self.usual_beta

    def with_settings(self, settings: PreferenceSpec) -> Self:
        """Return this objective as a recipe sets it."""
        return type(self)(settings)

    def fit(self, examples: Sequence[Example]) -> Self:
        """Return this objective with what it takes from the examples that are learned from."""
        return self

    def view(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the prepared `examples` as they are trained on: with what else is to be learned, or compared with."""
        return examples

    def companions(self, examples: Sequence[Example], max_length: int) -> Sequence[Example] | None:
        """Return what is scored beside each of `examples`, as many: `Example.companion`; None: nothing.

        None of them is longer than `max_length` tokens.
        """
        return None

    def count(self, example: Example) -> float:
        """Return what `example` adds to what a step's loss is divided by: its groups of sequences."""
        return len(example.lengths) / self.sequences

    def measure_window(self, window: Sequence[Example], score: Score) -> float | None:
        """Return what the loss of each of `window`, the examples of a step, needs to know of all; None: nothing."""
        return None

    def measure_beside(self, log_probabilities: Tensor, picked: Picked) -> Tensor:
        """Return the same, (1,) float32, of (N,) float32 log-probabilities of all companions of a step's examples."""
        raise NotImplementedError

    def complete(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the `metrics` of a step with those that follow from them."""
        return metrics

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """Return the Terms of (N,) float32 log-probabilities."""
        raise NotImplementedError


class TokenObjective(Objective):
    """The mean over tokens of -lp, each as often as it counts: g is known before lp, and the head computes with it."""

    def count(self, example: Example) -> float:
        """See Objective: the trained tokens."""
        return float(count_trained(example))

    def weigh(self, example: Example) -> np.ndarray | None:
        """Return how much each token of `example` counts, float32 [tokens], above 0 where trained; None: once."""
        return None

    def measure(self, losses: Tensor, picked: Picked) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return what Terms.metrics holds, given each token's -lp (N,), unweighted."""
        return {}

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """See Objective."""
        losses = -log_probabilities
        if picked.weights is None:
            total, gradient = losses.sum(), losses.new_full(losses.shape, -1.0)
        else:
            weights = picked.weights.to(losses.dtype)
            total, gradient = losses @ weights, -weights
        return Terms(loss=total, gradient=gradient, metrics=self.measure(losses, picked))
