"""The state space of Mamba 2's mixers in chunks, with a backward pass by hand: Dao and Gu 2024, arXiv:2405.21060.

    d = clamp(softplus(raw + bias))        a = A d        u = d x        k_t = sum of a up to t in its chunk
    h_t = exp(a_t) h_{t-1} + b_t u_t^T        y_t = h_t^T c_t + D x_t

Within a chunk y is a masked product, y_t = sum_{s <= t} exp(k_t - k_s) (c_t b_s) u_s; to the next one goes a state,
h' = exp(k) h + sum_s exp(k_end - k_s) b_s u_s^T, which adds exp(k_t) h^T c_t. Scores c b are those of a group of heads,
and one product for all of them. Nothing but the inputs is kept: backward() computes the rest again.

With z = exp(...) any of these factors, dk of its exponent is z dz, which is the sum of what it weighed times the slope
that came back. The gradient of a_t is the sum of dk from t to the chunk's end, in which most of it cancels.

D documents   T tokens   H heads of P columns in G groups of R   N states   C chunks of Q tokens. Sums of exponents, and
of what comes back to them, are float64: in float32 the difference of two of -400 is off by 3e-5, and so was a gradient.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from studio.models.borrowed_forward import borrow, find_function
from studio.models.gated_norm import GatedFirst, gates_first

SCAN = "mamba2_chunk_scan"
"""What transformers' files call the function that goes through a text in chunks."""
ARGUMENTS = ("hidden_states", "dt", "A", "B", "C")
"""Its first ones."""
LIBRARY = "mamba_ssm"
"""With its kernels transformers calls these by that name."""
CHUNK = 128
"""Tokens of a chunk: work within one grows with them, and states, of N P numbers a head, with their number."""
PORTION = 2**22
"""Scores that are computed at once: 16 MiB in float32, and their exponents 32 in float64."""
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Scan:
    """What both passes need of their inputs; `heads` is (G, R)."""

    heads: tuple[int, int]
    u: Tensor
    """(D, C, G, Q, R, P)"""
    b: Tensor
    """(D, C, G, Q, N)"""
    c: Tensor
    k: Tensor
    """(D, C, G, R, Q) float64"""
    until: Tensor
    """(D, C, G, Q, R) exp(k_end - k)"""
    since: Tensor
    """(D, C, G, Q, R) exp(k)"""
    carry: Tensor
    """(D, G, R, C, C) what of each chunk's states is left where another begins."""

    @classmethod
    def of(cls, u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Scan:
        """Return it of u (D, T, H, P), a (D, T, H), b and c (D, T, G, N)."""
        groups = b.shape[2]
        heads = groups, u.shape[2] // groups
        k = _cut(a).unflatten(3, heads).permute(0, 1, 3, 4, 2).double().cumsum(-1)
        total = k[..., -1].cumsum(1)  # (D, C, G, R) to the end of each chunk
        begins = total - k[..., -1]
        exponent = begins.permute(0, 2, 3, 1)[..., None] - total.permute(0, 2, 3, 1)[..., None, :]
        earlier = torch.ones(exponent.shape[-2:], dtype=torch.bool, device=u.device).tril(-1)
        return cls(
            heads=heads,
            u=_cut(u).unflatten(3, heads).transpose(2, 3),
            b=_cut(b).transpose(2, 3),
            c=_cut(c).transpose(2, 3),
            k=k,
            until=(k[..., -1:] - k).exp().to(u.dtype).transpose(3, 4),
            since=k.exp().to(u.dtype).transpose(3, 4),
            carry=exponent.masked_fill(~earlier, -torch.inf).exp().to(u.dtype),
        )

    def carry_on(self, states: Tensor, *, back: bool = False) -> Tensor:
        """Return (D, C, G, N, R P): what chunks begin with of the states that each adds; `back`: its transpose."""
        carry = self.carry.transpose(3, 4) if back else self.carry
        spread = states.unflatten(4, (self.heads[1], -1)).permute(0, 2, 4, 1, 3, 5)  # (D, G, R, C, N, P)
        found = (carry @ spread.flatten(4)).view(spread.shape)
        return found.permute(0, 3, 1, 4, 2, 5).flatten(4)

    def add_states(self) -> Tensor:
        """Return the states (D, C, G, N, R P) that each chunk adds."""
        return self.b.transpose(3, 4) @ (self.u * self.until[..., None]).flatten(4)

    def list_portions(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Give chunks that are computed at once, their scores c b (D, c, G, 1, Q, Q), and what weighs those.

        The latter is (D, c, G, R, Q, Q), zero above the diagonal.
        """
        documents, chunks, groups, heads, tokens = self.k.shape
        size = max(1, PORTION // (documents * groups * heads * tokens**2))
        later = torch.ones(tokens, tokens, dtype=torch.bool, device=self.k.device).triu(1)
        for first in range(0, chunks, size):
            part = slice(first, first + size)
            k = self.k[:, part]
            exponent = (k[..., :, None] - k[..., None, :]).to(self.u.dtype)
            scores = self.c[:, part] @ self.b[:, part].transpose(3, 4)
            yield part, scores[:, :, :, None], exponent.masked_fill_(later, -torch.inf).exp_()

    def by_head(self, rows: Tensor) -> Tensor:
        """Return (D, c, G, R, Q, P) of (D, c, G, Q, R, P)."""
        return rows.transpose(3, 4)

    def join(self, rows: Tensor, tokens: int) -> Tensor:
        """Return (D, T, H, ...) of (D, C, G, Q, R, ...)."""
        return rows.transpose(2, 3).flatten(3, 4).flatten(1, 2)[:, :tokens]


def _cut(rows: Tensor) -> Tensor:
    """Return (D, C, Q, ...) of (D, T, ...), zeros behind the last: they add nothing and let nothing fade."""
    missing = -rows.shape[1] % CHUNK
    padded = functional.pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing)) if missing else rows
    return padded.unflatten(1, (-1, CHUNK))


def scan_forward(u: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return y (D, T, H, P), without D x, of u (D, T, H, P), a (D, T, H), b and c (D, T, G, N), in their dtype."""
    scan = Scan.of(u, a, b, c)
    y = (scan.c @ scan.carry_on(scan.add_states())).view(scan.u.shape) * scan.since[..., None]
    for part, scores, weights in scan.list_portions():
        y[:, part] += scan.by_head(weights.mul_(scores) @ scan.by_head(scan.u[:, part]))
    return scan.join(y, u.shape[1])


def scan_backward(
    dy: Tensor, u: Tensor, a: Tensor, b: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, a, b and c."""
    scan, tokens = Scan.of(u, a, b, c), u.shape[1]
    dy = _cut(dy).unflatten(3, scan.heads).transpose(2, 3)
    begun, slope = scan.carry_on(scan.add_states()), (dy * scan.since[..., None]).flatten(4)
    # What chunks begin with: y = exp(k) c h.
    dk = ((scan.c @ begun) * slope).unflatten(4, (scan.heads[1], -1)).sum(-1).double()  # (D, C, G, Q, R)
    dc = slope @ begun.transpose(3, 4)
    dbegun = scan.c.transpose(3, 4) @ slope
    # What they add to it: h' = exp(k) h + sum exp(k_end - k) b u.
    dstates = scan.carry_on(dbegun, back=True)
    du = (scan.b @ dstates).view(scan.u.shape) * scan.until[..., None]
    db = (scan.u * scan.until[..., None]).flatten(4) @ dstates.transpose(3, 4)
    faded = (du * scan.u).sum(-1, dtype=torch.float64)
    dk -= faded
    kept = (begun * dstates).unflatten(4, (scan.heads[1], -1)).sum((3, 5))  # (D, C, G, R)
    dk[:, :, :, -1] += faded.sum(3) + kept * scan.since[:, :, :, -1]
    del begun, slope, dbegun, dstates, faded
    # Within each chunk: y = (exp(k_t - k_s) c b) u.
    for part, scores, weights in scan.list_portions():
        upstream = scan.by_head(dy[:, part])
        du[:, part] += scan.by_head((weights * scores).transpose(4, 5) @ upstream)
        dweights = (upstream @ scan.by_head(scan.u[:, part]).transpose(4, 5)).mul_(weights)
        dscores = dweights.sum(3)
        dc[:, part] += dscores @ scan.b[:, part]
        db[:, part] += dscores.transpose(3, 4) @ scan.c[:, part]
        both = dweights.mul_(scores)
        dk[:, part] += (both.sum(5, dtype=dk.dtype) - both.sum(4, dtype=dk.dtype)).transpose(3, 4)
    da = dk.flip(3).cumsum(3).flip(3).to(u.dtype)
    groups = (rows.transpose(2, 3).flatten(1, 2)[:, :tokens] for rows in (db, dc))
    return scan.join(du, tokens), scan.join(da, tokens), *groups


class _StateSpace(torch.autograd.Function):
    """y (D, T, H, P) in float32, or float64, of x (D, T, H, P), raw (D, T, H), A (H,), b and c, D (H,), bias (H,)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, raw: Tensor, rate: Tensor, b: Tensor, c: Tensor, skip: Tensor, bias: Tensor,
        limits: tuple[float, float],
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, raw, rate, b, c, skip, bias)
        ctx.limits = limits
        with torch.autocast(x.device.type, enabled=False):
            x, raw, rate, b, c, skip, bias = map(_widen, (x, raw, rate, b, c, skip, bias))
            d = functional.softplus(raw + bias).clamp(*limits)
            return scan_forward(x * d[..., None], rate * d, b, c).add_(x * skip[:, None])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        given = ctx.saved_tensors
        with torch.autocast(dy.device.type, enabled=False):
            x, raw, rate, b, c, skip, bias = map(_widen, given)
            dy, raw = _widen(dy), raw + bias
            plain = functional.softplus(raw)
            d = plain.clamp(*ctx.limits)
            du, da, db, dc = scan_backward(dy, x * d[..., None], rate * d, b, c)
            dd = (du * x).sum(-1).add_(da * rate)
            draw = dd * torch.sigmoid(raw) * (plain == d)
            dx = du.mul_(d[..., None]).add_(dy * skip[:, None])
            found = (
                dx, draw, (da * d).sum((0, 1)), db, dc, (dy * x).sum((0, 1, 3)), draw.sum((0, 1)),
            )  # fmt: skip
        return *(one.to(like.dtype) for one, like in zip(found, given, strict=True)), None


def _widen(part: Tensor) -> Tensor:
    return part.to(torch.promote_types(part.dtype, torch.float32))


class ChunkedScan:
    """Computes a text's state space by ours where nothing is asked for that only generating needs, else by `stock`."""

    def __init__(self, stock: Function) -> None:
        self._stock = stock

    def __call__(
        self,
        hidden_states: Tensor,  # (D, T, H, P)
        dt: Tensor,  # (D, T, H)
        A: Tensor,  # noqa: N803  (H,)
        B: Tensor,  # noqa: N803  (D, T, G, N)
        C: Tensor,  # noqa: N803  (D, T, G, N)
        *arguments: Any,
        D: Tensor | None = None,  # noqa: N803  (H,)
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        **options: Any,
    ) -> Any:
        """Return y (D, T, H, P) in float32, as transformers' function does."""
        asked = {name: value for name, value in options.items() if name != "chunk_size"}
        plain = not arguments and not any(
            value is not None and value is not False for value in asked.values()
        )
        if not plain or D is None or D.dim() != 1 or dt_bias is None or not dt_softplus or A.dim() != 1:
            options |= {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
            return self._stock(hidden_states, dt, A, B, C, *arguments, **options)
        limits = tuple(float(limit) for limit in dt_limit)
        return _StateSpace.apply(hidden_states, dt, A, B, C, D, dt_bias, limits)


def has_state_space(module: nn.Module) -> bool:
    """Return whether the code of `module` calls the scan by that name, and not a library's kernels."""
    if importlib.util.find_spec(LIBRARY) is not None:
        return False
    # A wrapper around forward may move the weights of its parts, as accelerate's does.
    hooked = any(hasattr(part, "_hf_hook") for part in module.modules())
    return find_function(module, SCAN, ARGUMENTS) is not None and not hooked


def borrow_scan(module: nn.Module) -> Function:
    """Return the `forward` of `module`'s class, to be called with a module, with our scan and norm in it."""
    borrowed = borrow(module, {SCAN: ChunkedScan(find_function(module, SCAN, ARGUMENTS))})
    norms = [name for name, part in module.named_children() if gates_first(part)]

    def forward(self: nn.Module, *arguments: Any, **options: Any) -> Any:
        twin = copy.copy(self)
        twin.__dict__["_modules"] = self._modules | {name: GatedFirst(self._modules[name]) for name in norms}
        return borrowed(twin, *arguments, **options)

    return forward
