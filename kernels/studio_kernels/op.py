"""What every kernel file deals in: a verdict with its reason, one way to compute an op, and an op with its two ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCORES_BYTES = 64 << 20
"""One block of scores in float32 where attention is composed of matrix products (attention_reference.py); some three of
them live at a time."""
DECODED_BYTES = 512 << 20
"""Of packed experts that lie decoded at a time (grouped_matmul.py). Decoded anew for each tile of rows they are slower
from 128 rows on: 1.23 ms, not 0.40, with 128 experts of 1,536 x 2,048 on an H200, 7.6 and 0.71 with 32,768 rows."""
PORTION_BYTES = 64 << 20
"""Of the products by which gradients of DoRA's lengths are made and summed up, at a time (magnitudes.py)."""
NEEDS_DOTS = {
    "rms_norm": False,
    "glu": False,
    "rope": False,
    "dropout": False,
    "nf4": False,
    "lora": True,
    "linear_cross_entropy": False,
    "adamw": False,
    "flash": True,
}
"""Op -> whether its kernel multiplies matrices (tl.dot). Before compute capability 8.0 Triton compiles those without
tensor cores: such an op stays in PyTorch there, an elementwise or reduction one does not."""
NEEDS_DOTS_WHERE_ASKED = {"magnitudes": False, "fp8": True, "grouped_matmul": True, "gated_delta": True}
"""Likewise, of ops that not every run asks for."""


@dataclass(frozen=True, slots=True)
class Support:
    """Whether something can be used here, and why (one plain English sentence, also when it can)."""

    ok: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Implementation:
    """One way to compute an op. Forward and backward are plain functions that know nothing of autograd."""

    forward: Callable
    backward: Callable | None = None
    """None where nothing flows back, as through an optimizer."""
    apply: Callable | None = None
    """The differentiable form, for modules that run under autograd; None where only the decoder uses the op."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The differentiable form."""
        return self.apply(*arguments, **options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation with two implementations of the same signatures."""

    name: str
    """The plain name by which a plan chooses it."""
    reference: Implementation
    """PyTorch: runs on every device and dtype, float64 included; the twin and the fallback."""
    triton: Implementation
    """The fused kernels."""
    supports: Callable[..., Support]
    """`supports(device_type=, capability=, dtype=, width=)`: may `triton` be used on such tensors?"""
    sample: Callable[..., Callable[[Implementation], dict[str, Any]]]
    """`sample(rows=, width=, dtype=, device=, wide=False, **options)` draws inputs from a fixed seed (`draws.Draws`),
    rounded to `dtype` and held in float64 when `wide`; the function it returns runs forward and backward of an
    implementation on them and gives every output and gradient by name. Tests and the doctor know ops by this alone."""
    used: bool = True
    """Whether a run can ask for it: what none asks for is not tested on a person's card."""
    needs_dots: bool = False
    """Whether the kernels multiply matrices, which Triton cannot do below compute capability 8.0 as we need it."""
