"""What objectives of pairs share: two sequences an example, the better answer first, and what is logged of them.

    c, r: summed log-probabilities of the chosen and the rejected answer, less the reference's where there is one
    L = sum over pairs of l(c, r) / pairs + w sum over the chosen's tokens of (-lp) / those tokens

Both sums run over the optimizer step. The second term (Pang et al., 2024, arXiv:2404.19733) keeps the likelihood of
good answers from falling with that of the bad ones. P: pairs of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from studio.core.events import Metric
from studio.data.sequence_packing import Example, document_starts
from studio.engine.objectives.objective import Objective, Picked, Score, Terms

if TYPE_CHECKING:
    from torch import Tensor

REWARDS = (
    Metric(name="rewards/margins", better="higher", first=True),
    Metric(name="rewards/accuracies", unit="share", better="higher", first=True),
    Metric(name="logps/chosen", better="higher", first=True),
    Metric(name="logps/rejected", better="lower"),
    Metric(name="rewards/chosen", better="higher"),
    Metric(name="rewards/rejected", better="lower"),
)
"""Named as trl logs them, so that what is written about them applies."""
NLL = Metric(name="nll_loss", better="lower")


class Sides(NamedTuple):
    """Two answers to the same prompts; all (P,) float32."""

    chosen: Tensor
    """Sum of the log-probabilities of its tokens, less the reference's."""
    rejected: Tensor
    chosen_tokens: Tensor
    """How many tokens the answer has."""
    rejected_tokens: Tensor


class Compared(NamedTuple):
    """What a loss makes of Sides; all (P,) float32."""

    losses: Tensor
    by_chosen: Tensor
    """The derivative of the loss in Sides.chosen."""
    by_rejected: Tensor
    rewards: tuple[Tensor, Tensor]
    """What is logged as the rewards of the chosen and the rejected answer."""
    more: Mapping[str, Tensor] = {}
    """Further metrics, by name, one value a pair."""


class PairObjective(Objective):
    """Learns from a better and a worse answer to a question; a subclass says `compare`."""

    sequences = 2
    averaged = False
    """Whether the logged log-probabilities are those of a token, as trl has it for losses of means."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """See Objective."""
        return (*REWARDS, NLL) if self.nll_weight else REWARDS

    @property
    def nll_weight(self) -> float:
        """How much the loss of the better answer alone counts beside the comparison."""
        return self.settings.nll_weight

    def compare(self, sides: Sides) -> Compared:
        """Return losses and derivatives of pairs."""
        raise NotImplementedError

    def measure_window(self, window: Sequence[Example], score: Score) -> float | None:
        """Return pairs a token of the chosen answers: what the second term's sum is multiplied by."""
        if not self.nll_weight:
            return None
        return sum(map(self.count, window)) / (sum(map(count_chosen, window)) or 1)

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """See Objective."""
        answers = picked.answers
        own = log_probabilities if answers is None else log_probabilities * answers
        counts = picked.counts.float() if answers is None else picked.sum_sequences(answers.float())
        sums = picked.sum_sequences(own)
        gains = sums if picked.reference is None else picked.sum_sequences(own - picked.reference)
        compared = self.compare(Sides(gains[0::2], gains[1::2], counts[0::2], counts[1::2]))
        tokens = len(log_probabilities)
        gradient = picked.spread(_alternate(compared.by_chosen, compared.by_rejected), tokens)
        gradient = gradient if answers is None else gradient * answers
        total, metrics = compared.losses.sum(), {}
        if self.nll_weight:
            one = compared.losses.new_ones(len(compared.losses))
            chosen = picked.spread(_alternate(one, 0 * one), tokens)
            lost = -(log_probabilities @ chosen)
            share = self.nll_weight * picked.window[0]
            total, gradient = total + share * lost, gradient - share * chosen
            metrics["nll_loss"] = lost, chosen.sum()
        means = sums / counts if self.averaged else sums
        good, bad = compared.rewards
        values = {
            "rewards/chosen": good,
            "rewards/rejected": bad,
            "rewards/margins": good - bad,
            "rewards/accuracies": (good > bad).float(),
            "logps/chosen": means[0::2],
            "logps/rejected": means[1::2],
            **compared.more,
        }
        pairs = total.new_full((), len(good))
        metrics |= {name: (value.sum(), pairs) for name, value in values.items()}
        return Terms(loss=total, gradient=gradient, metrics=metrics)


def count_chosen(example: Example) -> int:
    """Return how many tokens of the chosen answers of `example` are learned, its prompts' where these are."""
    trained = example.trained.copy()
    starts = document_starts(example)
    trained[starts] = False
    return sum(
        int(trained[start : start + length].sum())
        for start, length in list(zip(starts, example.lengths, strict=True))[0::2]
    )


def _alternate(first: Tensor, second: Tensor) -> Tensor:
    """Return (2 P,): a value of `first` and one of `second` in turn."""
    import torch

    return torch.stack([first, second], dim=1).flatten()
