"""Linears that read the same rows, computed from the modules as they stand: for answers, where nothing is trained.

    Y = X W^T + b + (X A^T) (s B)^T

As LinearGroup, but nothing is moved and nothing copied but the adapters, rounded to the rows' dtype: so a model answers
as it is, in the midst of its training too, and without its adapters. There is no tail: U is made inside the product.
What is no plain linear (DoRA, a wrapper of peft's own) is computed by its own code; 4-bit weights too, but for few rows
on a card, which our kernel multiplies without opening them first. Where there is room, open() holds weights in a second
form that is read faster: 4-bit ones in 16 bits on a card, fp32 ones in 16 bits on a processor (half_weights.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from studio_kernels.dispatch import Kernels
from studio_kernels.few_rows import MOST_PARTS, MOST_ROWS
from studio_kernels.nf4 import Nf4, readable
from torch import Tensor, nn
from torch.nn.functional import linear

from studio.models.decoder.fused_lora_linear import Drops, LinearPart, read_part
from studio.models.decoder.half_weights import HalfWeights, has_products, pack
from studio.models.decoder.layer_parts import count_features
from studio.models.decoder.row_products import multiply_rows


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
    packed: Nf4 | None = None
    """That of a 4-bit one."""
    opened: Tensor | None = None
    """(out, in) the same in the rows' dtype, where there is room for it."""
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
        self._rank = max((live.part.rank for live in self._lives if live.part is not None), default=0)
        self._a: Tensor | None = None
        """(linears r, in): r rows a linear, zeros where it has fewer; and `_b` (out, r), as few_rows takes them."""
        self._b: Tensor | None = None
        self._bias: Tensor | None = None
        """(out,) of all linears, None without any."""
        self._halves: HalfWeights | None = None

    def refresh(self, kernels: Kernels) -> None:
        """Round the adapters anew, in the places where they were: a recorded graph reads them there."""
        rank, column = self._rank, 0
        if rank and self._a is None:
            options = {"dtype": self.dtype, "device": self.device}
            self._a = torch.zeros(len(self._lives) * rank, self.inputs, **options)
            self._b = torch.zeros(self.outputs, rank, **options)
        for number, (live, size) in enumerate(zip(self._lives, self.sizes, strict=True)):
            part = live.part
            if part is not None:
                known = live.packed
                live.weight, live.packed = _find_weight(part.base, known)
                if live.packed is not None and live.packed is known:
                    live.weight = live.opened
                else:
                    live.opened = None
                bias = getattr(part.base, "bias", None)
                live.bias = None if bias is None else bias.detach()
            if part is not None and part.rank:
                live.a = self._a[number * rank : number * rank + part.rank]
                live.b = self._b[column : column + size, : part.rank].T
                live.a.copy_(part.a.detach())
                live.b.copy_((part.b.detach() * part.scale).T)
            column += size
        biases = [live.bias for live in self._lives]
        if self._bias is None and any(bias is not None for bias in biases):
            self._bias = torch.zeros(self.outputs, dtype=self.dtype, device=self.device)
        if self._bias is not None:
            for bias, place in zip(biases, self._bias.split(self.sizes), strict=True):
                if bias is not None:
                    place.copy_(bias)
        if self._halves is not None and not (self._wide and self._halves.still(self._weights)):
            self._halves = None

    @property
    def opened_bytes(self) -> int:
        """What 4-bit weights take once they are opened, and fp32 ones of a processor in 16 bits."""
        if self._wide:
            return torch.half.itemsize * self.inputs * self.outputs
        packed = (live.packed for live in self._lives if live.packed is not None)
        return self.dtype.itemsize * sum(prod(weight.shape) for weight in packed)

    def open(self, kernels: Kernels) -> None:
        """Hold 4-bit weights in the rows' dtype, too, and fp32 ones of a processor in 16 bits, if these hold them.

        Raises torch.OutOfMemoryError.
        """
        if self._wide:
            self._halves = pack(self._weights)
        for live in self._lives:
            if live.packed is not None:
                place = torch.empty(live.packed.shape, dtype=self.dtype, device=self.device)
                live.weight = live.opened = kernels.nf4.forward(live.packed, place)

    def close(self) -> None:
        """Give back what open() took."""
        self._halves = None
        for live in self._lives:
            if live.opened is not None:
                live.weight = live.opened = None

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
        few = x.device.type == "cuda" and x.shape[0] <= MOST_ROWS and x.dtype == self.dtype
        few = few and not torch.is_autocast_enabled(x.device.type)
        if few and kernels.implementations["few_rows"] == "triton" and self._plain:
            adapters = {"a": self._a, "b": self._b} if self.adapted and self._rank else {}
            return kernels.few_rows.forward(x, self._weights, **adapters, bias=self._bias, add=add, out=out)
        if few and kernels.implementations["nf4_few_rows"] == "triton" and self._packed:
            return self._multiply_packed(x, kernels, add, out)
        if (
            self._halves is not None
            and x.dtype == self.dtype
            and not torch.is_autocast_enabled(x.device.type)
        ):
            return self._multiply_halves(x, add, out)
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

    @property
    def _plain(self) -> bool:
        """Whether all linears are products of 16-bit weights that a kernel takes together."""
        own = all(live.weight is not None and live.weight.dtype == self.dtype for live in self._lives)
        return own and len(self._lives) <= MOST_PARTS

    @property
    def _wide(self) -> bool:
        """Whether all linears are products of fp32 weights on a processor that multiplies by 16 bits, too."""
        own = all(live.weight is not None and live.weight.dtype == self.dtype for live in self._lives)
        return own and self.dtype == torch.float32 and self.device.type == "cpu" and has_products()

    @property
    def _weights(self) -> list[Tensor]:
        return [live.weight for live in self._lives]

    @property
    def _packed(self) -> bool:
        return all(live.packed is not None and live.opened is None for live in self._lives)

    def _multiply_packed(self, x: Tensor, kernels: Kernels, add: Tensor | None, out: Tensor | None) -> Tensor:
        """Return Y (+ `add`) of few rows by 4-bit weights, opened in registers."""
        if out is None:
            out = self.widen_gradient(x.shape[0])
        u = torch.mm(x, self._a.T) if self.adapted and self._rank else None
        column, rank = 0, self._rank
        for number, (live, size) in enumerate(zip(self._lives, self.sizes, strict=True)):
            part = slice(column, column + size)
            tail = None if u is None else (u[:, number * rank : (number + 1) * rank], self._b[part])
            y = kernels.nf4_few_rows.forward(x, live.packed, tail=tail)
            if live.bias is not None:
                y += live.bias
            torch.add(y, add[:, part], out=out[:, part]) if add is not None else out[:, part].copy_(y)
            column += size
        return out

    def _multiply_halves(self, x: Tensor, add: Tensor | None, out: Tensor | None) -> Tensor:
        """Return Y (+ `add`) by weights of 16 bits."""
        y = self._halves.multiply(x)
        if self._bias is not None:
            y += self._bias
        if self.adapted and self._rank:
            u, rank = torch.mm(x, self._a.T), self._rank
            for number, (part, b) in enumerate(
                zip(y.split(self.sizes, 1), self._b.split(self.sizes), strict=True)
            ):
                part.addmm_(u[:, number * rank : (number + 1) * rank], b.T)
        if add is not None:
            return torch.add(y, add, out=y if out is None else out)
        return y if out is None else out.copy_(y)

    def _product(self, live: _Live, x: Tensor) -> Tensor:
        if live.part is None:
            return live.module(x).to(x.dtype)
        y = live.part.base(x).to(x.dtype)
        if self.adapted and live.a is not None:
            y = y + linear(linear(x, live.a), live.b.T).to(x.dtype)
        return y


def _find_weight(base: nn.Module, known: Nf4 | None) -> tuple[Tensor | None, Nf4 | None]:
    """Return the weight of a plain linear, and that of a 4-bit one; `known`: what this said of it before."""
    if type(base) is nn.Linear:
        return base.weight.detach(), None
    state = getattr(base.weight, "quant_state", None)
    if state is None or not readable(state).ok:
        return None, None
    packed = base.weight.detach()
    if known is not None and known.packed.data_ptr() == packed.data_ptr():
        return None, known
    return None, Nf4.of(state, packed)


def _read(module: nn.Module) -> LinearPart | None:
    """Return a linear and its adapter, None where they are of a kind that the module itself computes."""
    part = read_part(module)
    if isinstance(part, str) or part.magnitude is not None:
        return None
    return part
