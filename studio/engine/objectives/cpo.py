"""Contrastive preference optimization: DPO without a reference, held by the loss of the better answers.

    L = l(beta (c - r)) + w NLL(chosen)

Xu et al., 2024 (arXiv:2401.08417), with w = 1.
"""

from __future__ import annotations

from studio.engine.objectives.dpo import hinge, ipo, sigmoid
from studio.engine.objectives.pairs import NLL, REWARDS, Compared, PairObjective, Sides

LOSSES = {"sigmoid": sigmoid, "hinge": hinge, "ipo": ipo}
USUAL_WEIGHT = 1.0


class ContrastivePreferenceOptimization(PairObjective):
    """The margin itself, and the loss of the better answers."""

    name = "cpo"
    metrics = (NLL, *REWARDS)

    @property
    def averaged(self) -> bool:
        """See PairObjective."""
        return self.settings.loss == "ipo"

    @property
    def nll_weight(self) -> float:
        """See PairObjective."""
        return self.settings.nll_weight or USUAL_WEIGHT

    def compare(self, sides: Sides) -> Compared:
        """See PairObjective."""
        settings = self.settings
        beta = self.beta
        name = "sigmoid" if settings.loss == "auto" else settings.loss
        losses, by_chosen, by_rejected = LOSSES[name](sides, beta, settings.label_smoothing)
        rewards = beta * sides.chosen, beta * sides.rejected
        if self.averaged:
            rewards = rewards[0] / sides.chosen_tokens, rewards[1] / sides.rejected_tokens
        return Compared(losses, by_chosen, by_rejected, rewards)


CPO = ContrastivePreferenceOptimization()
