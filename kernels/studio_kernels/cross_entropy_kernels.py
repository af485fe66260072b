"""The kernels of `cross_entropy`: one for a row, and two for a row that several programs share."""

from __future__ import annotations

from studio_kernels._triton import tl, triton
from studio_kernels.row_loss import cap, weigh_row


@triton.jit
def _read_label(row_pointer, target, vocabulary, LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr):
    """z_y; minus infinity where the label is none of the vocabulary."""
    inside = (target >= 0) & (target < vocabulary)
    q = tl.load(row_pointer + target, mask=inside, other=0.0).to(tl.float32) * LOGIT_SCALE
    return tl.where(inside, cap(q, SOFTCAP), float("-inf"))


@triton.jit
def _reduce(
    row_pointer, target, begin, end, vocabulary, LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr,
    LABEL_SMOOTHING: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Columns `begin` to `end`: the largest z beside the label's, sum_{j != y} of exp(z - that), sum of z."""
    top = -1e30
    totals = tl.zeros((COLUMNS,), dtype=tl.float32)
    sums = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in range(begin, end, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < vocabulary
        q = tl.load(row_pointer + column, mask=inside, other=0.0).to(tl.float32) * LOGIT_SCALE
        z = cap(q, SOFTCAP)
        if LABEL_SMOOTHING > 0.0:
            sums += tl.where(inside, z, 0.0)
        z = tl.where(inside & (column != target), z, float("-inf"))
        higher = tl.maximum(top, tl.max(z, axis=0))
        totals = totals * tl.exp(top - higher) + tl.exp(z - higher)
        top = higher
    return top, tl.sum(totals, axis=0), tl.sum(sums, axis=0)


@triton.jit
def _overwrite(
    row_pointer, target, begin, end, vocabulary, top, pull, push, even, kept, LOGIT_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient over the logits of the columns from `begin` to `end`; pull, push and even hold the row's factor."""
    for first in range(begin, end, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < vocabulary
        q = tl.load(row_pointer + column, mask=inside, other=0.0).to(tl.float32) * LOGIT_SCALE
        z = cap(q, SOFTCAP)
        gradient = tl.where(column == target, push, pull * tl.exp(z - top)) - even
        if SOFTCAP > 0.0:
            gradient *= 1.0 - (z / SOFTCAP) * (z / SOFTCAP)
        gradient = tl.where(kept, gradient, 0.0)
        tl.store(row_pointer + column, gradient.to(row_pointer.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["scale_stride"],
    do_not_specialize_on_alignment=["target_pointer", "scale_pointer", "loss_pointer"],
)
def _row_kernel(
    logits_pointer, target_pointer, scale_pointer, loss_pointer, vocabulary, stride, scale_stride, ignore,
    GRADIENT: tl.constexpr, LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, LABEL_SMOOTHING: tl.constexpr,
    Z_LOSS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = logits_pointer + row * stride
    target = tl.load(target_pointer + row).to(tl.int32)
    kept = target != ignore
    label = _read_label(at, target, vocabulary, LOGIT_SCALE, SOFTCAP)
    top, total, sum_z = _reduce(
        at, target, 0, vocabulary, vocabulary, LOGIT_SCALE, SOFTCAP, LABEL_SMOOTHING, COLUMNS
    )
    others = tl.log(total) + top
    loss, pull, push = weigh_row(others, label, sum_z / vocabulary, LABEL_SMOOTHING, Z_LOSS)
    tl.store(loss_pointer + row, tl.where(kept, loss, 0.0))
    if GRADIENT:
        scale = tl.load(scale_pointer + row * scale_stride) * LOGIT_SCALE
        even = scale * (LABEL_SMOOTHING / vocabulary)
        pull = scale * pull / tl.maximum(total, 1e-30)
        _overwrite(
            at, target, 0, vocabulary, vocabulary, top, pull, scale * push, even, kept, LOGIT_SCALE, SOFTCAP, COLUMNS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["splits", "span"], do_not_specialize_on_alignment=["target_pointer"])
def _split_reduce_kernel(
    logits_pointer, target_pointer, partial_pointer, vocabulary, stride, splits, span,
    LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, LABEL_SMOOTHING: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    at = logits_pointer + row * stride
    target = tl.load(target_pointer + row).to(tl.int32)
    begin = split * span
    end = tl.minimum(begin + span, vocabulary)
    top, total, sum_z = _reduce(
        at, target, begin, end, vocabulary, LOGIT_SCALE, SOFTCAP, LABEL_SMOOTHING, COLUMNS
    )
    partial = partial_pointer + (row * splits + split) * 4
    tl.store(partial, top)
    tl.store(partial + 1, total)
    tl.store(partial + 2, sum_z)
    tl.store(partial + 3, _read_label(at, target, vocabulary, LOGIT_SCALE, SOFTCAP))


@triton.jit(
    do_not_specialize=["scale_stride", "splits", "span"],
    do_not_specialize_on_alignment=["target_pointer", "scale_pointer", "loss_pointer"],
)
def _split_overwrite_kernel(
    logits_pointer, target_pointer, scale_pointer, loss_pointer, partial_pointer, vocabulary, stride, scale_stride,
    ignore, splits, span,
    GRADIENT: tl.constexpr, LOGIT_SCALE: tl.constexpr, SOFTCAP: tl.constexpr, LABEL_SMOOTHING: tl.constexpr,
    Z_LOSS: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    at = logits_pointer + row * stride
    target = tl.load(target_pointer + row).to(tl.int32)
    kept = target != ignore
    slot = tl.arange(0, SPLITS)
    used = slot < splits
    partial = partial_pointer + (row * splits + slot) * 4
    tops = tl.load(partial, mask=used, other=-1e30)
    top = tl.max(tops, axis=0)
    total = tl.sum(tl.load(partial + 1, mask=used, other=0.0) * tl.exp(tops - top), axis=0)
    sum_z = tl.sum(tl.load(partial + 2, mask=used, other=0.0), axis=0)
    # Not from the logits: another program may already have written the gradient over this one.
    label = tl.load(partial_pointer + row * splits * 4 + 3)
    others = tl.log(total) + top
    loss, pull, push = weigh_row(others, label, sum_z / vocabulary, LABEL_SMOOTHING, Z_LOSS)
    tl.store(loss_pointer + row, tl.where(kept, loss, 0.0), mask=split == 0)
    if GRADIENT:
        scale = tl.load(scale_pointer + row * scale_stride) * LOGIT_SCALE
        even = scale * (LABEL_SMOOTHING / vocabulary)
        pull = scale * pull / tl.maximum(total, 1e-30)
        begin = split * span
        end = tl.minimum(begin + span, vocabulary)
        _overwrite(
            at, target, begin, end, vocabulary, top, pull, scale * push, even, kept, LOGIT_SCALE, SOFTCAP, COLUMNS,
        )  # fmt: skip


def block_shape(vocabulary: int) -> dict[str, int]:
    """Columns of one step of a program and its warps: 16 elements a thread.

    Long rows take as large a program as there is: few are then under way at once, and the second read of a row finds it
    in the L2 cache (264 rows of 128 Ki 16-bit logits are 66 MiB; with 4 times as many programs a processor 264 MiB).
    """
    columns = max(256, min(16384 if vocabulary > 65536 else 4096, 1 << (vocabulary - 1).bit_length()))
    return {"COLUMNS": columns, "num_warps": max(4, min(32, columns // 512))}
