"""Dropout whose mask is a function of seed, stream, row and column alone, so that backward draws it again.

    y = x / (1 - p) where a 16-bit random number is at least round(65536 p), else 0        backward: dx = the same of dy

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), with the key (seed, seed >> 32) and
the counter (64 floor(c / 512) + c mod 64, t, t >> 32, stream) for row t and column c, gives four 32-bit words, eight
16-bit halves from the lowest on: columns c, c + 64, ..., c + 448 of a span of 512 take one each. (`tl.rand` makes one
number of a whole word's upper 31 bits: twice the arithmetic a column, more than reading and writing x takes.) p is thus
kept to 2^-17; strides and launch shapes do not touch the mask, and a part of the rows, told its `row_offset`, agrees
with the whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**24
"""65,535 spans of 512 columns are the most that a launch grid's second axis takes; this is half."""
ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF
LANES, HALVES = 64, 8
"""Neighbouring columns take neighbouring counters: 128 bytes in 16-bit dtypes are read together."""


def philox(
    counter: tuple[Tensor | int, ...], seed: Tensor | int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # four int64 tensors of 32-bit words
    """Philox4x32-10 of four counters below 2^32 (tensors int64, any shapes that go together, and with the seed's).

    Products of 32 bits wrap in int64, whose upper half still holds their upper word.
    """
    c0, c1, c2, c3 = counter
    seed = torch.as_tensor(seed)
    turns = torch.arange(ROUNDS, device=seed.device).view(-1, *[1] * seed.dim())
    keys = [(seed >> shift) + turns * step & WORD for shift, step in zip((0, 32), KEY_STEPS, strict=True)]
    for turn in range(ROUNDS):
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((high >> 32) ^ (c1 ^ keys[0][turn])) & WORD
        c2 = ((low >> 32) ^ (c3 ^ keys[1][turn])) & WORD
        c1, c3 = high & WORD, low & WORD
    return c0, c1, c2, c3


def dropped(
    rows: int, width: int, p: float, seed: Tensor | int, stream: int, row_offset: int, device: torch.device
) -> Tensor:  # (rows, width) bool
    """Which elements become zero."""
    spans = -(-width // (LANES * HALVES))
    row = (torch.arange(rows, device=device) + row_offset).unsqueeze(1)
    column = torch.arange(spans * LANES, device=device).unsqueeze(0)
    words = philox((column, row & WORD, row >> 32, stream), seed)
    found = torch.empty(rows, spans, HALVES, LANES, dtype=torch.bool, device=device)
    for index, word in enumerate(words):
        for half in (0, 1):
            number = (word >> 16 if half else word & 0xFFFF).view(rows, spans, LANES)
            torch.lt(number, threshold(p), out=found[:, :, 2 * index + half])
    return found.view(rows, spans * HALVES * LANES)[:, :width]


def threshold(p: float) -> int:
    """Half words below this number drop their element.

    Raises:
        ValueError: p is not a probability below 1.
    """
    if not 0.0 <= p < 1.0:
        raise ValueError(f"p is {p}; it must be at least 0 and below 1")
    return round(p * 65536)


def reference(
    x: Tensor,  # (T, width), any row stride
    p: float,
    seed: Tensor | int,  # int64 (), read on the device, so that a captured graph draws anew when it changes
    stream: int,  # below 2^31; which layer, which group
    *,
    row_offset: int = 0,
    out: Tensor | None = None,  # (T, width), any row stride; may be x
    accumulate: bool = False,
) -> Tensor:
    """x with its share p of elements zero and the others over 1 - p, in `out` (made where missing) or added to it.

    The gradient is the same call on the gradient from above. What is dropped is zero whatever it was, NaN too.

    Raises:
        ValueError: p is not a probability below 1.
    """
    gone = dropped(*x.shape, p, seed, stream, row_offset, x.device)
    kept = x.masked_fill(gone, 0.0)
    if accumulate:
        return torch.add(out, kept, alpha=1.0 / (1.0 - p), out=out)
    return torch.mul(kept, 1.0 / (1.0 - p), out=out)


@triton.jit
def _drop_twice(
    word, x_pointer, out_pointer, column, columns, row_mask, threshold, scale, LANES: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    for half in tl.static_range(2):
        at = column + half * LANES
        mask = row_mask & (at < columns)
        x = tl.load(x_pointer + at, mask=mask, other=0.0).to(tl.float32)
        y = tl.where(((word >> (16 * half)) & 0xFFFF).to(tl.int32) < threshold, 0.0, x * scale)
        if ADD:
            y += tl.load(out_pointer + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_pointer + at, y.to(out_pointer.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "row_offset", "stream", "threshold", "scale"])
def _kernel(
    x_pointer, out_pointer, seed_pointer, rows, columns, row_offset, stream, threshold, scale, x_stride, out_stride,
    ADD: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    lane = tl.arange(0, LANES)[None, :]
    number = row + row_offset
    c0 = (tl.program_id(1) * LANES + lane).to(tl.uint32)
    c1, c2 = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(seed_pointer), c0, c1, c2, stream.to(tl.uint32))
    column = tl.program_id(1) * (8 * LANES) + lane
    x_row, out_row, row_mask = x_pointer + row * x_stride, out_pointer + row * out_stride, row < rows
    _drop_twice(w0, x_row, out_row, column, columns, row_mask, threshold, scale, LANES, ADD)
    _drop_twice(w1, x_row, out_row, column + 2 * LANES, columns, row_mask, threshold, scale, LANES, ADD)
    _drop_twice(w2, x_row, out_row, column + 4 * LANES, columns, row_mask, threshold, scale, LANES, ADD)
    _drop_twice(w3, x_row, out_row, column + 6 * LANES, columns, row_mask, threshold, scale, LANES, ADD)


def block_shape() -> dict[str, int]:
    """Rows of one program and its warps: 8 elements a thread and load, one 16-byte load in 16-bit dtypes."""
    return {"ROWS": 8, "num_warps": 2}


def fused(
    x: Tensor,
    p: float,
    seed: Tensor | int,
    stream: int,
    *,
    row_offset: int = 0,
    out: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """`reference` in one kernel, with the same mask to the bit."""
    limit, (rows, columns) = threshold(p), x.shape
    block = choose("dropout", HALVES * LANES, block_shape(), x.device)
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not isinstance(seed, Tensor):
        seed = torch.full((), seed, dtype=torch.int64, device=x.device)
    with torch.cuda.device_of(x):
        _kernel[(-(-rows // block["ROWS"]), -(-columns // (HALVES * LANES)))](
            x, out, seed, rows, columns, row_offset, stream, limit, 1.0 / (1.0 - p), x.stride(0), out.stride(0),
            ADD=accumulate, LANES=LANES, **block,
        )  # fmt: skip
    return out


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    layout: str = "sliced",
    p: float = 0.25,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """Both halves of the rows drawn by themselves, all at once onto other values, and backward; see `Op.sample`."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    x, dy, residual = (draws.normal(rows, width) for _ in range(3))
    seed, half = torch.full((), 2**40 + 77, dtype=torch.int64, device=device), rows // 2

    def run(implementation: Implementation) -> dict[str, Tensor]:
        y = torch.empty(x.shape, dtype=x.dtype, device=device)
        total = torch.empty(x.shape, dtype=x.dtype, device=device).copy_(residual)
        implementation.forward(x[:half], p, seed, 3, out=y[:half])
        implementation.forward(x[half:], p, seed, 3, row_offset=half, out=y[half:])
        implementation.forward(x, p, seed, 4, out=total, accumulate=True)
        dx = implementation.backward(dy, p, seed, 3)
        return {"y": y, "kept": y != 0, "sum": total, "dx": dx, "passed": dx != 0}

    return run


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether `fused` may be used on rows of `width` elements of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


DROPOUT = Op(
    name="dropout",
    reference=Implementation(forward=reference, backward=reference),
    triton=Implementation(forward=fused, backward=fused),
    supports=supports,
    sample=sample,
)
