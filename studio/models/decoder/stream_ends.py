"""How several residual streams are made of the embeddings, and brought together before the last norm (Gemma 3n).

    X_0 = x,  X_i = s(x Wi^T, x)          g = (X_0 + sum_i s(X_i Vi^T, X_0)) / n          s(v, w) = v rms(w) / rms(v)

x (T, H) are the embeddings, X (T, n H) the streams side by side, g (T, H) what the last norm reads. W and V may have
adapters: they run as the model's own modules, and backward again under autograd, some rows at a time. 1 of n x n parts
of a layer's products in Gemma 3n. T rows, n streams, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.layer_parts import Unlike, count_features
from studio.models.decoder.structure import MADE_ROWS

SPREAD, GATHER = "altup_projections", "altup_unembed_projections"
"""What decoders call W and V."""
LEAST_SQUARE = 1e-5
"""Below it a mean square counts as this."""


@dataclass(frozen=True, slots=True)
class EndParts:
    """The linears W and V, each of n - 1 streams."""

    spread: tuple[nn.Module, ...]
    gather: tuple[nn.Module, ...]

    @property
    def streams(self) -> int:
        """n"""
        return 1 + len(self.spread)

    @property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """What is trained of them."""
        return tuple(_list_trained((*self.spread, *self.gather)))

    @property
    def unknown(self) -> str | None:
        """Which part keeps them from being trained here, None where none does: only LoRA's two matrices are."""
        for title, modules in ((SPREAD, self.spread), (GATHER, self.gather)):
            for module in modules:
                for name, part in module.named_parameters():
                    if part.requires_grad and not (".lora_A." in f".{name}" or ".lora_B." in f".{name}"):
                        return f"{title}.{name}"
                # They are computed again in the backward pass, and would draw other numbers there.
                if any(isinstance(part, nn.Dropout) and part.p for part in module.modules()):
                    return f"{title} dropout"
        return None


def _list_trained(modules: tuple[nn.Module, ...]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters() if p.requires_grad]


def read_ends(decoder: nn.Module, streams: set[int]) -> EndParts | None:
    """Return the ends of layers with so many `streams`, None of a single one.

    Raises Unlike where layers differ in them, or where the decoder's linears do not fit.
    """
    lists = [getattr(decoder, name, None) for name in (SPREAD, GATHER)]
    if streams == {1} and lists == [None, None]:
        return None
    if len(streams) != 1 or any(one is None or len(one) != max(streams) - 1 for one in lists):
        raise Unlike(SPREAD)
    parts = EndParts(*(tuple(one) for one in lists))
    if any(len(set(count_features(one))) != 1 for one in (*parts.spread, *parts.gather)):
        raise Unlike(SPREAD)
    return parts


class StreamEnds:
    """See the file's docstring."""

    def __init__(self, parts: EndParts, store: FlatStore, dtype: torch.dtype) -> None:
        """`store` holds what is trained."""
        self.parts, self.dtype = parts, dtype
        self.trained = {id(parameter): store.gradient(parameter) for parameter in parts.trained}

    def spread(self, x: Tensor) -> Tensor:
        """Return X (T, n H)."""
        return self._map(self._spread, x, self.parts.streams * x.shape[1])

    def gather(self, streams: Tensor) -> Tensor:
        """Return g (T, H)."""
        return self._map(self._gather, streams, streams.shape[1] // self.parts.streams)

    def spread_backward(self, x: Tensor, gradient: Tensor, *, wanted: bool) -> Tensor | None:
        """Add what is trained of W to its gradients, given dX; return dx (T, H) where it is `wanted`."""
        return self._back(self._spread, self.parts.spread, x, gradient, wanted)

    def gather_backward(self, streams: Tensor, gradient: Tensor) -> Tensor:
        """Likewise of V, given dg; return dX (T, n H)."""
        return self._back(self._gather, self.parts.gather, streams, gradient, True)

    def _spread(self, x: Tensor) -> Tensor:
        size = x.float().square().mean(-1, keepdim=True).sqrt()
        return torch.cat([x, *(self._fit(module(x), size) for module in self.parts.spread)], -1)

    def _gather(self, streams: Tensor) -> Tensor:
        first, *others = streams.chunk(self.parts.streams, -1)
        size = first.float().square().mean(-1, keepdim=True).sqrt()
        total = first.float()
        for module, one in zip(self.parts.gather, others, strict=True):
            total = total + self._fit(module(one), size)
        return (total / self.parts.streams).to(self.dtype)

    def _fit(self, rows: Tensor, size: Tensor) -> Tensor:
        """Return `rows` scaled to the root mean square `size` (T, 1)."""
        own = rows.float().square().mean(-1, keepdim=True).clamp(min=LEAST_SQUARE).sqrt()
        return (rows.float() * (size / own)).to(self.dtype)

    def _autocast(self, rows: Tensor) -> torch.autocast:
        return torch.autocast(rows.device.type, dtype=self.dtype, enabled=self.dtype.itemsize == 2)

    def _map(self, make: Callable[[Tensor], Tensor], rows: Tensor, width: int) -> Tensor:
        out = torch.empty(rows.shape[0], width, dtype=self.dtype, device=rows.device)
        with torch.no_grad(), self._autocast(rows):
            for part, place in zip(rows.split(MADE_ROWS), out.split(MADE_ROWS), strict=True):
                place.copy_(make(part))
        return out

    def _back(
        self, make: Callable[[Tensor], Tensor], modules: tuple[nn.Module, ...], rows: Tensor, gradient: Tensor,
        wanted: bool,
    ) -> Tensor | None:  # fmt: skip
        sources = _list_trained(modules)
        if not (sources or wanted):
            return None
        out = torch.empty(rows.shape, dtype=self.dtype, device=rows.device) if wanted else None
        for number, (part, upstream) in enumerate(
            zip(rows.split(MADE_ROWS), gradient.split(MADE_ROWS), strict=True)
        ):
            with torch.enable_grad(), self._autocast(rows):
                start = part.detach().requires_grad_(wanted)
                made = make(start)
            heard = [start, *sources] if wanted else sources
            found = list(torch.autograd.grad(made, heard, upstream.to(made.dtype)))
            if out is not None:
                out[number * MADE_ROWS : number * MADE_ROWS + len(part)] = found.pop(0)
            for parameter, one in zip(sources, found, strict=True):
                self.trained[id(parameter)].add_(one)
        return out
