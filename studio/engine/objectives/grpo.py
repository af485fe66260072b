"""Group relative policy optimization and its kin: answers that the model drew gain or lose by how they scored.

    R_t = exp(lp_t - old_t)        A: advantage of the answer        L = sum over answers, tokens of w l(R, A)

Shao et al., 2024 (arXiv:2402.03300). `old` is what the model gave the token when the updates by these answers began:
in the first update R = 1, the loss says nothing, and -A is the whole derivative. A variant says three things: of what R
is the ratio (a token, or its answer), how R is kept in bounds (`clip`, `weigh`), and what the sum is divided by. Each
with its source at its name in VARIANTS. Advantages are inputs of the step (engine/rollouts), so a replay is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from studio.core.events import Metric
from studio.core.recipe import SamplingSpec
from studio.data.sequence_packing import Example, count_trained
from studio.engine.objectives.filler_answers import FillerAnswers
from studio.engine.objectives.objective import Objective, Picked, Terms

if TYPE_CHECKING:
    from torch import Tensor

CLIPPED = tuple(Metric(name=f"clip_ratio/{part}_mean", unit="share") for part in ("low", "high", "region"))
GATES = 1.0, 1.05
"""SAPO's t for better and for worse answers."""
DISTANCE = Metric(name="sampling/sampling_logp_difference/mean", better="lower")
"""Named as trl logs them, so that what is written about them applies."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What tells one loss from another."""

    bound: Callable[[Tensor, Tensor, Tensor, SamplingSpec], tuple[Tensor, Tensor]]
    """(R, A, lp, settings) -> l and dl/dlp, of which `clip` says more; lp is that of a token."""
    of: Literal["token", "mean", "sum"] = "token"
    """Whose ratio R is: the token's; the answer's by the mean of its tokens' log-ratios, or by their sum."""
    divided_by: Literal["tokens", "answers", "limit"] = "tokens"
    """tokens: all tokens count alike; answers: all answers do; limit: as tokens, divided by what all answers could
    have had."""
    averages: bool = True
    """Where answers count alike, whether each counts by the mean of its tokens; else by their sum."""
    scales: bool = True
    """Whether advantages are divided by their group's spread where nobody says otherwise."""


def clip(ratio: Tensor, advantage: Tensor, lp: Tensor, settings: SamplingSpec) -> tuple[Tensor, Tensor]:
    """-min(R A, clip(R, 1 - e_low, 1 + e_high) A), with min(R, delta) in the place of the first R where delta is set.

    Schulman et al., 2017 (arXiv:1707.06347); e_high apart: DAPO; delta: arXiv:2505.07291.
    """
    import torch

    low, high, most = 1 - settings.epsilon_low, 1 + settings.epsilon_high, settings.delta or math.inf
    losses = -torch.minimum(ratio.clamp(max=most) * advantage, ratio.clamp(low, high) * advantage)
    stopped = (advantage > 0) & (ratio > min(high, most))
    stopped |= (advantage < 0) & ((ratio < low) | (ratio > max(high, most)))
    return losses, (-advantage * ratio).masked_fill(stopped, 0.0)


def weigh(ratio: Tensor, advantage: Tensor, lp: Tensor, settings: SamplingSpec) -> tuple[Tensor, Tensor]:
    """-min(R, cap) A lp, where R has no gradient: every token teaches, however far it has moved."""
    pull = -ratio.detach().clamp(max=settings.cispo_cap) * advantage
    return pull * lp, pull


def gate(ratio: Tensor, advantage: Tensor, lp: Tensor, settings: SamplingSpec) -> tuple[Tensor, Tensor]:
    """-4 s(t (R - 1)) A / t: a soft gate in the place of a bound, narrower for worse answers (arXiv:2511.20347)."""
    import torch

    narrow = torch.where(advantage > 0, *GATES)
    opened = torch.sigmoid(narrow * (ratio - 1))
    return -4 * opened / narrow * advantage, -4 * advantage * ratio * opened * (1 - opened)


VARIANTS: dict[str, Variant] = {
    "dapo": Variant(clip),  # arXiv:2503.14476
    "bnpo": Variant(clip),  # the same where no step is cut into batches of their own, as here
    "grpo": Variant(clip, divided_by="answers"),  # arXiv:2402.03300
    "dr_grpo": Variant(clip, divided_by="limit", scales=False),  # arXiv:2503.20783
    "gspo": Variant(clip, of="mean", divided_by="answers"),  # arXiv:2507.18071
    "cispo": Variant(weigh),  # arXiv:2506.13585
    "rloo": Variant(clip, of="sum", divided_by="answers", averages=False, scales=False),  # arXiv:2402.14740
    "sapo": Variant(gate, divided_by="answers"),  # arXiv:2511.20347
    "luspo": Variant(clip, of="mean", divided_by="answers", averages=False),  # arXiv:2602.05261
}


class GroupRelativePolicyOptimization(Objective):
    """Answers better than their group gain, worse ones lose, within bounds of how far one rollout may move them."""

    name = "grpo"
    answers_again = True
    wants_entropy = True
    settings: SamplingSpec

    def __init__(self, settings: SamplingSpec | None = None) -> None:
        self.settings = settings or SamplingSpec()

    @property
    def variant(self) -> Variant:
        """The chosen loss."""
        return VARIANTS[self.settings.loss]

    @property
    def temperature(self) -> float:
        """See Objective."""
        return self.settings.temperature

    @property
    def updates(self) -> int:
        """See Objective."""
        return self.settings.updates

    @property
    def beta(self) -> float:
        """How much the distance from the start counts in the loss; RLOO has it in the reward."""
        return 0.0 if self.variant.of == "sum" else self.settings.beta

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """See Objective."""
        drift = (Metric(name="kl", first=True),) if self.beta else ()
        return (*drift, Metric(name="entropy", unit="nats", first=True), *CLIPPED, DISTANCE)

    def view(self, examples: Sequence[Example]) -> Sequence[Example]:
        """See Objective: each prompt with the longest answer that it may get, for plans and the trial."""
        return FillerAnswers(examples, self.settings.answer_tokens)

    def count(self, example: Example) -> float:
        """See Objective."""
        if self.variant.divided_by == "tokens":
            return float(count_trained(example))
        share = example.drawn.share if example.drawn is not None else 1.0
        return share * (self.settings.answer_tokens if self.variant.divided_by == "limit" else 1)

    def loss(self, log_probabilities: Tensor, picked: Picked) -> Terms:
        """See Objective."""
        import torch

        variant, settings, lp = self.variant, self.settings, log_probabilities
        old = lp if picked.old is None else picked.old
        counts = picked.counts.clamp(min=1).float()
        moved = self._gather(lp - old, picked, counts)
        of_token = variant.of == "token"
        advantages = picked.spread(picked.advantages, len(lp)) if of_token else picked.advantages
        ratio = moved.exp()
        losses, pull = variant.bound(ratio, advantages, lp, settings)
        if picked.sampled is not None and settings.importance_cap:
            # What was drawn by other kernels than are trained counts as often as these would have drawn it.
            trust = (
                self._gather(old - picked.sampled, picked, counts).exp().clamp(max=settings.importance_cap)
            )
            losses, pull = losses * trust, pull * trust
        low = (advantages < 0) & (ratio < 1 - settings.epsilon_low)
        high = (advantages > 0) & (ratio > 1 + settings.epsilon_high)
        if not of_token:
            # The mean's derivative is a share of the answer's: as if each token had the answer's loss for its own.
            losses = picked.spread(losses / counts if variant.of == "sum" else losses, len(lp))
            pull = picked.spread(pull, len(lp))
        metrics = {}
        if self.beta:
            drift, by_lp = self._drift(lp, ratio, picked, counts)
            losses, pull = losses + self.beta * drift, pull + self.beta * by_lp
            metrics["kl"] = (drift.sum(), lp.new_full((), len(lp)))
        if variant.divided_by == "answers" and variant.averages:
            weights = picked.spread(1 / counts, len(lp))
            losses, pull = losses * weights, pull * weights
        units = lp.new_full((), len(ratio))
        shares = zip(CLIPPED, (low, high, low | high), strict=True)
        metrics |= {metric.name: (one.float().sum(), units) for metric, one in shares}
        told = picked.entropies is not None
        metrics["entropy"] = (
            (picked.entropies if told else lp.new_zeros(1)).sum(),
            lp.new_full((), told * len(lp)),
        )
        off = torch.zeros_like(old) if picked.sampled is None else (old - picked.sampled).abs()
        told = 0 if picked.sampled is None else len(lp)
        metrics[DISTANCE.name] = (off.sum(), lp.new_full((), told))
        return Terms(loss=losses.sum(), gradient=pull, metrics=metrics)

    def _gather(self, values: Tensor, picked: Picked, counts: Tensor) -> Tensor:
        """Return log-ratios of tokens (N,) as those of what the variant's ratio is of: (N,) or (S,)."""
        if self.variant.of == "token":
            return values
        sums = picked.sum_sequences(values)
        return sums / counts if self.variant.of == "mean" else sums

    def _drift(self, lp: Tensor, ratio: Tensor, picked: Picked, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's distance from the reference and its derivative in lp, (N,) both.

        d = R (e^D - D - 1), D = lp0 - lp: Schulman's k3, with the ratio that makes its gradient unbiased
        (arXiv:2512.02556). R has a derivative, too: of a token's own ratio dd/dlp = -R D.
        """
        import torch

        apart = (lp if picked.reference is None else picked.reference) - lp  # a trial's answers have none
        plain = torch.expm1(apart) - apart
        if self.variant.of == "token":
            return ratio * plain, -ratio * apart
        drift = picked.spread(ratio, len(lp)) * plain
        shared = picked.spread(picked.sum_sequences(drift) / counts, len(lp))
        return drift, shared - picked.spread(ratio, len(lp)) * torch.expm1(apart)


GRPO = GroupRelativePolicyOptimization()
