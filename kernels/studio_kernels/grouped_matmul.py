"""Products of rows that are sorted by expert with the matrix of their expert, in one launch for all experts.

    Y_e = s X_e W_e^T + U_e B_e^T        D_e = P_e^T Q_e

S rows, those of expert e in one piece from offsets[e] to offsets[e + 1], which may be none; E experts; X (S, K);
W (E, N, K) of any strides, so that dX = dY W is the same product of W's transpose; or W packed in 4 bits as nf4.py
describes, (E N, K) in all: decoded some experts at a time. U (S, R) and B (E, N, R)
are an adapter's tail: with A (E, R, K) and scale s

    U = s X A^T    Y = X W^T + U B^T    G = s dY B    dX = dY W + G A    dA = G^T X    dB = dY^T U

D (E, columns of P, columns of Q) is added to float32. No row is dropped, nothing is read back by the host, and the
count of programs depends on S and E alone, so that a CUDA graph may play it for other routes. Each sum has one order:
equal inputs give equal bits. Sources: Gale et al. 2022, arXiv:2211.15841 (dropless experts); Hu et al. 2021,
arXiv:2106.09685; checked against autograd in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from studio_kernels._triton import LOWEST_WITH_DOTS, gpu_support, interpreted
from studio_kernels.grouped_matmul_kernels import _gradient_kernel, _product_kernel
from studio_kernels.matmul import multiply_into
from studio_kernels.nf4 import Nf4
from studio_kernels.nf4 import reference_forward as decode
from studio_kernels.nf4 import triton_forward as fused_decode
from studio_kernels.op import DECODED_BYTES, Implementation, Op, Support
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16)
TILE = 64
"""Rows of one program's tile, the least; 4,096 tokens on 8 of 128 experts are 256 rows an expert."""
TOGETHER = 8
"""Tiles of rows that meet the same columns of a weight one after the other."""
ALIGNED = 8
"""Elements in 16 bytes: PyTorch's own grouped product wants whole ones in every row."""


@dataclass(frozen=True)
class Groups:
    """Where the rows of each expert lie."""

    offsets: Tensor
    """(E + 1,) int32: first row of each expert, and S."""
    rows: int
    """S."""

    @classmethod
    def of(cls, experts: Tensor, count: int) -> Groups:
        """The groups of rows whose experts, (S,) in rising order, are given; `count` is E. Does not wait for a GPU."""
        steps = torch.arange(count + 1, device=experts.device, dtype=experts.dtype)
        return cls(torch.searchsorted(experts, steps, out_int32=True), experts.shape[0])

    @property
    def count(self) -> int:
        """E."""
        return self.offsets.shape[0] - 1

    @cached_property
    def filled(self) -> list[tuple[int, int, int]]:
        """Expert, first and last row of every expert that has rows; waits for the GPU where there are several."""
        places = [0, self.rows] if self.count == 1 else self.offsets.tolist()
        return [
            (e, *pair) for e, pair in enumerate(zip(places, places[1:], strict=False)) if pair[0] < pair[1]
        ]

    @cached_property
    def _tiles(self) -> dict[int, Tensor]:
        return {}

    def tiles(self, rows: int) -> Tensor:
        """(tiles, 3) int32: expert, first row, end of its rows; as many tiles as any routes of S rows can need.

        `rows`: of a tile.
        """
        if rows not in self._tiles:
            starts, ends = self.offsets[:-1], self.offsets[1:]
            last = torch.cumsum((ends - starts + rows - 1) // rows, 0)
            tile = torch.arange(-(-self.rows // rows) + self.count - 1, device=last.device)
            expert = torch.searchsorted(last, tile, right=True).clamp_max_(self.count - 1)
            before = torch.where(expert > 0, last[expert - 1], 0)
            # Of the tiles that are not needed the first row lies behind the end.
            first = starts[expert] + (tile - before) * rows
            self._tiles[rows] = torch.stack([expert, first, ends[expert]], 1).int()
        return self._tiles[rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedImplementation(Implementation):
    """Both products; `forward` is `product`, `backward` is `gradient`."""

    @property
    def product(self) -> Callable:
        """Y = s X W^T + U B^T."""
        return self.forward

    @property
    def gradient(self) -> Callable:
        """D = P^T Q."""
        return self.backward


def outputs_of(weight: Tensor | Nf4, groups: Groups, transposed: bool) -> int:
    """Columns of the product with `weight`, or with its transpose."""
    outputs, inputs = (
        (weight.shape[0] // groups.count, weight.shape[1]) if isinstance(weight, Nf4) else weight.shape[1:]
    )
    return inputs if transposed else outputs


def reference_product(
    x: Tensor,  # (S, K)
    weight: Tensor | Nf4,  # (E, N, K), any strides; packed: (E N, K)
    groups: Groups,
    *,
    transposed: bool = False,
    scale: float = 1.0,
    tail: tuple[Tensor, Tensor] | None = None,  # U (S, R), B (E, N, R)
) -> Tensor:  # (S, N)
    """Y; with `transposed` W_e^T stands in W_e's place: X is (S, N), Y (S, K), B (E, K, R)."""
    y = x.new_empty(x.shape[0], outputs_of(weight, groups, transposed))
    if not isinstance(weight, Nf4) and _is_grouped_by_torch(x, weight):
        return _torch_product(x, weight, groups, transposed, scale, tail)
    for expert, start, end in groups.filled:
        matrix = _matrix(weight, expert, groups.count, x)
        rows = y[start:end]
        torch.mm(x[start:end], matrix if transposed else matrix.T, out=rows)
        if scale != 1.0:
            rows.mul_(scale)
        if tail is not None:
            u, b = tail
            rows.addmm_(u[start:end], b[expert].T)
    return y


def reference_gradient(
    p: Tensor,  # (S, M)
    q: Tensor,  # (S, N)
    groups: Groups,
    *,
    out: Tensor,  # (E, M, N) float32 (float64 for float64), any strides
) -> Tensor:  # (E, M, N)
    """Add D to `out`."""
    for expert, start, end in groups.filled:
        multiply_into(p[start:end].T, q[start:end], out[expert], add=True)
    return out


def _matrix(weight: Tensor | Nf4, expert: int, count: int, like: Tensor) -> Tensor:
    """W_e, (N, K), in the dtype of `like`."""
    if not isinstance(weight, Nf4):
        return weight[expert]
    rows = weight.shape[0] // count
    if not weight.can_begin(expert * rows):
        whole = like.new_empty(weight.shape)
        return decode(weight, whole).unflatten(0, (count, rows))[expert]
    return decode(weight.rows(expert * rows, (expert + 1) * rows), like.new_empty(rows, weight.shape[1]))


def _is_grouped_by_torch(x: Tensor, weight: Tensor) -> bool:
    """Whether PyTorch's own grouped product, which does not wait for the GPU, takes these."""
    return (
        x.is_cuda
        and x.dtype == torch.bfloat16
        and weight.dtype == x.dtype
        and torch.version.hip is None
        and torch.cuda.get_device_capability(x.device) >= LOWEST_WITH_DOTS
        and all(size % ALIGNED == 0 for size in (*weight.shape[1:], x.stride(0)))
        and 1 in weight.stride()[1:]
        and hasattr(torch, "_grouped_mm")
    )


def _torch_product(
    x: Tensor,
    weight: Tensor,
    groups: Groups,
    transposed: bool,
    scale: float,
    tail: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """`reference_product` by PyTorch's own."""
    ends = groups.offsets[1:]
    y = torch._grouped_mm(x, weight if transposed else weight.transpose(1, 2), offs=ends)
    if scale != 1.0:
        y.mul_(scale)
    return y if tail is None else y.add_(reference_product(tail[0], tail[1], groups))


def block_shape(columns: int, largest: int) -> int:
    """Columns of a tile: a power of two from 16, the least that a product of tiles takes."""
    return max(16, min(largest, 1 << (columns - 1).bit_length()))


def tile_shape(device: torch.device, outputs: int, transposed: bool) -> dict[str, int]:
    """ROWS, COLUMNS, INNER, warps and stages of a program, as measured on an H200 with 1,024 to 16,384 tokens.

    The same for any count of rows: a batch of another length needs no other kernel. Hopper and Blackwell's server
    cards have 227 KB of shared memory, sm_75 has 64 and the others 99 or more.
    """
    roomy = not interpreted() and torch.version.hip is None and device.type == "cuda"
    roomy = roomy and torch.cuda.get_device_capability(device)[0] in (9, 10)
    if not roomy or outputs <= 128:
        return {
            "ROWS": TILE,
            "COLUMNS": block_shape(outputs, 128),
            "INNER": 64,
            "num_warps": 4,
            "num_stages": 2,
        }
    if transposed:
        return {"ROWS": TILE, "COLUMNS": 256, "INNER": 64, "num_warps": 4, "num_stages": 4}
    return {"ROWS": 2 * TILE, "COLUMNS": 256, "INNER": 64, "num_warps": 8, "num_stages": 4}


def fused_product(
    x: Tensor,  # (S, K)
    weight: Tensor | Nf4,  # (E, N, K), any strides; packed: (E N, K)
    groups: Groups,
    *,
    transposed: bool = False,
    scale: float = 1.0,
    tail: tuple[Tensor, Tensor] | None = None,  # U (S, R), B (E, N, R)
) -> Tensor:  # (S, N)
    """`reference_product` in one kernel; with a packed weight in a few, each with some of its experts."""
    packed = isinstance(weight, Nf4)
    if groups.count == 1 and not packed:  # a plain product, in which a matrix library is faster
        return reference_product(x, weight, groups, transposed=transposed, scale=scale, tail=tail)
    y = x.new_empty(x.shape[0], outputs_of(weight, groups, transposed))
    if not x.shape[0]:
        return y
    if not packed:
        _launch(x, weight, groups, transposed, scale, tail, y, (0, groups.count))
        return y
    rows, columns = weight.shape[0] // groups.count, weight.shape[1]
    step = max(1, min(groups.count, DECODED_BYTES // (rows * columns * x.element_size())))
    if not weight.can_begin(step * rows):
        step = groups.count
    buffer = x.new_empty(step * rows, columns)
    for low in range(0, groups.count, step):
        high = min(low + step, groups.count)
        part = buffer[: (high - low) * rows]
        fused_decode(weight.rows(low * rows, high * rows), part)
        _launch(x, part.unflatten(0, (-1, rows)), groups, transposed, scale, tail, y, (low, high))
    return y


def _launch(
    x: Tensor,
    weight: Tensor,
    groups: Groups,
    transposed: bool,
    scale: float,
    tail: tuple[Tensor, Tensor] | None,
    y: Tensor,
    experts: tuple[int, int],
) -> None:
    """Write the rows of `y` that belong to `experts`, whose matrices `weight` holds."""
    strides, outputs = weight.stride(), y.shape[1]
    expert_stride, row_stride, column_stride = (strides[0], strides[2], strides[1]) if transposed else strides
    u, b = tail or (x, x[None])
    shape = tile_shape(x.device, outputs, transposed)
    shape["INNER"] = block_shape(x.shape[1], shape["INNER"])
    tiles = groups.tiles(shape["ROWS"])
    # The largest tile step that all tiles keep where the last one is moved; 0: a tile is wider than the result.
    full = math.gcd(outputs, shape["COLUMNS"]) if outputs >= shape["COLUMNS"] else 0
    with torch.cuda.device_of(x):
        _product_kernel[(tiles.shape[0] * -(-outputs // shape["COLUMNS"]),)](
            x, weight, u, b, y, tiles, tiles.shape[0], *experts, x.shape[1], outputs, u.shape[1], scale, x.stride(0),
            expert_stride, row_stride, column_stride, u.stride(0), *b.stride(), y.stride(0),
            RANKS=block_shape(u.shape[1], u.shape[1] * 2) if tail else 0, WIDE=interpreted(),
            WHOLE_STEPS=x.shape[1] % shape["INNER"] == 0, FULL_COLUMNS=full,
            TOGETHER=TOGETHER, **shape,
        )  # fmt: skip


def fused_gradient(
    p: Tensor,  # (S, M)
    q: Tensor,  # (S, N)
    groups: Groups,
    *,
    out: Tensor,  # (E, M, N) float32, any strides
) -> Tensor:  # (E, M, N)
    """`reference_gradient` in one kernel."""
    if groups.count == 1:
        return reference_gradient(p, q, groups, out=out)
    sizes = {"P_COLUMNS": block_shape(p.shape[1], 64), "Q_COLUMNS": block_shape(q.shape[1], 64)}
    grid = (groups.count, -(-p.shape[1] // sizes["P_COLUMNS"]), -(-q.shape[1] // sizes["Q_COLUMNS"]))
    with torch.cuda.device_of(p):
        _gradient_kernel[grid](
            p, q, groups.offsets, out, p.shape[1], q.shape[1], p.stride(0), q.stride(0), *out.stride(),
            WIDE=interpreted(), ROWS=TILE, num_warps=4, num_stages=2, **sizes,
        )  # fmt: skip
    return out


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` elements of `dtype` on such a device."""
    return gpu_support(device_type, capability, dtype, DTYPES, dots=True)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    experts: int = 4,
    outputs: int = 0,
    rank: int = 8,
    packed: bool = False,
    nested: bool = True,
    swapped: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`; the second of several experts has no rows. `outputs`: as wide as the input when 0.

    `swapped`: the weight lies in memory as (E, K, N), as in gpt-oss.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide)
    outputs = outputs or width
    chosen = draws.integers(0, experts, rows).sort()[0]
    groups = Groups.of(torch.where(chosen == 1, 0, chosen).sort()[0], experts)
    x, dy = draws.normal(rows, width), draws.normal(rows, outputs)
    a = draws.normal(experts, rank, width, scale=width**-0.5)
    b = draws.normal(experts, outputs, rank, scale=rank**-0.5)
    if packed:
        weight = Nf4.drawn(draws, (experts * outputs, width), dtype, nested=nested)
    elif swapped:
        weight = draws.normal(experts, width, outputs, scale=width**-0.5).transpose(1, 2)
    else:
        weight = draws.normal(experts, outputs, width, scale=width**-0.5)
    u, g = draws.normal(rows, rank), draws.normal(rows, rank)
    sums = {"dtype": torch.float64 if wide else torch.float32, "device": device}

    def run(implementation: Implementation) -> dict[str, Tensor]:
        da, db = torch.ones(experts, rank, width, **sums), torch.ones(experts, outputs, rank, **sums)
        implementation.gradient(g, x, groups, out=da)
        implementation.gradient(dy, u, groups, out=db)
        return {
            "u": implementation.product(x, a, groups, scale=0.5),
            "g": implementation.product(dy, b, groups, transposed=True, scale=0.5),
            "plain": implementation.product(x, weight, groups),
            "y": implementation.product(x, weight, groups, tail=(u, b)),
            "dx": implementation.product(dy, weight, groups, transposed=True, tail=(g, a.transpose(1, 2))),
            "da": da,
            "db": db,
        }

    return run


GROUPED_MATMUL = Op(
    name="grouped_matmul",
    reference=GroupedImplementation(forward=reference_product, backward=reference_gradient),
    triton=GroupedImplementation(forward=fused_product, backward=fused_gradient),
    supports=supports,
    sample=sample,
    needs_dots=True,
)
