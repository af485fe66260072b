"""Reads what an RMS norm module computes: its offset and its order of rounding are found by trying."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from studio_kernels.rms_norm import CAST_THEN_SCALE, SCALE_THEN_CAST, compose
from torch import Tensor, nn
from torch.func import functional_call

from studio.core.i18n import Text, text

TOKENS = 5
TOLERANCE = 5e-2
"""Largest error of the right candidate in bfloat16, as a share of the largest value."""


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMS norm: y = x / rms(x) * (weight + offset), rounded before or after the weight."""

    module: nn.Module
    eps: float
    offset: int
    order: str

    @property
    def weight(self) -> Tensor:
        """(H,) as the module holds it now."""
        return self.module.weight

    @property
    def options(self) -> tuple[float, int, str]:
        """eps, offset, order: what the op takes after its tensors."""
        return self.eps, self.offset, self.order


@dataclass(frozen=True, slots=True, eq=False)
class PlainNorm:
    """An RMS norm without a weight: y = x / rms(x)."""

    weight: Tensor
    """(H,) ones: what the op multiplies by."""
    eps: float
    offset: int = 0
    order: str = SCALE_THEN_CAST

    @property
    def options(self) -> tuple[float, int, str]:
        """As Norm's."""
        return self.eps, self.offset, self.order


def is_rms_norm(module: nn.Module) -> bool:
    """Return whether `module` has the parts of an RMS norm and nothing else: one weight, eps, one input."""
    return (
        [name for name, _ in module.named_parameters()] == ["weight"]
        and module.weight.dim() == 1
        and _is_simple(module)
    )


def _is_simple(module: nn.Module) -> bool:
    return (
        not any(True for _ in module.children())
        and not any(True for _ in module.buffers())
        and isinstance(epsilon(module), float)
        and takes_one_tensor(module)
    )


def epsilon(norm: nn.Module) -> object:
    """Return the small number under the root, None where the module names none."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def takes_one_tensor(module: nn.Module) -> bool:
    """Return whether forward has one argument: a second one (a gate, a residual) would be lost by a swap."""
    parameters = list(inspect.signature(type(module).forward).parameters.values())
    return len(parameters) == 2 and parameters[1].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def read_norm(module: nn.Module) -> Norm | Text:
    """Return what `module` computes, or the reason why it is not known: in bfloat16 the right one of four candidates
    matches bit for bit. The random state is left as found.
    """
    eps = epsilon(module)
    device, (width,) = module.weight.device, module.weight.shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, width, generator=generator).to(device, torch.bfloat16)
    weight = (torch.rand(width, generator=generator) + 0.5).to(device, module.weight.dtype)
    errors = {}
    with torch.no_grad():
        stock = functional_call(module, {"weight": weight}, (x,))
        for offset in (0, 1):
            for order in (CAST_THEN_SCALE, SCALE_THEN_CAST):
                candidate = compose(x, weight, eps, offset, order)
                if candidate.dtype == stock.dtype and candidate.shape == stock.shape:
                    errors[offset, order] = relative_error(candidate, stock)
    if not errors:
        return text("model.fuse.type", stock=str(stock.dtype), fused=str(x.dtype))
    (offset, order), error = min(errors.items(), key=lambda item: item[1])
    if not error <= TOLERANCE:
        return text("model.fuse.mismatch", error=error, limit=TOLERANCE)
    return Norm(module, eps, offset, order)


def read_plain_norm(module: nn.Module, width: int, device: torch.device) -> PlainNorm | None:
    """Return what `module`, without parameters, computes of rows of `width`; None where it is no plain RMS norm."""
    if any(True for _ in module.parameters()) or not _is_simple(module):
        return None
    norm = PlainNorm(torch.ones(width, device=device), epsilon(module))
    x = torch.randn(TOKENS, width, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16)
    with torch.no_grad():
        stock = module(x)
        mine = compose(x, norm.weight, *norm.options)
    alike = stock.dtype == mine.dtype and stock.shape == mine.shape
    return norm if alike and relative_error(mine, stock) <= TOLERANCE else None


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference as a share of the largest value of `theirs`; NaN where either holds one."""
    ours, theirs = ours.double(), theirs.double()
    scale = theirs.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
    return ((ours - theirs).abs().max() / scale).item()
