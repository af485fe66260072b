"""Linears that read the same rows, computed from the modules as they stand: for answers, where nothing is trained.

    Y = X W^T + b + (X A^T) (s B)^T

As LinearGroup, but nothing is moved and nothing copied but the adapters, rounded to the rows' dtype: so a model answers
as it is, in the midst of its training too, and without its adapters. There is no tail: U is made inside the product.
What is no plain linear (4 bits, DoRA, a wrapper of peft's own) is computed by its own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from studio_kernels.dispatch import Kernels
from torch import Tensor, nn
from torch.nn.functional import linear

from studio.models.decoder.fused_lora_linear import Drops, LinearPart, read_part
from studio.models.decoder.layer_parts import count_features


@dataclass(slots=True)
class _Live:
    """One linear of a group. `part`: None where the module's own code computes, adapter and all."""

    module: nn.Module
    part: LinearPart | None
    a: Tensor | None = None
    """(rank, in) in the rows' dtype, None without an adapter; likewise `b`, s B^T, (rank, out)."""
    b: Tensor | None = None

    weight: Tensor | None = None
    """(out, in) of a plain linear, None where its own code multiplies."""
    bias: Tensor | None = None


class LiveGroup:
    """See the file's docstring; has what the blocks ask of a LinearGroup on the way forward."""

    tail = rank = 0
    magnitudes = None

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """`dtype`: of the rows."""
        self.dtype = dtype
        self._lives = tuple(_Live(module, _read(module)) for module in modules)
        sizes = [count_features(module) for module in modules]
        self.inputs, self.sizes = sizes[0][0], tuple(outputs for _, outputs in sizes)
        self.outputs = sum(self.sizes)
        weight = next(modules[0].parameters())
        self.device = weight.device
        self.adapted = True
        """Whether adapters count; what the modules' own code adds hangs on the modules."""

    def refresh(self, kernels: Kernels) -> None:
        """Round the adapters anew, and look where the weights are."""
        for live in self._lives:
            if live.part is not None and type(live.part.base) is nn.Linear:
                base = live.part.base
                live.weight = base.weight.detach()
                live.bias = None if base.bias is None else base.bias.detach()
            if live.part is not None and live.part.rank:
                live.a = live.part.a.detach().to(self.dtype)
                live.b = (live.part.b.detach() * live.part.scale).to(self.dtype).T

    def widen(self, count: int) -> Tensor:
        """Return an empty (count, in)."""
        return torch.empty(count, self.inputs, dtype=self.dtype, device=self.device)

    def widen_gradient(self, count: int) -> Tensor:
        """Return an empty (count, out)."""
        return torch.empty(count, self.outputs, dtype=self.dtype, device=self.device)

    def project(self, x: Tensor, out: Tensor, kernels: Kernels, drops: Drops) -> Tensor:
        """Return `out` (T, 0): U is made where it is needed."""
        return out

    def forward(
        self, x: Tensor, kernels: Kernels, *, add: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        """Return Y (+ `add`), (T, out), of rows X (T, in), in `out` where given."""
        if len(self._lives) == 1 and add is None and out is None:
            return self._product(self._lives[0], x)
        if out is None:
            out = self.widen_gradient(x.shape[0])
        column, cast = 0, torch.is_autocast_enabled(x.device.type)
        for live, size in zip(self._lives, self.sizes, strict=True):
            place, weight = out[:, column : column + size], live.weight
            term = None if add is None else add[:, column : column + size]
            if weight is not None and weight.dtype == x.dtype and not cast:
                multiply_rows(x, weight, place, live.bias if term is None else term)
                if term is not None and live.bias is not None:
                    place.add_(live.bias)
                if self.adapted and live.a is not None:
                    place.addmm_(torch.mm(x, live.a.T), live.b)
            else:
                y = self._product(live, x)
                place.copy_(y if term is None else y + term)
            column += size
        return out

    def forward_apart(self, x: Tensor, u: Tensor, kernels: Kernels, *, add: Tensor | None = None) -> Tensor:
        """Return Y (+ `add`) of rows X (T, in); `u` is empty."""
        return self.forward(x, kernels, add=add)

    def _product(self, live: _Live, x: Tensor) -> Tensor:
        if live.part is None:
            return live.module(x).to(x.dtype)
        y = live.part.base(x).to(x.dtype)
        if self.adapted and live.a is not None:
            y = y + linear(linear(x, live.a), live.b.T).to(x.dtype)
        return y


MOST_TURNED = 4
"""Rows for which W X^T is the fastest product of fp32 on a processor."""


def multiply_rows(x: Tensor, weight: Tensor, out: Tensor, add: Tensor | None = None) -> Tensor:
    """Write X W^T (+ `add`, (T, out) or (out,)) of rows X (T, in) and W (out, in) to `out`; returns it.

    A processor reads fp32 weights at its memory's speed by W X^T for 2 to 4 rows (43 GB/s on two cores of an EPYC with
    AVX-512, where X W^T by MKL reads 17 for one row and 12 for four), by oneDNN's product for one (39), and with oneDNN
    it multiplies more rows twice as fast as with MKL. In 16 bits X W^T is oneDNN's already, and W X^T would be summed
    in 16 bits, which is wrong.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32:
        y = None
        if 1 < x.shape[0] <= MOST_TURNED:
            y = torch.mm(weight, x.T).T
        elif _has_onednn():
            y = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
        if y is not None:
            return out.copy_(y) if add is None else torch.add(y, add, out=out)
    return torch.mm(x, weight.T, out=out) if add is None else torch.addmm(add, x, weight.T, out=out)


@cache
def _has_onednn() -> bool:
    """Return whether oneDNN's product of fp32 can be had: by an operation that PyTorch has for its own compiler."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _read(module: nn.Module) -> LinearPart | None:
    """Return a linear and its adapter, None where they are of a kind that the module itself computes."""
    part = read_part(module)
    if isinstance(part, str) or part.magnitude is not None:
        return None
    return part
