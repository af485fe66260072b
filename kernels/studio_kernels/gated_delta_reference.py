"""The PyTorch twins of `gated_delta`: the same chunks by batched products. The names are those of gated_delta.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels.row_chunks import CHUNK, Chunks

EPS = 1e-6
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(slots=True)
class _Chunked:
    """What a pass needs of all chunks: (n, h, m, i, ...), chunks, key heads, members of a head, rows."""

    q: Tensor  # (n, h, i, d), of length `scale`
    k: Tensor  # (n, h, i, d)
    v: Tensor  # (n, h, m, i, e)
    beta: Tensor  # (n, h, m, i)
    b: Tensor  # (n, h, m, i)
    decay: Tensor  # (n, h, m, i, j) C
    system: Tensor  # (n, h, m, i, j) I + A
    w: Tensor  # (n, h, m, i, d)
    new: Tensor  # (n, h, m, i, e) n
    states: Tensor  # (n, h, m, d, e) before each chunk

    @property
    def grown(self) -> Tensor:
        """exp(b)."""
        return self.b.exp()

    @property
    def rest(self) -> Tensor:
        """exp(b_last - b)."""
        return (self.b[..., -1:] - self.b).exp()

    @property
    def faded(self) -> Tensor:
        """exp(b_last)."""
        return self.b[..., -1, None, None].exp()

    @property
    def scores(self) -> Tensor:
        """P."""
        return torch.einsum("nhid,nhjd->nhij", self.q, self.k)[:, :, None] * self.decay


def _divide(x: Tensor, normalise: bool) -> tuple[Tensor, Tensor | float]:
    """Return x divided by its length, and what it was multiplied with."""
    inverse = torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS) if normalise else 1.0
    return x * inverse, inverse


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunks: Chunks, scale: float, normalise: bool
) -> _Chunked:
    dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    heads = k.shape[1]
    q, k = (
        _divide(chunks.cut(x, heads, dtype)[:, :, 0], normalise)[0] * times
        for x, times in ((q, scale), (k, 1.0))
    )
    v, g, beta = (chunks.cut(x, heads, dtype) for x in (v, g, beta))
    b = g.cumsum(-1)
    above = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=b.device).triu_(1)
    decay = (b[..., :, None] - b[..., None, :]).masked_fill_(above, -torch.inf).exp_()
    system = torch.einsum("nhid,nhjd->nhij", k, k)[:, :, None] * decay * beta[..., None]
    # What stands on the diagonal and above it is not read.
    u = torch.linalg.solve_triangular(system, v * beta[..., None], upper=False, unitriangular=True)
    w = k[:, :, None] * (beta * b.exp())[..., None]
    w = torch.linalg.solve_triangular(system, w, upper=False, unitriangular=True)
    states = v.new_empty(*v.shape[:3], k.shape[-1], v.shape[-1])
    found = _Chunked(q, k, v, beta, b, decay, system, w, u, states)
    rest, faded = found.rest, found.faded
    state = states.new_zeros(len(chunks.counts), *states.shape[1:])
    for at in chunks.steps:
        state = state[: len(at)]
        states[at] = state
        u[at] -= w[at] @ state
        learned = torch.einsum("nhid,nhmie->nhmde", k[at], u[at] * rest[at][..., None])
        state = faded[at] * state + learned
    return found


def reference_forward(
    q: Tensor,  # (T, key heads, D)
    k: Tensor,  # (T, key heads, D)
    v: Tensor,  # (T, value heads, E)
    g: Tensor,  # (T, value heads), none above 0
    beta: Tensor,  # (T, value heads)
    chunks: Chunks,
    *,
    scale: float = 1.0,
    normalise: bool = True,
) -> Tensor:  # (T, value heads, E)
    """o, rounded once."""
    found = _chunk(q, k, v, g, beta, chunks, scale, normalise)
    read = torch.einsum("nhid,nhmde->nhmie", found.q, found.states) * found.grown[..., None]
    return chunks.join(read + found.scores @ found.new, v.dtype)


def reference_backward(
    dout: Tensor,  # (T, value heads, E)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunks: Chunks,
    *,
    scale: float = 1.0,
    normalise: bool = True,
) -> Gradients:
    """dq, dk, dv, dg and dbeta, each in its input's shape and dtype."""
    found = _chunk(q, k, v, g, beta, chunks, scale, normalise)
    q1, k1, b, decay, states = found.q, found.k, found.beta[..., None], found.decay, found.states
    grown, rest, faded = found.grown[..., None], found.rest[..., None], found.faded
    heads, dtype = k.shape[1], states.dtype
    do = chunks.cut(dout, heads, dtype)
    scores = found.scores
    dnew = scores.mT @ do
    read = do * grown
    dstates = torch.empty_like(states)
    dstate = states.new_zeros(0, *states.shape[1:])
    for at in reversed(chunks.steps):
        dstate = torch.cat((dstate, states.new_zeros(len(at) - len(dstate), *states.shape[1:])))
        dstates[at] = dstate
        dnew[at] += torch.einsum("nhid,nhmde->nhmie", k1[at], dstate) * rest[at]
        dstate = faded[at] * dstate + torch.einsum("nhid,nhmie->nhmde", q1[at], read[at])
        dstate -= found.w[at].mT @ dnew[at]
    x = torch.linalg.solve_triangular(found.system.mT, dnew, upper=True, unitriangular=True)
    dbeta = (x * found.v).sum(-1)
    dq = do @ states.mT * grown
    dk = found.new @ dstates.mT * rest
    dread = x @ states.mT * grown
    from_state, from_read = (torch.einsum("nhid,nhmid->nhmi", k1, part) for part in (dk, dread))
    db = torch.einsum("nhid,nhmid->nhmi", q1, dq) - from_state - b[..., 0] * from_read
    db[..., -1] += from_state.sum(-1) + faded[..., 0, 0] * (states * dstates).sum((-2, -1))
    dbeta -= from_read
    dscores = do @ found.new.mT
    share = dscores * scores
    dscores *= decay
    da = (x @ found.new.mT).neg_().mul_(decay).tril_(-1)
    product = da * torch.einsum("nhid,nhjd->nhij", k1, k1)[:, :, None]
    dbeta += product.sum(-1)
    share += product * b
    db += share.sum(-1) - share.sum(-2)
    da *= b
    dq += torch.einsum("nhmij,nhjd->nhmid", dscores, k1)
    dk += torch.einsum("nhmji,nhjd->nhmid", dscores, q1) - dread * b
    dk += torch.einsum("nhmij,nhjd->nhmid", da + da.mT, k1)
    dg = db.flip(-1).cumsum(-1).flip(-1)
    dq, dk = (
        chunks.join(
            _divide_backward(part.sum(2, True), chunks.cut(x, heads, dtype), normalise, times), x.dtype
        )
        for part, x, times in ((dq, q, scale), (dk, k, 1.0))
    )
    dv = chunks.join(x * b, v.dtype)
    return dq, dk, dv, chunks.join(dg, g.dtype), chunks.join(dbeta, beta.dtype)


def _mix(x: Tensor, weight: Tensor, chunks: Chunks) -> Tensor:
    """Return z (T, C) of x, both in the dtype of sums."""
    z = x * weight[:, -1]
    for back in range(1, min(weight.shape[1], len(x))):
        seen = (chunks.positions[back:] >= back)[:, None]
        z[back:] += torch.where(seen, x[:-back] * weight[:, -1 - back], 0.0)
    return z


def reference_convolve(
    x: Tensor,  # (T, C)
    weight: Tensor,  # (C, taps)
    chunks: Chunks,
) -> Tensor:  # (T, C)
    """silu(z), z_t the sum of the taps times x_t and the rows before it in its document; rounded once."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.nn.functional.silu(_mix(x.to(dtype), weight.to(dtype), chunks)).to(x.dtype)


def reference_convolve_backward(
    dout: Tensor,  # (T, C)
    x: Tensor,
    weight: Tensor,
    chunks: Chunks,
) -> Tensor:  # (T, C)
    """dx; the taps are taken as frozen."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    weight = weight.to(dtype)
    z = _mix(x.to(dtype), weight, chunks)
    share = z.sigmoid()
    dz = dout.to(dtype) * share * (1 + z * (1 - share))
    dx = dz * weight[:, -1]
    for back in range(1, min(weight.shape[1], len(x))):
        seen = (chunks.positions[back:] >= back)[:, None]
        dx[:-back] += torch.where(seen, dz[back:] * weight[:, -1 - back], 0.0)
    return dx.to(x.dtype)


def _divide_backward(dunit: Tensor, x: Tensor, normalise: bool, scale: float) -> Tensor:
    """Return dx of the gradient of `scale` x / |x|."""
    unit, inverse = _divide(x, normalise)
    if normalise:
        dunit = dunit - unit * (unit * dunit).sum(-1, keepdim=True)
    return dunit * inverse * scale
