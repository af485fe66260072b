"""DoRA's own work beside LoRA's products: lengths of weights, rows of weights times them, and the lengths' gradients.

    c_i = m_i / n_i        n_i² = w_i + Σ_j M_ij B_ij        W'_ij = c_i W_ij        B'_ij = c_i s B_ij
    dm_i = Σ_t dY_ti (Y_ti - bias_i) / m_i

T rows, `out` linear outputs, r the adapter's rank, s its scale; dY and Y (T, out), W (out, in), B and M (out, r), w, c,
n, m and dm (out,). Lengths and all sums are float32 (float64 for float64). The sum over rows is that of parts of the
rows, whose number depends on the shape alone, so that runs give equal bits. Everything is bound by reading: each of dY,
Y and W is read once. Source: Liu et al. 2024, arXiv:2402.09353; what M and w are: studio/models/decoder/magnitudes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.op import NEEDS_DOTS_WHERE_ASKED, PORTION_BYTES, Implementation, Op, Support
from studio_kernels.row_blocks import read_columns, read_rows, write_rows
from studio_kernels.test_inputs import Draws

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
PARTS = 32
"""Of the rows whose sums are added up at last: 512 programs for 4,096 outputs, all at work at a time on an H200."""
ELEMENTS = 4096
"""Of one program's block: 32 a thread, in 16 bits four loads of 16 bytes at a time."""
SUM_COLUMNS = 128
"""Of the sum of the parts."""
RANKS = 1024
"""Most elements of a rank's rows in one program."""
WARPS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class MagnitudesImplementation(Implementation):
    """The three parts; `forward` is `scale_rows`, `backward` is `add_dots`."""

    renew_scale: Callable

    @property
    def scale_rows(self) -> Callable:
        """W' of W and c."""
        return self.forward

    @property
    def add_dots(self) -> Callable:
        """dm of dY and Y."""
        return self.backward


def reference_scale_rows(
    weight: Tensor,  # (out, in)
    times: Tensor,  # (out,)
    *,
    out: Tensor,  # (out, in); may be `weight`
) -> Tensor:  # (out, in)
    """W', rounded once."""
    return torch.mul(weight, times[:, None], out=out)


def reference_add_dots(
    dy: Tensor,  # (T, out)
    y: Tensor,  # (T, out)
    bias: Tensor | None,  # (out,)
    lengths: Tensor,  # (out,) m
    *,
    out: Tensor,  # (out,)
) -> Tensor:  # (out,)
    """Add dm to `out`, in portions; a row of zeros has no direction: nothing is learned of its length."""
    step = max(1, PORTION_BYTES // (4 * max(1, y.shape[0]) * out.element_size()))
    for first in range(0, y.shape[1], step):
        part = slice(first, first + step)
        values = y[:, part].to(out.dtype)
        if bias is not None:
            values = values - bias[part]
        sums, m = (dy[:, part] * values).sum(0), lengths[part]
        out[part].add_(torch.where(m == 0, 0.0, sums / m))
    return out


def reference_renew_scale(
    met: Tensor,  # (out, r) M
    b: Tensor,  # (out, r)
    squares: Tensor,  # (out,) w
    lengths: Tensor,  # (out,) m
    scale: float,
    *,
    times: Tensor,  # (out,)
    columns: Tensor,  # (out, r)
) -> None:
    """Write c to `times` and B' to `columns`."""
    found = (met * b).sum(1).add_(squares).clamp_min_(torch.finfo(met.dtype).tiny).sqrt_()
    torch.div(lengths, found, out=times)
    torch.mul(b, (times * scale)[:, None], out=columns)


@triton.jit(do_not_specialize=["rows"])
def _scale_kernel(
    weight_pointer, times_pointer, out_pointer, rows, columns, weight_stride, out_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    times = tl.load(times_pointer + row, mask=row < rows, other=0.0)
    values = read_rows(weight_pointer, row, weight_stride, column, mask)
    write_rows(out_pointer, row, out_stride, column, mask, values * times[:, None])


@triton.jit(do_not_specialize=["rows", "blocks"])
def _dots_kernel(
    dy_pointer, y_pointer, bias_pointer, partial_pointer, rows, columns, blocks, dy_stride, y_stride,
    BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`blocks` blocks of rows of one part, COLUMNS columns."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    if BIAS:
        bias = read_columns(bias_pointer, column, inside)
    row = tl.program_id(1).to(tl.int64) * blocks * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for _ in range(blocks):
        mask = (row < rows)[:, None] & inside[None, :]
        dy = read_rows(dy_pointer, row, dy_stride, column, mask)
        y = read_rows(y_pointer, row, y_stride, column, mask)
        if BIAS:
            y -= bias[None, :]
        sums += dy * y
        row += ROWS
    tl.store(partial_pointer + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), mask=inside)


@triton.jit(do_not_specialize=["parts"])
def _add_kernel(
    partial_pointer, lengths_pointer, out_pointer, parts, columns, PARTS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside, part = column < columns, tl.arange(0, PARTS)
    mask = (part < parts)[:, None] & inside[None, :]
    total = tl.sum(read_rows(partial_pointer, part, columns, column, mask), axis=0)
    length = tl.load(lengths_pointer + column, mask=inside, other=0.0)
    found = tl.where(length == 0.0, 0.0, total / tl.where(length == 0.0, 1.0, length))
    tl.store(out_pointer + column, tl.load(out_pointer + column, mask=inside, other=0.0) + found, mask=inside)


@triton.jit(do_not_specialize=["scale"])
def _renew_kernel(
    met_pointer, b_pointer, squares_pointer, lengths_pointer, times_pointer, columns_pointer, outputs, rank, scale,
    met_stride, b_stride, columns_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = row < outputs
    mask = inside[:, None] & (column < rank)[None, :]
    b = read_rows(b_pointer, row, b_stride, column, mask)
    met = read_rows(met_pointer, row, met_stride, column, mask)
    squares = tl.sum(met * b, axis=1) + tl.load(squares_pointer + row, mask=inside, other=1.0)
    # Below it lie numbers that are not kept in full.
    length = tl.sqrt(tl.maximum(squares, 1.1754943508222875e-38))
    times = tl.load(lengths_pointer + row, mask=inside, other=0.0) / length
    tl.store(times_pointer + row, times, mask=inside)
    write_rows(columns_pointer, row, columns_stride, column, mask, b * (times * scale)[:, None])


def block_shape(columns: int, widest: int) -> dict[str, int]:
    """Rows and columns of one program's block of rows of `columns` elements, no wider than `widest`, and its warps."""
    width = max(16, min(widest, 1 << (columns - 1).bit_length()))
    return {"ROWS": max(1, min(32, ELEMENTS // width)), "COLUMNS": width, "num_warps": WARPS}


def fused_scale_rows(
    weight: Tensor,  # (out, in), any row stride
    times: Tensor,  # (out,)
    *,
    out: Tensor,  # (out, in), any row stride; may be `weight`
) -> Tensor:  # (out, in)
    """`reference_scale_rows` in one kernel."""
    rows, columns = weight.shape
    block = block_shape(columns, 1024)
    programs = -(-rows // block["ROWS"]) * -(-columns // block["COLUMNS"])
    with torch.cuda.device_of(out):
        _scale_kernel[(programs,)](
            weight, times, out, rows, columns, weight.stride(0), out.stride(0), **block
        )  # fmt: skip
    return out


def fused_add_dots(
    dy: Tensor,  # (T, out), any row stride
    y: Tensor,  # (T, out), any row stride
    bias: Tensor | None,  # (out,)
    lengths: Tensor,  # (out,)
    *,
    out: Tensor,  # (out,)
) -> Tensor:  # (out,)
    """`reference_add_dots` in one reading and a short sum."""
    rows, columns = y.shape
    if not rows:
        return out
    block = block_shape(columns, 256)
    blocks = -(-rows // block["ROWS"])
    each = -(-blocks // PARTS)
    parts = -(-blocks // each)
    partial = torch.empty(parts, columns, dtype=torch.float32, device=y.device)
    with torch.cuda.device_of(y):
        # Without a bias nothing is read through its pointer: any tensor will do.
        _dots_kernel[(-(-columns // block["COLUMNS"]), parts)](
            dy, y, lengths if bias is None else bias, partial, rows, columns, each, dy.stride(0), y.stride(0),
            BIAS=bias is not None, **block,
        )  # fmt: skip
        _add_kernel[(-(-columns // SUM_COLUMNS),)](
            partial, lengths, out, parts, columns, PARTS=PARTS, COLUMNS=SUM_COLUMNS, num_warps=WARPS
        )
    return out


def fused_renew_scale(
    met: Tensor,  # (out, r), any row stride; so, too, b and columns
    b: Tensor,
    squares: Tensor,
    lengths: Tensor,
    scale: float,
    *,
    times: Tensor,
    columns: Tensor,
) -> None:
    """`reference_renew_scale` in one kernel."""
    outputs, rank = b.shape
    width = max(16, 1 << (rank - 1).bit_length())
    rows = max(1, RANKS // width)
    with torch.cuda.device_of(b):
        _renew_kernel[(-(-outputs // rows),)](
            met, b, squares, lengths, times, columns, outputs, rank, scale, met.stride(0), b.stride(0),
            columns.stride(0), ROWS=rows, COLUMNS=width, num_warps=WARPS,
        )  # fmt: skip


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` elements of `dtype` on such a device."""
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    layout: str = "sliced",
    rank: int = 16,
    bias: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`. One output has the length 0; gradients are added to what is there."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    sums = torch.float64 if wide else torch.float32
    dy, y = draws.normal(rows, width), draws.normal(rows, width)
    weight, start = draws.normal(rows, width), draws.normal(width, dtype=torch.float32)
    shift = draws.normal(width) if bias else None
    met, b = (draws.normal(width, rank, dtype=torch.float32) for _ in range(2))
    lengths = draws.normal(width, dtype=torch.float32).abs_().add_(0.5)
    lengths[width // 2] = 0.0
    squares = draws.normal(width, dtype=torch.float32).square_().add_((met * b).sum(1).abs_()).add_(1.0)
    factors = draws.normal(rows, dtype=torch.float32)
    place = draws.normal(width, 2 * rank)

    def run(implementation: MagnitudesImplementation) -> dict[str, Tensor]:
        options = {"dtype": weight.dtype, "device": device}
        scaled = torch.empty(rows, width + 64, **options)[:, :width]
        implementation.scale_rows(weight, factors, out=scaled)
        again = torch.empty(rows, width, **options).copy_(weight)
        implementation.scale_rows(again, factors, out=again)
        dm = implementation.add_dots(dy, y, shift, lengths, out=start.to(sums, copy=True))
        times, columns = torch.empty(width, dtype=sums, device=device), place.clone()
        part = columns[:, rank:]
        implementation.renew_scale(met, b, squares, lengths, 2.0, times=times, columns=part)
        return {"weight": scaled, "again": again, "dm": dm, "times": times, "columns": columns}

    return run


MAGNITUDES = Op(
    name="magnitudes",
    reference=MagnitudesImplementation(
        forward=reference_scale_rows, backward=reference_add_dots, renew_scale=reference_renew_scale
    ),
    triton=MagnitudesImplementation(
        forward=fused_scale_rows, backward=fused_add_dots, renew_scale=fused_renew_scale
    ),
    supports=supports,
    sample=sample,
    needs_dots=NEEDS_DOTS_WHERE_ASKED["magnitudes"],
)
