"""What an objective is: which sequences an example has, which tokens count and how much, and what is made of them.

    lp_t = log p(token t)        loss L(lp)        g_t = dL/dlp_t        dL/dh_t = g_t dlp_t/dh_t

N tokens that count in a micro-batch, S sequences. An objective sees log-probabilities and says g: the head gives dlp/dh
beside lp in one pass, so that none needs logits, autograd or a kernel of its own. Both steps (studio/engine/train_step,
decoder_step) ask it the same way. A loss is a sum over examples divided by what all examples of the *step* count, so
neither the cut into micro-steps nor a replay changes the gradient. Settings of an objective come with the first that
has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from studio.core.events import Metric
from studio.data.sequence_packing import Example, count_trained

if TYPE_CHECKING:  # a window lists objectives without torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """The tokens of a micro-batch that count, in their order; all tensors on the device."""

    weights: Tensor | None = None
    """(N,) float32, above 0; None: each counts once."""
    reference: Tensor | None = None
    """(N,) float32: log-probabilities by the model as it was before the first step; None where none is asked for."""
    counts: Tensor | None = None
    """(S,) int64: how many of the tokens each sequence has; None for a TokenObjective."""

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
    sequences = 1
    """Sequences of an example, which stand behind each other as its documents; they are never parted."""
    needs_reference = False
    """Whether `Picked.reference` is wanted: a pass over all examples before the first step."""
    metrics: tuple[Metric, ...] = ()
    """What `Terms.metrics` holds, in the order of the charts."""

    def count(self, example: Example) -> float:
        """Return what `example` adds to what a step's loss is divided by."""
        return 1.0

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
