"""A gate of which only the largest values pass, as if they were normally distributed (Gemma 3n's first layers).

    c = max(0, g - mu - k s)        mu, s: mean and standard deviation of a row's I values
    dg = M dc - (sum M dc) / I (1 + k (g - mu) / s),        M = 1 where c > 0

k is the normal distribution's quantile of the share that is cut. T rows; sums in fp32. Source: Gemma 3n's code in
transformers; checked against float64 autograd.
"""

from __future__ import annotations

from torch import Tensor, empty_like, std_mean

from studio.models.decoder.structure import CUT_ROWS


def cut_gate(gate: Tensor, quantile: float) -> Tensor:
    """Return c (T, I) of g, in memory of its own."""
    out = empty_like(gate)
    for g, place in zip(gate.split(CUT_ROWS), out.split(CUT_ROWS), strict=True):
        wide = g.float()
        spread, mean = std_mean(wide, 1, correction=0, keepdim=True)
        place.copy_((wide - (mean + quantile * spread)).relu_())
    return out


def cut_gate_backward(dcut: Tensor, gate: Tensor, quantile: float, out: Tensor) -> None:
    """Write dg (T, I) to `out`, which may be `gate`, given dc, which is used up, and g."""
    parts = (dcut.split(CUT_ROWS), gate.split(CUT_ROWS), out.split(CUT_ROWS))
    for dc, g, place in zip(*parts, strict=True):
        wide = g.float()
        spread, mean = std_mean(wide, 1, correction=0, keepdim=True)
        passed = dc.float().masked_fill_(wide <= mean + quantile * spread, 0.0)
        share = passed.sum(1, keepdim=True) / wide.shape[1]
        place.copy_(passed.sub_((wide - mean).mul_(quantile / spread).add_(1.0).mul_(share)))
