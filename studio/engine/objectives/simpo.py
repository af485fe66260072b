"""Simple preference optimization: the mean log-probability of better answers gains on that of worse ones.

    L = -log s(beta (c / n_c - r / n_r) - gamma)

Meng et al., 2024 (arXiv:2405.14734). Needs no reference.
"""

from __future__ import annotations

from studio.engine.objectives.dpo import smooth
from studio.engine.objectives.pairs import Compared, PairObjective, Sides


class SimplePreferenceOptimization(PairObjective):
    """The margin of tokens' means, beyond a wanted one."""

    name = "simpo"
    usual_beta = 2.0
    averaged = True

    def compare(self, sides: Sides) -> Compared:
        """See PairObjective."""
        settings = self.settings
        beta = self.beta
        good, bad = sides.chosen / sides.chosen_tokens, sides.rejected / sides.rejected_tokens
        losses, by_good, by_bad = smooth(beta * (good - bad) - settings.gamma, beta, settings.label_smoothing)
        return Compared(
            losses, by_good / sides.chosen_tokens, by_bad / sides.rejected_tokens, (beta * good, beta * bad)
        )


SIMPO = SimplePreferenceOptimization()
