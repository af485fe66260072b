"""The gated delta rule: a memory of values under keys that fades, and of which each token mends what it reads.

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T        o_t = S_t^T q_t

T rows of documents that lie one behind the other; key heads with their queries, each for GROUP value heads; q, k
(T, key heads, D), v (T, value heads, E), g and beta (T, value heads), S (D, E), zero where a document begins. With
`normalise` q and k are divided by their lengths, sqrt(|x|² + 1e-6); q is then multiplied by `scale`.

In chunks of 64 rows, with b the sums of g since the chunk began, C_ij = exp(b_i - b_j) for j <= i, S the state before:

    A = strictly lower part of beta_i k_i·k_j C_ij        w = (I + A)^-1 (beta exp(b) k)        u = (I + A)^-1 (beta v)
    n = u - w S        o = exp(b) q S + P n, P_ij = q_i·k_j C_ij        S' = exp(b_last) S + (exp(b_last - b) k)^T n

and back, dS' the gradient of S', x that of beta (v - exp(b) k S):

    dn = P^T do + exp(b_last - b) k dS'        dS = exp(b_last) dS' + (exp(b) q)^T do - w^T dn        x = (I + A)^-T dn
    dv = beta x        dA = -x n^T        dP = do n^T        d(exp(b) q) = do S^T        d(exp(b_last - b) k) = n dS'^T
    d(beta exp(b) k) = -x S^T

Beside it, in models that have it, a short causal convolution of q, k and v, silu of the sum of some taps' rows.

Nothing but the inputs is kept: the states are computed again. Sums and states are float32 (float64 for float64), each
in one order, so that runs give equal bits. Sources: Yang et al. 2024, arXiv:2406.06484 (chunks), arXiv:2412.06464
(gates); checked against autograd through transformers' own function in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, interpreted
from studio_kernels.gated_delta_kernels import (
    _early_kernel,
    _keys_back_kernel,
    _lengths_back_kernel,
    _output_kernel,
    _scan_back_kernel,
    _scan_kernel,
    _solve_kernel,
    _values_back_kernel,
)
from studio_kernels.gated_delta_reference import (
    Gradients,
    reference_backward,
    reference_convolve,
    reference_convolve_backward,
    reference_forward,
)
from studio_kernels.op import NEEDS_DOTS_WHERE_ASKED, Implementation, Op, Support
from studio_kernels.row_chunks import CHUNK, Chunks
from studio_kernels.short_convolution_kernels import _convolve_back_kernel, _convolve_kernel
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
LEVELS = 6
"""Of doubling, from blocks of one row to a chunk."""


CONVOLVED = {"ROWS": 16, "COLUMNS": 128, "num_warps": 4}
"""A program's tile of the convolution: a row is read once for each tap, and found in the cache all but once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedDeltaImplementation(Implementation):
    """The rule, and the convolution beside it."""

    convolve_forward: Callable
    convolve_backward: Callable
    convolve: Callable
    """The differentiable form."""


LEAST_KEYS, LEAST_VALUES, LEAST_SCANNED = 64, 64, 32
"""Dimensions of a program's tiles where a head has fewer, those of one that runs through chunks last: on an H200 Triton
3.6 compiles narrower ones to wrong numbers and reads out of bounds."""


def _round_up(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of programs."""

    scan_values: int = 32
    """Value dimensions of one program that runs from chunk to chunk."""
    scan_back_values: int = 32
    """Likewise of one that runs back."""
    values: int = 64
    """Value dimensions of a step elsewhere."""
    keys: int = 64
    """Key dimensions of a step where gradients of keys are summed."""
    warps: int = 4
    back_warps: int = 8
    scan_warps: int = 4
    stages: int = 1
    scan_stages: int = 2
    scan_back_stages: int = 1


TILES = Tiles()


class _Launch:
    """The kernels of one call, with what all of them take."""

    def __init__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunks: Chunks, tiles: Tiles
    ) -> None:
        self.q, self.k, self.v = (self._lay(x) for x in (q, k, v))
        self.g, self.beta, self.chunks, self.tiles = g.contiguous(), beta.contiguous(), chunks, tiles
        self.rows, self.heads, self.value_dim = v.shape
        self.key_dim = k.shape[2]
        self.group = self.heads // k.shape[1]
        self.plane = self.rows * self.heads
        options = {"dtype": v.dtype, "device": v.device}
        self.factors = torch.empty(3, self.rows, self.heads, dtype=torch.float32, device=v.device)
        self.inverse = torch.empty(len(chunks), self.heads, CHUNK, CHUNK, **options)
        self.w = torch.empty(self.rows, self.heads, self.key_dim, **options)
        self.new = torch.empty(self.rows, self.heads, self.value_dim, **options)
        self.states = torch.empty(len(chunks), self.heads, self.key_dim, self.value_dim, **options)
        self.grid = (len(chunks), self.heads)
        self.sizes = {
            "GROUP": self.group, "WIDE": interpreted(), "CHUNK": CHUNK,
            "KEYS": max(LEAST_KEYS, _round_up(self.key_dim)),
            "VALUES": min(tiles.values, max(LEAST_VALUES, _round_up(self.value_dim))), "num_warps": tiles.warps,
            "num_stages": tiles.stages,
        }  # fmt: skip

    def scan(self, values: int, stages: int) -> tuple[tuple[int, int, int], dict]:
        """Return grid and sizes of programs that run through documents, of so many value dimensions each."""
        values = min(values, max(LEAST_SCANNED, _round_up(self.value_dim)))
        sizes = {"VALUES": values, "num_warps": self.tiles.scan_warps, "num_stages": stages}
        return (-(-self.value_dim // values), self.heads, len(self.chunks.counts)), self.sizes | sizes

    @staticmethod
    def _lay(x: Tensor) -> Tensor:
        """Return `x`, (T, heads, dimensions), with the heads of a row side by side."""
        return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()

    def states_of(self, scale: float, normalise: bool) -> None:
        """Compute n and the states."""
        q, k, v, chunks = self.q, self.k, self.v, self.chunks
        _solve_kernel[self.grid](
            q, k, v, self.g, self.beta, chunks.table, self.factors, self.inverse, self.w, self.new, self.plane,
            self.heads, q.stride(0), k.stride(0), v.stride(0), self.key_dim, self.value_dim, scale,
            NORMALISE=normalise, LEVELS=LEVELS, **self.sizes,
        )  # fmt: skip
        grid, sizes = self.scan(self.tiles.scan_values, self.tiles.scan_stages)
        _scan_kernel[grid](
            k, self.w, self.new, self.factors, chunks.table, chunks.starts, self.states, self.plane, self.heads,
            k.stride(0), self.key_dim, self.value_dim, **sizes,
        )  # fmt: skip

    def output(self) -> Tensor:
        """Return o."""
        out = torch.empty_like(self.new)
        _output_kernel[self.grid](
            self.q, self.k, self.new, self.factors, self.chunks.table, self.states, out, self.plane, self.heads,
            self.q.stride(0), self.k.stride(0), self.key_dim, self.value_dim, **self.sizes,
        )  # fmt: skip
        return out

    def gradients(self, dout: Tensor, scale: float, normalise: bool) -> Gradients:
        """Return dq, dk, dv, dg and dbeta."""
        q, k, v, chunks, dout = self.q, self.k, self.v, self.chunks, dout.contiguous()
        strides = (q.stride(0), k.stride(0))
        dims = (self.key_dim, self.value_dim)
        dnew, dstates, dv = map(torch.empty_like, (self.new, self.states, self.new))
        _early_kernel[self.grid](
            q,
            k,
            dout,
            self.factors,
            chunks.table,
            dnew,
            self.plane,
            self.heads,
            *strides,
            *dims,
            **self.sizes,
        )
        grid, sizes = self.scan(self.tiles.scan_back_values, self.tiles.scan_back_stages)
        _scan_back_kernel[grid](
            q, k, self.w, dout, self.factors, chunks.table, chunks.starts, dnew, dstates, self.plane, self.heads,
            *strides, *dims, **sizes,
        )  # fmt: skip
        db, dbeta = (
            torch.empty(self.rows, self.heads, dtype=torch.float32, device=v.device) for _ in range(2)
        )
        dscores = torch.empty_like(self.inverse)
        back = self.sizes | {"num_warps": self.tiles.back_warps}
        _values_back_kernel[self.grid](
            q, k, v, self.beta, self.new, dout, self.factors, chunks.table, self.inverse, dnew, dv, db, dbeta,
            dscores, self.plane, self.heads, *strides, v.stride(0), *dims, **back,
        )  # fmt: skip
        units = torch.empty(2, *self.w.shape, dtype=torch.float32, device=v.device)
        dg, dbeta_out = torch.empty_like(self.g), torch.empty_like(self.beta)
        back["KEYS"] = min(self.tiles.keys, back["KEYS"])
        _keys_back_kernel[self.grid](
            q, k, self.beta, self.new, dout, dnew, self.factors, chunks.table, self.states, dstates, dscores,
            self.inverse, db, dbeta, units[0], units[1], dg, dbeta_out, self.plane, self.heads, *strides, *dims,
            **back,
        )  # fmt: skip
        return *self._lengths_back(units, scale, normalise), dv, dg, dbeta_out

    def _lengths_back(self, units: Tensor, scale: float, normalise: bool) -> list[Tensor]:
        """Return dq and dk."""
        found, rows = [], 16
        for x, unit, times in ((self.q, units[0], scale), (self.k, units[1], 1.0)):
            dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            _lengths_back_kernel[(-(-self.rows // rows), x.shape[1])](
                x, unit, dx, self.rows, x.shape[1], x.stride(0), self.key_dim, times, GROUP=self.group,
                NORMALISE=normalise, ROWS=rows, KEYS=_round_up(self.key_dim), num_warps=4,
            )  # fmt: skip
            found.append(dx)
        return found


def fused_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunks: Chunks,
    *,
    scale: float = 1.0,
    normalise: bool = True,
    tiles: Tiles = TILES,
) -> Tensor:  # (T, value heads, E)
    """`reference_forward` in three kernels; q, k and v in 16 bits."""
    with torch.cuda.device_of(v):
        launch = _Launch(q, k, v, g, beta, chunks, tiles)
        launch.states_of(scale, normalise)
        return launch.output()


def fused_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    chunks: Chunks,
    *,
    scale: float = 1.0,
    normalise: bool = True,
    tiles: Tiles = TILES,
) -> Gradients:
    """`reference_backward` in eight kernels."""
    with torch.cuda.device_of(v):
        launch = _Launch(q, k, v, g, beta, chunks, tiles)
        launch.states_of(scale, normalise)
        return launch.gradients(dout, scale, normalise)


def fused_convolve(x: Tensor, weight: Tensor, chunks: Chunks) -> Tensor:
    """`reference_convolve` in one kernel; any row stride."""
    rows, columns = x.shape
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):
        _convolve_kernel[_tiles_of(x)](
            x, weight.contiguous(), chunks.positions, out, rows, columns, x.stride(0), TAPS=weight.shape[1],
            **CONVOLVED,
        )  # fmt: skip
    return out


def fused_convolve_backward(dout: Tensor, x: Tensor, weight: Tensor, chunks: Chunks) -> Tensor:
    """`reference_convolve_backward` in one kernel; any row strides."""
    rows, columns = x.shape
    dx = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    dout = dout if dout.stride(1) == 1 else dout.contiguous()
    with torch.cuda.device_of(x):
        _convolve_back_kernel[_tiles_of(x)](
            dout, x, weight.contiguous(), chunks.positions, dx, rows, columns, dout.stride(0), x.stride(0),
            TAPS=weight.shape[1], **CONVOLVED,
        )  # fmt: skip
    return dx


def _tiles_of(x: Tensor) -> tuple[int, int]:
    return -(-x.shape[0] // CONVOLVED["ROWS"]), -(-x.shape[1] // CONVOLVED["COLUMNS"])


def _make_convolve(forward: Callable[..., Tensor], backward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    class Convolution(torch.autograd.Function):
        """The convolution under autograd; it keeps what it reads."""

        @staticmethod
        def forward(ctx, x, weight, chunks):
            """See torch.autograd.Function."""
            ctx.save_for_backward(x, weight)
            ctx.chunks = chunks
            with torch.autocast(x.device.type, enabled=False):
                return forward(x, weight, chunks)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dout):
            """See torch.autograd.Function."""
            return backward(dout, *ctx.saved_tensors, ctx.chunks), None, None

    return Convolution.apply


def _make_apply(forward: Callable[..., Tensor], backward: Callable[..., Gradients]) -> Callable[..., Tensor]:
    class GatedDelta(torch.autograd.Function):
        """The rule under autograd; its inputs are what is kept."""

        @staticmethod
        def forward(ctx, q, k, v, g, beta, chunks, scale, normalise):
            """See torch.autograd.Function."""
            ctx.save_for_backward(q, k, v, g, beta)
            ctx.chunks, ctx.options = chunks, {"scale": scale, "normalise": normalise}
            with torch.autocast(q.device.type, enabled=False):  # the twin's sums are float32
                return forward(q, k, v, g, beta, chunks, **ctx.options)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, dout):
            """See torch.autograd.Function."""
            return *backward(dout, *ctx.saved_tensors, ctx.chunks, **ctx.options), None, None, None

    def apply(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        chunks: Chunks,
        *,
        scale: float = 1.0,
        normalise: bool = True,
    ) -> Tensor:
        """See reference_forward."""
        return GatedDelta.apply(q, k, v, g, beta, chunks, scale, normalise)

    return apply


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on q, k and v of `dtype` on such a device; `width` may be anything."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    lengths: Sequence[int] = (),
    key_dim: int = 0,
    group: int = 2,
    fading: float = 1.0,
    normalise: bool = True,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. `width`: of all values; key heads have `key_dim`, as many as make up half of it.

    `lengths`: of the documents; all rows are one, of two chunks and more two, when there are none. `fading`: how fast.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    key_dim = key_dim or min(128, width)
    heads = max(1, width // (group * key_dim))
    value_dim = max(1, width // (group * heads))
    lengths = lengths or ((rows // 3, rows - rows // 3) if rows > 2 * CHUNK else (rows,))
    chunks = Chunks(lengths, device)
    q, k = (draws.normal(rows, heads, key_dim) for _ in range(2))
    v, dout = (draws.normal(rows, heads * group, value_dim) for _ in range(2))
    g = draws.place(draws.normal(rows, heads * group).abs_().mul_(-fading), torch.float32)
    beta = draws.place(draws.normal(rows, heads * group).sigmoid_())

    x, dy, taps = draws.normal(rows, width), draws.normal(rows, width), draws.normal(width, 4, scale=0.5)

    def run(implementation: GatedDeltaImplementation) -> dict[str, Tensor]:
        options = {"scale": key_dim**-0.5, "normalise": normalise}
        given = (q, k, v, g, beta, chunks)
        out = implementation.forward(*given, **options)
        names = ("dq", "dk", "dv", "dg", "dbeta")
        found = dict(zip(names, implementation.backward(dout, *given, **options), strict=True))
        # In float32, yet of products of what was rounded to 16 bits.
        found["convolved"] = implementation.convolve_forward(x, taps, chunks)
        found["dx"] = implementation.convolve_backward(dy, x, taps, chunks)
        return {"out": out} | found | {"dg": found["dg"].to(v.dtype)}

    return run


def _implement(
    forward: Callable[..., Tensor], backward: Callable[..., Gradients], *convolve: Callable[..., Tensor]
) -> GatedDeltaImplementation:
    return GatedDeltaImplementation(
        forward=forward, backward=backward, apply=_make_apply(forward, backward), convolve_forward=convolve[0],
        convolve_backward=convolve[1], convolve=_make_convolve(*convolve),
    )  # fmt: skip


GATED_DELTA = Op(
    name="gated_delta",
    reference=_implement(
        reference_forward, reference_backward, reference_convolve, reference_convolve_backward
    ),
    triton=_implement(fused_forward, fused_backward, fused_convolve, fused_convolve_backward),
    supports=supports,
    sample=sample,
    needs_dots=NEEDS_DOTS_WHERE_ASKED["gated_delta"],
)
