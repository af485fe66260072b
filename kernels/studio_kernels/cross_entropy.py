"""Cross-entropy of given logits, row by row, with the gradient written over the logits.

    q = a l        z = k tanh(q / k)  (z = q without a softcap k)        k'_j = 1 - (z_j / k)^2  (1 without)
    o = log sum_{j != y} exp z_j        loss, pull, push of (o, z_y, mean_j z_j): see `row_loss`
    dl_j = c a k'_j [exp(z_j - o) pull - eps / V]  (j != y)        dl_y = c a k'_y [push - eps / V]

N rows, V vocabulary; logits l and their gradients (N, V); label y, loss and the row's factor c (N,). Softcap: Gemma 2,
arXiv:2408.00118; maximum and sum in one pass: Milakov and Gimelshein 2018, arXiv:1805.02867. The gradient was checked
against autograd in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from studio_kernels._triton import gpu_support
from studio_kernels.cross_entropy_kernels import (
    _row_kernel,
    _split_overwrite_kernel,
    _split_reduce_kernel,
    block_shape,
)
from studio_kernels.draws import Draws
from studio_kernels.layout import as_rows
from studio_kernels.row_loss import IGNORE, LOWEST, processors_of, spread, weigh
from studio_kernels.support import Implementation, Op, Support

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**24
REFERENCE_ELEMENTS = 2**24
"""Logits that the reference widens at a time: 64 MiB in float32."""
MOST_SPLITS = 32


def reference_forward(
    logits: Tensor,  # (N, V), overwritten with their gradient
    targets: Tensor,  # (N,) labels
    *,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore: int = IGNORE,
    scale: float | Tensor = 1.0,  # (), or (N,) one factor a row
    gradient: bool = True,
) -> tuple[Tensor, Tensor | None]:  # (N,) float32, (N, V)
    """Losses, which `scale` does not change, and the gradient of sum(scale * losses), written over `logits`.

    Rows whose label is `ignore` have loss and gradient 0; a label that is not in the vocabulary gives a loss that is
    not finite. With gradient=False the logits stay and None is returned for them.
    """
    rows, vocabulary = logits.shape
    wide = torch.promote_types(logits.dtype, torch.float32)
    losses = torch.empty(rows, dtype=wide, device=logits.device)
    factors = spread(scale, rows, wide, logits.device)
    step = max(1, REFERENCE_ELEMENTS // vocabulary)
    for start in range(0, rows, step):
        block = slice(start, start + step)
        target = targets[block].long()
        kept, at = target != ignore, target.clamp(0, vocabulary - 1)[:, None]
        z = logits[block].to(wide, copy=True)
        if logit_scale != 1.0:
            z *= logit_scale
        if softcap:
            z.div_(softcap).tanh_()
            slope = 1 - z * z if gradient else None
            z *= softcap
        label = z.gather(1, at).squeeze(1)
        label = torch.where(at.squeeze(1) == target, label, -torch.inf)
        mean = z.mean(1) if label_smoothing else 0.0
        z.scatter_(1, at, -torch.inf)
        top = z.amax(1).clamp_(min=LOWEST)
        total = z.sub_(top[:, None]).exp_().sum(1)
        loss, pull, push = weigh(total.log() + top, label, mean, label_smoothing, z_loss)
        losses[block] = loss.masked_fill_(~kept, 0.0)
        if not gradient:
            continue
        factor = factors[block] * logit_scale
        z *= (factor * pull / total.clamp(min=torch.finfo(wide).tiny))[:, None]
        z.scatter_(1, at, (factor * push)[:, None])
        if label_smoothing:
            z -= (factor * (label_smoothing / vocabulary))[:, None]
        if softcap:
            z *= slope
        logits[block] = z.masked_fill_(~kept[:, None], 0.0)
    return losses, logits if gradient else None


def split_rows(rows: int, vocabulary: int, processors: int, columns: int) -> tuple[int, int]:
    """Into how many programs a row is split, and the logits of each: where rows are fewer than two a processor."""
    steps = -(-vocabulary // columns)
    splits = min(MOST_SPLITS, steps, -(-2 * processors // max(1, rows)))
    span = -(-steps // splits) * columns
    return -(-vocabulary // span), span


def fused_forward(
    logits: Tensor,  # (N, V), rows of any stride, overwritten with their gradient
    targets: Tensor,  # (N,) labels
    *,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore: int = IGNORE,
    scale: float | Tensor = 1.0,  # (), or (N,) one factor a row
    gradient: bool = True,
) -> tuple[Tensor, Tensor | None]:  # (N,) float32, (N, V)
    """`reference_forward` in one kernel that reads the logits twice and writes once; in two where rows are few."""
    rows, vocabulary = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return losses, logits if gradient else None
    factors = spread(scale, rows, torch.float32, logits.device)
    constants = {"LOGIT_SCALE": logit_scale, "SOFTCAP": softcap, "LABEL_SMOOTHING": label_smoothing}
    ends = {"GRADIENT": gradient, "Z_LOSS": z_loss}
    block = block_shape(vocabulary)
    splits, span = split_rows(rows, vocabulary, processors_of(logits.device), block["COLUMNS"])
    with torch.cuda.device_of(logits):
        if splits == 1:
            _row_kernel[(rows,)](
                logits, targets, factors, losses, vocabulary, logits.stride(0), factors.stride(0), ignore,
                **constants, **ends, **block,
            )  # fmt: skip
            return losses, logits if gradient else None
        partial = torch.empty(rows, splits, 4, dtype=torch.float32, device=logits.device)
        _split_reduce_kernel[(rows, splits)](
            logits, targets, partial, vocabulary, logits.stride(0), splits, span, **constants, **block
        )
        _split_overwrite_kernel[(rows, splits if gradient else 1)](
            logits, targets, factors, losses, partial, vocabulary, logits.stride(0), factors.stride(0), ignore, splits,
            span, SPLITS=MOST_SPLITS, **constants, **ends, **block,
        )  # fmt: skip
    return losses, logits if gradient else None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, forward: Callable, options: dict) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.forward, ctx.options = forward, options
        return forward(as_rows(logits), targets.reshape(-1), gradient=False, **options)[0].view(targets.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        dlogits = logits.clone(memory_format=torch.contiguous_format)
        ctx.forward(as_rows(dlogits), targets.reshape(-1), scale=upstream.reshape(-1), **ctx.options)
        return dlogits, None, None, None


def compose(
    logits: Tensor,  # (..., V), kept
    targets: Tensor,  # (...)
    **options: float | int,
) -> Tensor:  # (...) float32
    """The differentiable losses, by `reference_forward` (see there for the options)."""
    return _CrossEntropy.apply(logits, targets, reference_forward, options)


def fused(
    logits: Tensor,  # (..., V), kept
    targets: Tensor,  # (...)
    **options: float | int,
) -> Tensor:  # (...) float32
    """`compose` by the kernels."""
    return _CrossEntropy.apply(logits, targets, fused_forward, options)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on rows of `width` logits of `dtype` on such a device."""
    if not 1 <= width <= MAX_WIDTH:
        return Support(False, f"The kernel takes rows of 1 to {MAX_WIDTH} elements, not {width}.")
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    layout: str = "contiguous",
    spread_logits: float = 3.0,
    sure: float = 0.0,
    ignored: float = 0.25,
    scale: float = 1.0,
    row_scale: bool = False,
    through_autograd: bool = False,
    gradient: bool = True,
    **options: float,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`: `width` is V, `sure` is added to the labels' logits, `ignored` rows in 1 have no label."""
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    targets = draws.integers(0, width, rows)
    values = torch.randn((rows, width), generator=torch.Generator().manual_seed(1)) * spread_logits
    values.scatter_add_(1, targets.cpu()[:, None], torch.full((rows, 1), sure))
    logits = draws.place(values)
    targets[: round(rows * ignored)] = IGNORE
    factor: float | Tensor = scale
    if row_scale:
        factor = draws.normal(rows, dtype=torch.float32) * scale

    def run(implementation: Implementation) -> dict[str, Tensor]:
        if through_autograd:
            leaf = logits.detach().requires_grad_()
            losses = implementation(leaf, targets, **options)
            return {
                "losses": losses.detach(),
                "dlogits": torch.autograd.grad((losses * factor).sum(), leaf)[0],
            }
        owned = draws.place(values.clone())
        losses, dlogits = implementation.forward(owned, targets, scale=factor, gradient=gradient, **options)
        return {"losses": losses, "dlogits": owned} if gradient else {"losses": losses}

    return run


CROSS_ENTROPY = Op(
    name="cross_entropy",
    reference=Implementation(forward=reference_forward, apply=compose),
    triton=Implementation(forward=fused_forward, apply=fused),
    supports=supports,
    sample=sample,
)
