"""Direct preference optimization and its kin: better answers gain on worse ones, beside a model that stands still.

    u = beta (c - c0)     v = beta (r - r0)     d = u - v     c0, r0: by the model as it was before the first step

Rafailov et al., 2023 (arXiv:2305.18290). Each loss with its source at its function; `e` is the share of pairs that are
labelled the wrong way round (label smoothing).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from studio.engine.objectives.pairs import Compared, PairObjective, Sides

if TYPE_CHECKING:
    from torch import Tensor


class DirectPreferenceOptimization(PairObjective):
    """The margin over the reference, by one of LOSSES."""

    name = "dpo"
    needs_reference = True

    def compare(self, sides: Sides) -> Compared:
        """See PairObjective."""
        settings = self.settings
        beta = self.beta
        name = "sigmoid" if settings.loss == "auto" else settings.loss
        losses, by_chosen, by_rejected = LOSSES[name](sides, beta, settings.label_smoothing)
        return Compared(losses, by_chosen, by_rejected, (beta * sides.chosen, beta * sides.rejected))


Three = tuple["Tensor", "Tensor", "Tensor"]
"""Losses, and their derivatives in the chosen's and the rejected's sum."""


def sigmoid(sides: Sides, beta: float, e: float) -> Three:
    """-(1 - e) log s(d) - e log s(-d); with e > 0 cDPO (Mitchell, 2023)."""
    return smooth(beta * (sides.chosen - sides.rejected), beta, e)


def smooth(d: Tensor, beta: float, e: float) -> Three:
    """Return -(1 - e) log s(d) - e log s(-d) and its derivatives, where d grows by `beta` with the chosen's sum."""
    import torch
    from torch.nn.functional import logsigmoid

    by_d = e * torch.sigmoid(d) - (1 - e) * torch.sigmoid(-d)
    return -(1 - e) * logsigmoid(d) - e * logsigmoid(-d), beta * by_d, -beta * by_d


def robust(sides: Sides, beta: float, e: float) -> Three:
    """[-(1 - e) log s(d) + e log s(-d)] / (1 - 2 e), unbiased under labels that are wrong at rate e (2403.00409)."""
    import torch
    from torch.nn.functional import logsigmoid

    d = beta * (sides.chosen - sides.rejected)
    by_d = -((1 - e) * torch.sigmoid(-d) + e * torch.sigmoid(d)) / (1 - 2 * e)
    losses = (-(1 - e) * logsigmoid(d) + e * logsigmoid(-d)) / (1 - 2 * e)
    return losses, beta * by_d, -beta * by_d


def hinge(sides: Sides, beta: float, e: float) -> Three:
    """max(0, 1 - d) (SLiC-HF, 2305.10425)."""
    d = beta * (sides.chosen - sides.rejected)
    pull = beta * (d < 1).to(d.dtype)
    return (1 - d).relu(), -pull, pull


def ipo(sides: Sides, beta: float, e: float) -> Three:
    """[(c - c0) / n_c - (r - r0) / n_r - 1 / (2 beta)]^2 (2310.12036); over tokens' means, as its authors ran it."""
    off = sides.chosen / sides.chosen_tokens - sides.rejected / sides.rejected_tokens - 1 / (2 * beta)
    return off.square(), 2 * off / sides.chosen_tokens, -2 * off / sides.rejected_tokens


def sigmoid_norm(sides: Sides, beta: float, e: float) -> Three:
    """-log s of the difference of tokens' means: an answer does not win by its length."""
    means = sides.chosen / sides.chosen_tokens - sides.rejected / sides.rejected_tokens
    losses, by_chosen, by_rejected = smooth(beta * means, beta, e)
    return losses, by_chosen / sides.chosen_tokens, by_rejected / sides.rejected_tokens


def apo_zero(sides: Sides, beta: float, e: float) -> Three:
    """1 - s(u) + s(v) (2408.06266): for chosen answers that are better than the model's own."""
    good, bad = (beta * sides.chosen).sigmoid(), (beta * sides.rejected).sigmoid()
    return 1 - good + bad, -beta * good * (1 - good), beta * bad * (1 - bad)


def apo_down(sides: Sides, beta: float, e: float) -> Three:
    """s(u) + 1 - s(d) (2408.06266): for chosen answers that are worse than the model's own."""
    good, gap = (beta * sides.chosen).sigmoid(), (beta * (sides.chosen - sides.rejected)).sigmoid()
    by_gap = beta * gap * (1 - gap)
    return good + 1 - gap, beta * good * (1 - good) - by_gap, by_gap


LOSSES: dict[str, Callable[[Sides, float, float], Three]] = {
    "sigmoid": sigmoid,
    "ipo": ipo,
    "hinge": hinge,
    "robust": robust,
    "apo_zero": apo_zero,
    "apo_down": apo_down,
    "sigmoid_norm": sigmoid_norm,
}
DPO = DirectPreferenceOptimization()
