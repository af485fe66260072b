"""The kernels of `linear_cross_entropy`: one for a tile of logits, one for a block of rows whose tiles are done."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.ce_math import cap, weigh_row


@triton.jit
def _rescale(pointer, length, factor, COLUMNS: tl.constexpr):
    """Multiplies `length` numbers in place."""
    for first in range(0, length, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        values = tl.load(pointer + column, mask=column < length, other=0.0).to(tl.float32) * factor
        tl.store(pointer + column, values.to(pointer.dtype.element_ty), mask=column < length)


@triton.jit(
    do_not_specialize=["start", "width"],
    do_not_specialize_on_alignment=[
        "target_pointer", "reference_pointer", "total_pointer", "label_pointer",
    ],
)  # fmt: skip
def _turn_kernel(
    z_pointer, share_pointer, target_pointer, reference_pointer, total_pointer, label_pointer, accumulated_pointer,
    start, width, hidden, z_stride, share_stride,
    GRADIENT: tl.constexpr, SOFTCAP: tl.constexpr, DEPTH: tl.constexpr, REACH: tl.constexpr, EVEN: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row of a tile: z, in place, becomes its shares E k', and the row's state takes them in."""
    if EVEN:
        width = width // 16 * 16  # the compiler may then load and store 16 bytes at a time
    row = tl.program_id(0).to(tl.int64)
    z_pointer += row * z_stride
    share_pointer += row * share_stride
    target = tl.load(target_pointer + row).to(tl.int32) - start
    later = start > 0
    reference = tl.load(reference_pointer + row, mask=later, other=-1e30)
    total = tl.load(total_pointer + row, mask=later, other=0.0)
    label = tl.load(label_pointer + row, mask=later, other=float("-inf"))
    here = (target >= 0) & (target < width)
    # Before any share is written over the tile.
    own = tl.load(z_pointer + target, mask=here, other=0.0)
    if SOFTCAP > 0.0:
        own = cap(own * SOFTCAP, SOFTCAP)
    label = tl.where(here, own, label)
    totals = tl.zeros((COLUMNS,), dtype=tl.float32)
    column = tl.arange(0, COLUMNS)
    ahead = tl.load(z_pointer + column, mask=column < width, other=0.0)
    for first in range(0, width, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < width
        z = ahead
        # The next step's logits are under way while this one's wait for each other; shares never reach that far.
        ahead = tl.load(z_pointer + column + COLUMNS, mask=column < width - COLUMNS, other=0.0)
        if SOFTCAP > 0.0:
            z = cap(z * SOFTCAP, SOFTCAP)
        rival = inside & (column != target)
        # Every thread waits here for all loads of this step: what it writes below may lie where another still reads.
        top = tl.max(tl.where(rival, z, float("-inf")), axis=0) * 1.4426950408889634
        if top > reference + REACH:
            # Powers of two, so that shares round alike whatever they are counted from.
            moved = tl.ceil(top) - DEPTH
            factor = tl.exp2(reference - moved)
            total *= factor
            totals *= factor
            if GRADIENT:
                tl.debug_barrier()
                _rescale(share_pointer, first, factor, COLUMNS)
                if later:
                    _rescale(accumulated_pointer + row * hidden, hidden, factor, COLUMNS)
                tl.debug_barrier()
            reference = moved
        # In one rounding: a product rounded first would be off by 2e-6 where z is 30. The second constant is what
        # float32 leaves of the first: without it shares are off by 2e-6 where z is 150.
        power = tl.fma(z, 1.92596298909109e-08, tl.fma(z, 1.4426950408889634, -reference))
        share = tl.where(rival, tl.exp2(power), 0.0)
        totals += share
        if GRADIENT:
            if SOFTCAP > 0.0:
                share *= 1.0 - (z / SOFTCAP) * (z / SOFTCAP)
            tl.store(share_pointer + column, share.to(share_pointer.dtype.element_ty), mask=inside)
    tl.store(reference_pointer + row, reference)
    tl.store(total_pointer + row, total + tl.sum(totals, axis=0))
    tl.store(label_pointer + row, label)


@triton.jit(
    do_not_specialize=["scale_stride"],
    do_not_specialize_on_alignment=[
        "target_pointer", "reference_pointer", "total_pointer", "label_pointer", "scale_pointer", "loss_pointer",
    ],
)  # fmt: skip
def _finish_kernel(
    target_pointer, reference_pointer, total_pointer, label_pointer, accumulated_pointer, weight_pointer,
    scale_pointer, loss_pointer, out_pointer, vocabulary, hidden, weight_stride, scale_stride, out_stride, ignore,
    GRADIENT: tl.constexpr, LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row whose tiles have all been taken in: its loss, and its gradient from A and the label's word."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_pointer + row).to(tl.int64)
    kept = target != ignore
    total = tl.load(total_pointer + row)
    label = tl.load(label_pointer + row)
    # ln 2 in two parts, the first of 15 bits: its product with the reference, a whole number, is exact.
    reference = tl.load(reference_pointer + row)
    others = reference * 0.693145751953125 + (reference * 1.4286068203094173e-06 + tl.log(total))
    loss, miss = weigh_row(others, label)
    scale = tl.load(scale_pointer + row * scale_stride)
    tl.store(loss_pointer + row, tl.where(kept, loss * scale, 0.0))
    if GRADIENT:
        scale *= LOGIT_SCALE
        pull = scale * miss / tl.maximum(total, 1e-30)
        push = -scale * miss
        if SOFTCAP > 0.0:
            push *= 1.0 - (label / SOFTCAP) * (label / SOFTCAP)
        known = (target >= 0) & (target < vocabulary)
        for first in range(0, hidden, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            inside = column < hidden
            dx = pull * tl.load(accumulated_pointer + row * hidden + column, mask=inside, other=0.0)
            word = tl.load(weight_pointer + target * weight_stride + column, mask=inside & known, other=0.0)
            dx += push * word.to(tl.float32)
            dx = tl.where(kept, dx, 0.0)
            tl.store(
                out_pointer + row * out_stride + column, dx.to(out_pointer.dtype.element_ty), mask=inside
            )


def block_shape(columns: int) -> dict[str, int]:
    """Columns of one step of a program and its warps: 8 float32 a thread, 4 programs a processor."""
    step = max(256, min(2048, 1 << (columns - 1).bit_length()))
    return {"COLUMNS": step, "num_warps": max(4, step // 256)}
