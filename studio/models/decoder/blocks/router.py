"""The router of experts: which experts take a token and with what weights, forward and backward by hand.

    z = x W^T + b        scores q = softmax(z) or sigmoid(z)        chosen i_1..i_k: the k largest of q + c, or of z
    v_j = q[i_j]         n_j = v_j / (sum v + eps)                  w_j = f n_j

c is a correction that only the choice sees (DeepSeek-V3), and the choice may first be narrowed to the groups of experts
with the best two members. Where the choice comes first (gpt-oss), q is the softmax of the k chosen z. T tokens,
E experts, H hidden width. The choice has no gradient. Sources: Shazeer et al. 2017, arXiv:1701.06538; DeepSeek-AI 2024,
arXiv:2412.19437; balance: Fedus et al. 2021, arXiv:2101.03961, (4) to (6), as transformers sums it over layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from studio_kernels.grouped_matmul import Groups
from studio_kernels.matmul import multiply_into
from torch import Tensor
from torch.nn import functional

SOFTMAX, SIGMOID, CHOSEN_SOFTMAX = "softmax", "sigmoid", "chosen softmax"
"""The last: the softmax of the chosen logits alone."""


@dataclass(slots=True)
class Routes:
    """What one router decided for T tokens; the S = T k rows of the experts are sorted by expert."""

    logits: Tensor
    """(T, E)"""
    chosen: Tensor
    """(T, k) experts."""
    weights: Tensor
    """(T, k)"""
    order: Tensor
    """(S,): sorted row -> place in (T, k)."""
    places: Tensor
    """(S,): place in (T, k) -> sorted row."""
    experts: Tensor
    """(S,): the expert of each sorted row."""
    groups: Groups

    @classmethod
    def of(cls, logits: Tensor, chosen: Tensor, weights: Tensor) -> Routes:
        """The Routes of tokens whose `chosen` experts (T, k) and `weights` (T, k) are given."""
        experts, order = torch.sort(chosen.reshape(-1), stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(order.shape[0], device=order.device)
        return cls(logits, chosen, weights, order, places, experts, Groups.of(experts, logits.shape[1]))

    @property
    def tokens(self) -> Tensor:
        """(S,): the token of each sorted row."""
        return self.order // self.chosen.shape[1]

    def spread(self, x: Tensor) -> Tensor:
        """Return the rows of x (T, H) as the experts take them, (S, H)."""
        return x.index_select(0, self.tokens)

    def gather(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the sum of each token's k rows, (T, H), times `weights` (T, k) where given, in a fixed order."""
        found = rows.index_select(0, self.places).unflatten(0, self.chosen.shape)
        if weights is not None:
            found.mul_(weights[:, :, None])  # rounded to the rows' dtype before the sum, as transformers does
        return found.sum(1)


@dataclass(frozen=True, slots=True)
class RouterEntry:
    """What is done to rows before they are scored: x' = f x / rms(x) s, rounded after each step (Gemma 4)."""

    eps: float
    scale: Tensor
    """(H,)"""
    factor: float

    def forward(self, x: Tensor) -> Tensor:
        """Return x' of x (T, H)."""
        return self._normalise(x)[0] * self.scale.to(x.dtype) * self.factor

    def backward(self, dx: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of x from that of x', (T, H)."""
        normal, r = self._normalise(x)
        slope = dx.to(r.dtype) * self.scale.to(r.dtype) * self.factor
        return (r * (slope - normal * (slope * normal).mean(-1, keepdim=True))).to(dx.dtype)

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x / rms(x), (T, H), and 1 / rms(x), (T, 1)."""
        wide = x.to(_wide(x))
        r = (wide.square().mean(-1, keepdim=True) + self.eps).pow(-0.5)
        return (wide * r).to(x.dtype), r


@dataclass(kw_only=True, slots=True)
class Router:
    """See the file's docstring."""

    weight: Tensor
    """(E, H)"""
    top_k: int
    bias: Tensor | None = None
    """(E,), part of the logits."""
    scores: str = SOFTMAX
    normalised: bool = False
    epsilon: float = 0.0
    scaling: float = 1.0
    correction: Tensor | None = None
    """(E,), added for the choice alone."""
    entry: RouterEntry | None = None
    """None: rows are scored as they are."""
    expert_scale: Tensor | None = None
    """(E,), times the weights."""
    group_count: int = 1
    groups_chosen: int = 1
    wide: bool = False
    """Logits in float32, whatever the rows are."""
    rounded: bool = True
    """Weights in the logits' dtype; else they stay float32."""
    weight_gradient: Tensor | None = field(default=None)
    """(E, H) float32, added to; None: frozen."""
    bias_gradient: Tensor | None = field(default=None)

    def forward(self, x: Tensor) -> Routes:
        """Return the Routes of x (T, H); nothing waits for the GPU."""
        logits = self._logits(x if self.entry is None else self.entry.forward(x))
        return Routes.of(logits, *self._choose(logits))

    def backward(
        self, dweights: Tensor, x: Tensor, routes: Routes, *, dx: Tensor, balance: Tensor | None = None
    ) -> Tensor:
        """Add the router's part to `dx` (T, H) and return it.

        `dweights` (T, k); `balance` (E,): the gradient of every token's softmax probabilities (see BalanceLoss).
        """
        dlogits = self._backward_choice(dweights, routes)
        if balance is not None:
            probabilities = torch.softmax(routes.logits, -1, dtype=_wide(routes.logits))
            dlogits += probabilities * (balance - probabilities @ balance[:, None])
        dlogits = dlogits.to(routes.logits.dtype)
        if self.weight_gradient is not None:
            rows = x if self.entry is None else self.entry.forward(x)
            multiply_into(dlogits.T, rows.to(dlogits.dtype), self.weight_gradient, add=True)
        if self.bias_gradient is not None:
            self.bias_gradient.add_(dlogits.sum(0, dtype=self.bias_gradient.dtype))
        drows = dlogits @ self.weight.to(dlogits.dtype)
        return dx.add_(drows if self.entry is None else self.entry.backward(drows, x))

    def _logits(self, x: Tensor) -> Tensor:
        dtype = _wide(x) if self.wide else x.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        return functional.linear(x.to(dtype), self.weight.to(dtype), bias)

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return experts and weights, both (T, k)."""
        if self.scores == CHOSEN_SOFTMAX:
            values, chosen = torch.topk(logits, self.top_k, dim=-1)
            return chosen, torch.softmax(values, -1)
        scores = self._score(logits)
        chosen = torch.topk(self._open(scores), self.top_k, dim=-1)[1]
        values = scores.gather(1, chosen)
        if self.normalised:
            values = values / (values.sum(-1, keepdim=True) + self.epsilon)
        if self.scaling != 1.0:
            values = values * self.scaling
        if self.expert_scale is not None:
            values = values * self.expert_scale[chosen].to(values.dtype)
        return chosen, values.to(logits.dtype) if self.rounded else values

    def _score(self, logits: Tensor) -> Tensor:
        if self.scores == SIGMOID:
            return logits.to(_wide(logits)).sigmoid()
        return torch.softmax(logits, -1, dtype=_wide(logits))

    def _open(self, scores: Tensor) -> Tensor:
        """Return what the choice goes by: corrected scores, -inf in the groups that are out."""
        ranked = scores if self.correction is None else scores + self.correction
        if self.group_count == 1:
            return ranked
        grouped = ranked.unflatten(1, (self.group_count, -1))
        best = grouped.topk(2, dim=-1)[0].sum(-1)
        inside = torch.topk(best, self.groups_chosen, dim=-1, sorted=False)[1]
        out = torch.ones_like(best, dtype=torch.bool).scatter_(1, inside, False)
        return grouped.masked_fill(out[:, :, None], float("-inf")).flatten(1)

    def _backward_choice(self, dweights: Tensor, routes: Routes) -> Tensor:
        """Return dz (T, E) in the scores' dtype."""
        logits, chosen = routes.logits, routes.chosen
        if self.scores == CHOSEN_SOFTMAX:
            weights = routes.weights.to(_wide(logits))
            dvalues = weights * (dweights - (dweights * weights).sum(-1, keepdim=True))
            return torch.zeros_like(logits, dtype=dvalues.dtype).scatter_(1, chosen, dvalues)
        scores = self._score(logits)
        values = scores.gather(1, chosen)
        dvalues = dweights.to(scores.dtype) * self.scaling
        if self.expert_scale is not None:
            dvalues = dvalues * self.expert_scale[chosen].to(dvalues.dtype)
        if self.normalised:
            total = values.sum(-1, keepdim=True) + self.epsilon
            dvalues = (dvalues - (dvalues * values).sum(-1, keepdim=True) / total) / total
        if self.scores == SIGMOID:
            dvalues = dvalues * values * (1 - values)
            return torch.zeros_like(scores).scatter_(1, chosen, dvalues)
        # dz = q (dq - sum q dq), where dq is 0 but at the chosen.
        products = dvalues * values
        dlogits = scores * -products.sum(-1, keepdim=True)
        return dlogits.scatter_add_(1, chosen, products)


@dataclass(slots=True)
class BalanceLoss:
    """c E sum_e f_e P_e over the tokens of all layers.

    f_e: how often the k most probable experts hold e; P_e: its mean probability.
    """

    coefficient: float
    top_k: int
    counts: Tensor
    """(E,) float32 (or wider), how many tokens of all layers had e among their k."""
    sums: Tensor
    """(E,), the probabilities' sum."""
    rows: int = 0
    """Tokens, each counted once a layer."""

    @classmethod
    def empty(cls, experts: int, coefficient: float, top_k: int, like: Tensor) -> BalanceLoss:
        """Nothing noted yet; sums as wide as the logits `like`, float32 at least."""
        counts, sums = torch.zeros(2, experts, dtype=_wide(like), device=like.device)
        return cls(coefficient, top_k, counts, sums)

    def note(self, logits: Tensor) -> None:
        """Take in one layer's logits (T, E)."""
        probabilities = torch.softmax(logits, -1)
        most = torch.topk(probabilities, self.top_k, dim=-1)[1]
        hits = torch.zeros_like(probabilities).scatter_(1, most, 1)  # no atomics: each place is written once
        self.counts.add_(hits.sum(0, dtype=self.counts.dtype))
        self.sums.add_(probabilities.sum(0, dtype=self.sums.dtype))
        self.rows += logits.shape[0]

    def loss(self) -> Tensor:
        """() what is added to the loss."""
        return (self.counts * self.sums).sum() * (self.coefficient * self.counts.shape[0] / self.rows**2)

    def gradient(self) -> Tensor:
        """(E,) the gradient of each token's probability of e, once all layers are noted."""
        return self.counts * (self.coefficient * self.counts.shape[0] / self.rows**2)


def _wide(x: Tensor) -> torch.dtype:
    """The dtype of scores: float32, as in transformers; float64 in comparisons."""
    return torch.promote_types(x.dtype, torch.float32)
