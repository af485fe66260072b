"""AdamW over flat buffers: norm, clipping and the skip of a broken step, all on the device.

    g = f g'        m += (1 - b1) (g - m)        v += (1 - b2) (g^2 - v)        c = 1 - b^t

    p -= rate (m / c1) / ((v / c2)^(1/2) + epsilon) + rate decay p

n elements; p, g', m, v (n,) in float32. f is the inverse of the loss scale times min(1, limit / (|g| + 1e-6)), as
torch.nn.utils.clip_grad_norm_ clips. t counts applied steps: where the norm is not finite nothing is written, and t
stays. Everything that changes between steps stands in two small device tensors, so that a step needs no
synchronisation and a CUDA graph replays it:

- settings (3,) float32, written by the caller: rate, limit (0 for none), inverse of the loss scale;
- state (3,) float32, kept by the op, zeros at the start: t, c1, c2 (c += (1 - b)(1 - c), which loses no digits to
  1 - b^t, and needs no power).

Source: Loshchilov and Hutter 2019, arXiv:1711.05101; torch.optim.AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels._triton import gpu_support, tl, triton
from studio_kernels.op import Implementation, Op, Support
from studio_kernels.test_inputs import Draws
from studio_kernels.tuned_configs import choose

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""Of a run that has such a step; the buffers are float32."""
RATE, LIMIT, INVERSE_SCALE = range(3)
"""Places in the settings."""
APPLIED = 0
"""Place of the number of applied steps in the state."""
NORM = 7
"""Place of the gradient's norm in the coefficients, which are: 1 where the step is applied, f, 1 - b1, 1 - b2,
rate / c1, c2^(-1/2), rate, norm. All but the norm are 0 in a skipped step."""
PARTIALS = 1024
"""Programs that share the sum of squares. A constant, so that the order of the sum depends on n alone."""
ELEMENTS = 1024
"""Elements of a program's block: two loads of 16 bytes a thread and buffer."""
LARGEST_BLOCK = 4096
"""Most that `tuned_configs` may give the step, which works on elements one by one; the sum of squares
keeps its order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps(Implementation):
    """AdamW's parts, for callers with several buffers; `forward` puts them together for one."""

    squares: Callable[[Tensor], Tensor]
    """(gradient (n,)) -> () sum of squares; sums of several buffers may be added."""
    advance: Callable[..., Tensor]
    """(squares (), settings, state, *, beta1, beta2) -> coefficients (8,); counts the step in `state`."""
    step: Callable[..., None]
    """(p, g, m, v, coefficients, *, epsilon, weight_decay): writes p, m and v."""


def _composed(squares: Callable, advance: Callable, step: Callable) -> Steps:
    """The implementation whose `forward` calls the three parts."""

    def forward(
        parameters: Tensor,  # (n,) float32
        gradient: Tensor,  # (n,) float32
        first: Tensor,  # (n,) float32
        second: Tensor,  # (n,) float32
        *,
        settings: Tensor,
        state: Tensor,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> Tensor:
        """One step in place; returns the gradient's norm () before clipping."""
        coefficients = advance(squares(gradient), settings, state, beta1=beta1, beta2=beta2)
        step(parameters, gradient, first, second, coefficients, epsilon=epsilon, weight_decay=weight_decay)
        return coefficients[NORM]

    return Steps(forward=forward, squares=squares, advance=advance, step=step)


def reference_squares(gradient: Tensor) -> Tensor:
    """The sum of squares (), without a temporary."""
    return torch.linalg.vector_norm(gradient).square()


def reference_advance(
    squares: Tensor, settings: Tensor, state: Tensor, *, beta1: float, beta2: float
) -> Tensor:
    """The coefficients (8,) of this step; counts it in `state` unless it is to be skipped."""
    rate, limit, inverse_scale = settings.unbind()
    applied, correction1, correction2 = state.unbind()
    norm = squares.sqrt() * inverse_scale
    finite = norm.isfinite()
    clip = torch.where(limit > 0, (limit / (norm + 1e-6)).clamp(max=1), 1)
    counted = finite.to(norm.dtype)
    weight1, weight2 = counted * (1 - beta1), counted * (1 - beta2)
    applied.add_(counted)
    correction1.add_(weight1 * (1 - correction1))
    correction2.add_(weight2 * (1 - correction2))
    size, root = rate / correction1, correction2.rsqrt()
    wanted = torch.stack([counted, clip * inverse_scale, weight1, weight2, size, root, rate])
    return torch.cat([torch.where(finite, wanted, 0), norm[None]])


def reference_step(
    parameters: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    coefficients: Tensor,
    *,
    epsilon: float,
    weight_decay: float,
) -> None:
    """Update all in place; in a skipped step weights and rates of 0 leave everything as it was."""
    applied, factor, weight1, weight2, size, root, rate, _ = coefficients.unbind()
    applied = applied > 0
    scratch = torch.where(applied, gradient, 0).mul_(factor)  # 0 times what is not finite would be NaN
    first.lerp_(scratch, weight1)
    second.lerp_(scratch.square_(), weight2)
    torch.sqrt(second, out=scratch).mul_(root).add_(epsilon)
    torch.div(first, scratch, out=scratch).mul_(size)
    if weight_decay:
        scratch.addcmul_(parameters, rate * weight_decay)
    parameters.sub_(scratch)


@triton.jit(do_not_specialize=["blocks_per_program"])
def _squares_kernel(gradient_pointer, partial_pointer, elements, blocks_per_program, ELEMENTS: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    partial = tl.zeros((ELEMENTS,), dtype=tl.float32)
    for block in range(blocks_per_program):
        at = (program * blocks_per_program + block) * ELEMENTS + tl.arange(0, ELEMENTS)
        gradient = tl.load(gradient_pointer + at, mask=at < elements, other=0.0)
        partial += gradient * gradient
    tl.store(partial_pointer + program, tl.sum(partial, axis=0))


@triton.jit()
def _advance_kernel(squares_pointer, settings_pointer, state_pointer, coefficient_pointer, weight1, weight2):
    """One program of scalars."""
    rate = tl.load(settings_pointer)
    limit = tl.load(settings_pointer + 1)
    inverse_scale = tl.load(settings_pointer + 2)
    norm = tl.sqrt_rn(tl.load(squares_pointer)) * inverse_scale
    finite = tl.where(norm < float("inf"), 1.0, 0.0)  # false for NaN, too
    clip = tl.where(limit > 0.0, tl.minimum(tl.div_rn(limit, norm + 1e-6), 1.0), 1.0)
    weight1 = finite * weight1
    weight2 = finite * weight2
    correction1 = tl.load(state_pointer + 1)
    correction1 += weight1 * (1.0 - correction1)
    correction2 = tl.load(state_pointer + 2)
    correction2 += weight2 * (1.0 - correction2)
    applied = norm < float("inf")
    tl.store(state_pointer, tl.load(state_pointer) + finite)
    tl.store(state_pointer + 1, correction1)
    tl.store(state_pointer + 2, correction2)
    tl.store(coefficient_pointer, finite)
    tl.store(coefficient_pointer + 1, tl.where(applied, clip * inverse_scale, 0.0))
    tl.store(coefficient_pointer + 2, weight1)
    tl.store(coefficient_pointer + 3, weight2)
    tl.store(coefficient_pointer + 4, tl.where(applied, tl.div_rn(rate, correction1), 0.0))
    tl.store(coefficient_pointer + 5, tl.where(applied, tl.div_rn(1.0, tl.sqrt_rn(correction2)), 0.0))
    tl.store(coefficient_pointer + 6, tl.where(applied, rate, 0.0))
    tl.store(coefficient_pointer + 7, norm)


@triton.jit()
def _step_kernel(
    parameter_pointer, gradient_pointer, first_pointer, second_pointer, coefficient_pointer, elements,
    epsilon, weight_decay, ELEMENTS: tl.constexpr,
):  # fmt: skip
    if tl.load(coefficient_pointer) > 0.0:
        at = tl.program_id(0).to(tl.int64) * ELEMENTS + tl.arange(0, ELEMENTS)
        mask = at < elements
        gradient = tl.load(gradient_pointer + at, mask=mask, other=0.0) * tl.load(coefficient_pointer + 1)
        first = tl.load(first_pointer + at, mask=mask, other=0.0)
        first += tl.load(coefficient_pointer + 2) * (gradient - first)
        second = tl.load(second_pointer + at, mask=mask, other=0.0)
        second += tl.load(coefficient_pointer + 3) * (gradient * gradient - second)
        root = tl.sqrt_rn(second) * tl.load(coefficient_pointer + 5) + epsilon
        parameter = tl.load(parameter_pointer + at, mask=mask, other=0.0)
        decay = parameter * (tl.load(coefficient_pointer + 6) * weight_decay)
        parameter -= tl.div_rn(first, root) * tl.load(coefficient_pointer + 4) + decay
        tl.store(parameter_pointer + at, parameter, mask=mask)
        tl.store(first_pointer + at, first, mask=mask)
        tl.store(second_pointer + at, second, mask=mask)


def triton_squares(gradient: Tensor) -> Tensor:
    """The sum of squares (), in two stages of fixed order."""
    blocks = -(-gradient.numel() // ELEMENTS)
    blocks_per_program = max(1, -(-blocks // PARTIALS))
    partial = torch.empty(
        max(1, -(-blocks // blocks_per_program)), dtype=torch.float32, device=gradient.device
    )
    with torch.cuda.device_of(gradient):
        _squares_kernel[(len(partial),)](
            gradient, partial, gradient.numel(), blocks_per_program, ELEMENTS=ELEMENTS, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return partial.sum()


def triton_advance(squares: Tensor, settings: Tensor, state: Tensor, *, beta1: float, beta2: float) -> Tensor:
    """`reference_advance` in one launch."""
    coefficients = torch.empty(NORM + 1, dtype=torch.float32, device=state.device)
    with torch.cuda.device_of(state):
        _advance_kernel[(1,)](
            squares, settings, state, coefficients, 1 - beta1, 1 - beta2, num_warps=1, enable_fp_fusion=False
        )
    return coefficients


def triton_step(
    parameters: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    coefficients: Tensor,
    *,
    epsilon: float,
    weight_decay: float,
) -> None:
    """`reference_step` in one launch, 28 bytes an element."""
    if not parameters.numel():
        return
    block = choose("adamw", LARGEST_BLOCK, {"ELEMENTS": ELEMENTS, "num_warps": 4}, parameters.device)
    with torch.cuda.device_of(parameters):
        _step_kernel[(-(-parameters.numel() // block["ELEMENTS"]),)](
            parameters, gradient, first, second, coefficients, parameters.numel(), epsilon, weight_decay,
            enable_fp_fusion=False, **block,
        )  # fmt: skip


def supports(
    *, device_type: str, capability: tuple[int, int] | None, dtype: torch.dtype, width: int
) -> Support:
    """Whether the kernels may be used on such a device; `width` does not matter."""
    return gpu_support(device_type, capability, dtype, DTYPES)


def sample(
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    wide: bool = False,
    limit: float = 1.0,
    steps: int = 2,
    overflow: bool = False,
) -> Callable[[Implementation], dict[str, Tensor]]:
    """See `Op.sample`: `steps` steps of rows x width elements; the first gradient overflows if asked."""
    draws = Draws(dtype=dtype, device=device, wide=wide)
    elements = rows * width
    held = torch.float64 if wide else torch.float32
    buffers = [draws.normal(elements, scale=scale).to(held) for scale in (0.02, 1e-3, 1e-6)]
    buffers[2].abs_()
    gradients = [draws.normal(elements, scale=60.0).to(held) for _ in range(steps)]
    if overflow:
        gradients[0][elements // 2] = float("inf")
    settings = torch.tensor([1e-3, limit, 2**-14], dtype=held, device=device)

    def run(implementation: Implementation) -> dict[str, Tensor]:
        parameters, first, second = (each.clone() for each in buffers)
        state = torch.zeros(3, dtype=held, device=device)
        for gradient in gradients:
            norm = implementation.forward(
                parameters, gradient, first, second, settings=settings, state=state, weight_decay=0.1
            )
        return {"norm": norm, "parameters": parameters, "first": first, "second": second, "state": state}

    return run


ADAMW = Op(
    name="adamw",
    reference=_composed(reference_squares, reference_advance, reference_step),
    triton=_composed(triton_squares, triton_advance, triton_step),
    supports=supports,
    sample=sample,
)
