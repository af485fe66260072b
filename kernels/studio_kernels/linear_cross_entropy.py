"""The loss head: the output embedding and cross-entropy as one, in portions; the full logits never exist.

    u = a (x W^T + b)        z = k tanh(u / k)  (z = u without a softcap k)        k'_j = 1 - (z_j / k)^2  (1 without)
    o = log sum_{j != y} exp z_j        loss = softplus(o - z_y), s = sigmoid(o - z_y): see `ce_math`
    dx = c a s [sum_{j != y} E_j k'_j W_j / S - k'_y W_y]
    dW_j = sum_t c a s E_j k'_j / S x_t        dW_y has -c a s k'_y in the place of the label's share
    E_j = exp(z_j - m)        S = sum_{j != y} E_j

N rows (labelled positions), H hidden, V vocabulary; x and dx (N, H), W (V, H), bias b (V,); label y and the row's
factor c (N,). As in attention with W for keys and values, one pass over W serves both directions in 4 N H V operations:
for a block of R rows and a tile of C words, Z = x W^T in float32, Z turns in place into E k' in the dtype of x, and
A += (E k') W in float32; S and A are counted from a reference m that moves when a later tile exceeds it.
The label's own word is left out of E and comes in at the end, weighted by `ce_math`: for a token that the model is
sure of, a 16-bit E_y would leave a rounding error far above the true gradient. Where dW is asked for, a tile holds all
words of its rows, E k' stays in float32, and the logits' gradients G (R, V), rounded once, serve dx = G W and
dW += G^T x: E k' rounded before 1 / S would leave 1.5 times the error in dW (measured on an H200).
Sources: Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682. The gradient was
checked against autograd in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from studio_kernels._triton import gpu_support
from studio_kernels.ce_chunks import portions, trained_rows, workspace_bytes
from studio_kernels.ce_math import IGNORE, processors_of, spread
from studio_kernels.ce_tile import Block, finish_block, turn_tile
from studio_kernels.entropy import EntropySums
from studio_kernels.linear_cross_entropy_kernels import _finish_kernel, _turn_kernel, block_shape
from studio_kernels.matmul import multiply_into
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

__all__ = ["LINEAR_CROSS_ENTROPY", "log_probabilities", "portions", "workspace_bytes"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_WIDTH = 2**20


def _forward(
    turn: Callable,
    finish: Callable,
    unit_of_log: float,
    hidden: Tensor,  # (N, H)
    weight: Tensor,  # (V, H)
    targets: Tensor,  # (N,) labels
    *,
    scale: float | Tensor = 1.0,  # (), or (N,) one factor a row
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    bias: Tensor | None = None,  # (V,)
    ignore: int = IGNORE,
    gradient: bool = True,
    reduction: str = "sum",
    rows: int = 0,
    columns: int = 0,
    out: Tensor | None = None,  # (N, H), may be `hidden`
    weight_gradient: Tensor | None = None,  # (V, H) float32
    entropies: Tensor | None = None,  # (N,) float32
) -> tuple[Tensor, Tensor | None]:  # () or (N,) float32, (N, H)
    """The loss and its gradient in `hidden`.

    The loss is the sum of scale * loss over the rows, or with reduction="none" each row's; the gradient is that of the
    sum, so it holds `scale`, too, and is None with gradient=False, which takes half the time. Rows whose label is
    `ignore` have loss and gradient 0; any other label that is not in the vocabulary gives a loss that is not finite.
    `rows` and `columns` set R and C (a multiple of 16), 0 leaves them to `portions`. Nothing waits for the device.
    dW is added to `weight_gradient` where given: a tile then holds all V words of fewer rows, in as many bytes.
    `entropies`, where given, takes the entropy of each row's words (see `entropy`).

    Raises:
        ValueError: hidden and weight differ in dtype, or dW is asked for without the gradient.
    """
    if hidden.dtype != weight.dtype:
        raise ValueError(f"The hidden states are {hidden.dtype}, the output embedding is {weight.dtype}.")
    count, width = hidden.shape
    vocabulary, device = weight.shape[0], hidden.device
    wide = torch.promote_types(hidden.dtype, torch.float32)
    own_rows, own_columns = portions(count, width, vocabulary, processors_of(device))
    rows, columns = min(count, rows or own_rows), columns or own_columns
    if weight_gradient is not None:
        if not gradient:
            raise ValueError("The output embedding's gradient comes with that of the hidden states.")
        rows, columns = trained_rows(count, rows, columns, vocabulary)
    factors = spread(scale, count, wide, device)
    losses = torch.empty(count, dtype=wide, device=device)
    if gradient and out is None:
        out = torch.empty(count, width, dtype=hidden.dtype, device=device)
    tile = torch.empty(rows, columns, dtype=wide, device=device)
    state = torch.empty(3, rows, dtype=wide, device=device)
    sums = torch.empty(rows, width, dtype=wide, device=device) if gradient else None
    # The tile holds u / k with a softcap.
    unit = logit_scale / (softcap or 1.0)
    for first in range(0, count, max(1, rows)):
        part = slice(first, min(first + rows, count))
        size = part.stop - part.start
        block = Block(
            targets=targets[part], reference=state[0, :size], total=state[1, :size], label=state[2, :size],
            accumulated=None if sums is None else sums[:size], vocabulary=vocabulary, softcap=softcap, ignore=ignore,
        )  # fmt: skip
        unsure = None if entropies is None else EntropySums(size, tile)
        for start in range(0, vocabulary, columns):
            words = weight[start : start + columns]
            z = tile[:size, : words.shape[0]]
            if bias is not None:
                z.copy_(bias[start : start + columns].to(wide).expand_as(z)).mul_(unit)
            multiply_into(hidden[part], words.t(), z, add=bias is not None, scale=unit)
            if unsure is not None:
                unsure.take(z, softcap)
            if weight_gradient is not None:
                shares = turn(block, z, start, wide)
                pulls = _finish_shares(block, shares, factors[part] * logit_scale, unit_of_log, hidden.dtype)
                multiply_into(pulls, words, block.accumulated, add=False)
                multiply_into(pulls.t(), hidden[part], weight_gradient, add=True)
                del shares, pulls  # before the next block makes its own
                continue
            shares = turn(block, z, start, hidden.dtype if gradient else None)
            if gradient:
                multiply_into(shares, words, block.accumulated, add=start > 0)
                del shares  # before the next tile makes its own
        given = out[part] if gradient and weight_gradient is None else None
        finish(block, weight, factors[part], logit_scale, losses[part], given)
        if unsure is not None:
            unsure.finish(entropies[part])
        if weight_gradient is not None:
            out[part].copy_(block.accumulated)
    return losses.sum() if reduction == "sum" else losses, out if gradient else None


def _finish_shares(
    block: Block, shares: Tensor, factors: Tensor, unit_of_log: float, dtype: torch.dtype
) -> Tensor:
    """The gradients (R, V) in `dtype` of the logits of whole rows: c a E k' / S pull, and the label's.

    `shares`: E k' (R, V) in float32, used up; `unit_of_log`: what the reference counts in.
    """
    kept = block.targets != block.ignore
    others = block.total.log() + block.reference * unit_of_log
    pull = torch.sigmoid(others - block.label).mul_(factors).masked_fill_(~kept, 0.0)
    of_rivals = (pull / block.total.clamp(min=torch.finfo(pull.dtype).tiny))[:, None]
    out = shares if shares.dtype == dtype else torch.empty_like(shares, dtype=dtype)
    torch.mul(shares, of_rivals, out=out)
    if block.softcap:
        # 0 times infinity
        pull = (pull * (1 - (block.label / block.softcap).square())).masked_fill_(~kept, 0.0)
    at = block.targets.clamp(0, block.vocabulary - 1)[:, None]
    return out.scatter_(1, at, pull.neg_().to(dtype)[:, None])


def reference_forward(
    hidden: Tensor, weight: Tensor, targets: Tensor, **options
) -> tuple[Tensor, Tensor | None]:
    """`_forward` with each tile in some six passes of PyTorch."""
    return _forward(turn_tile, finish_block, 1.0, hidden, weight, targets, **options)


def _fused_turn(block: Block, z: Tensor, start: int, dtype: torch.dtype | None) -> Tensor | None:
    """`turn_tile` in one launch: reads the tile once and writes the shares over it."""
    gradient = dtype is not None
    size, width = z.shape
    shares = z.view(dtype)[:, :width] if gradient else z
    # A share reaches up to 2^REACH before the row is counted anew, from DEPTH powers below its largest: float16 ends at
    # 2^16. In the other dtypes that happens to next to no row, and the sum of 2^18 shares stays far below 2^127.
    depth, reach = (8.0, 15.0) if dtype is torch.float16 else (0.0, 32.0)
    shape = choose("linear_cross_entropy", block.vocabulary, block_shape(block.vocabulary), z.device)
    with torch.cuda.device_of(z):
        _turn_kernel[(size,)](
            z, shares, block.targets, block.reference, block.total, block.label,
            block.accumulated if gradient else z, start, width, block.accumulated.shape[1] if gradient else 0,
            z.stride(0), shares.stride(0), GRADIENT=gradient, SOFTCAP=block.softcap, DEPTH=depth, REACH=reach, **shape,
            EVEN=block.vocabulary % 16 == 0 and z.stride(0) % 16 == 0,
        )  # fmt: skip
    return shares if gradient else None


def _fused_finish(
    block: Block, weight: Tensor, factors: Tensor, logit_scale: float, losses: Tensor, out: Tensor | None
) -> None:
    """`finish_block` in one launch."""
    gradient = out is not None
    unused = losses
    with torch.cuda.device_of(losses):
        _finish_kernel[(losses.shape[0],)](
            block.targets, block.reference, block.total, block.label, block.accumulated if gradient else unused,
            weight, factors, losses, out if gradient else unused, *weight.shape, weight.stride(0), factors.stride(0),
            out.stride(0) if gradient else 0, block.ignore,
            GRADIENT=gradient, LOGIT_SCALE=logit_scale, SOFTCAP=block.softcap, **block_shape(weight.shape[1]),
        )  # fmt: skip


def fused_forward(hidden: Tensor, weight: Tensor, targets: Tensor, **options) -> tuple[Tensor, Tensor | None]:
    """`_forward` with each tile in one launch beside the two matrix products."""
    return _forward(_fused_turn, _fused_finish, math.log(2), hidden, weight, targets, **options)


def log_probabilities(
    hidden: Tensor,  # (N, H)
    weight: Tensor,  # (V, H)
    targets: Tensor,  # (N,)
    *,
    forward: Callable = reference_forward,
    **options,
) -> tuple[Tensor, Tensor | None]:  # (N,) float32, (N, H)
    """log p(target) of each row and its gradient in `hidden`, by an implementation's `forward` with its options.

    A loss of these with upstream gradients g (N,), known only later, has the gradient g_t unit_t in row t. Rows to be
    ignored have 0 for both.
    """
    return forward(hidden, weight, targets, scale=-1.0, reduction="none", **options)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, targets: Tensor, forward: Callable, options: dict
    ) -> Tensor:
        if ctx.needs_input_grad[1]:
            raise ValueError("The loss head gives no gradient for its weight, which must be frozen.")
        loss, gradient = forward(hidden, weight, targets, gradient=ctx.needs_input_grad[0], **options)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * upstream[..., None]).to(gradient.dtype), None, None, None, None


def compose(hidden: Tensor, weight: Tensor, targets: Tensor, **options) -> Tensor:
    """The differentiable loss, by `reference_forward`.

    Raises:
        ValueError: the weight wants a gradient.
    """
    return _LinearCrossEntropy.apply(hidden, weight, targets, reference_forward, options)


def fused(hidden: Tensor, weight: Tensor, targets: Tensor, **options) -> Tensor:
    """`compose` by the kernels."""
    return _LinearCrossEntropy.apply(hidden, weight, targets, fused_forward, options)


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on hidden states of `width` elements of `dtype` on such a device."""
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
    vocabulary: int = 257,
    layout: str = "contiguous",
    sure: float = 0.0,
    ignored: float = 0.25,
    bias: bool = False,
    ramp: float = 0.0,
    row_scale: bool = False,
    scale: float = 1.0,
    through_autograd: bool = False,
    in_place: bool = False,
    trained: bool = False,
    **options,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`: `width` is H. `sure` adds the label's word to x, `ignored` is a share; `in_place`: dx over x.

    `trained`: dW is added to ones.
    `ramp`: by how much the logits rise from the first word to the last, so that later tiles exceed earlier ones.
    """
    draws = Draws(dtype=dtype, device=device, wide=wide, layout=layout)
    targets = draws.integers(0, vocabulary, rows)
    generator = torch.Generator().manual_seed(1)
    words = torch.randn((vocabulary, width), generator=generator) * (3.0 / width**0.5)
    values = torch.randn((rows, width), generator=generator) + sure * words[targets.cpu()]
    hidden = draws.place(values)
    draws.layout = "contiguous"
    weight = draws.place(words)
    if bias or ramp:
        options["bias"] = draws.normal(vocabulary) + draws.place(
            torch.arange(vocabulary) * (ramp / vocabulary)
        )
    targets[: round(rows * ignored)] = IGNORE
    factor: float | Tensor = draws.normal(rows, dtype=torch.float32) * scale if row_scale else scale

    def run(implementation: Implementation) -> dict[str, Tensor]:
        if through_autograd:
            leaf = hidden.detach().requires_grad_()
            loss = implementation(leaf, weight, targets, scale=factor, **options)
            return {"loss": loss.detach(), "dhidden": torch.autograd.grad(loss.sum(), leaf)[0]}
        x = draws.place(values.clone()) if in_place else hidden
        given = options | ({"out": x} if in_place else {})
        if trained:
            wide_dtype = torch.promote_types(weight.dtype, torch.float32)
            given["weight_gradient"] = torch.ones_like(weight, dtype=wide_dtype)
        loss, dhidden = implementation.forward(x, weight, targets, scale=factor, **given)
        found = {"loss": loss} | ({} if dhidden is None else {"dhidden": dhidden})
        return found | ({"dweight": given["weight_gradient"]} if trained else {})

    return run


LINEAR_CROSS_ENTROPY = Op(
    name="linear_cross_entropy",
    reference=Implementation(forward=reference_forward, apply=compose),
    triton=Implementation(forward=fused_forward, apply=fused),
    supports=supports,
    sample=sample,
)
