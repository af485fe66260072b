"""Inputs of each layer, which a model makes of its tokens (Gemma 4 E2B and E4B): by its own code, under autograd.

    p = m (norm(c x Wp^T) + E[i])        (T, L, P), of embeddings x (T, H) and ids i (T,)

Wp may have an adapter. Backward the projection runs again, and autograd gives its gradients and that of x. T rows, L
layers, P some 256: p and its gradient take 2 L P elements a token, in Gemma 4 E2B 36 KB.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.layer_parts import Unlike, count_features, find_child
from studio.models.decoder.structure import INPUT_PROJECTION, INPUT_TABLE, MADE_ROWS


@dataclass(frozen=True, slots=True)
class InputMaker:
    """The decoder that makes inputs of its layers, with what of it is trained beside the layers."""

    decoder: nn.Module
    projection: nn.Module
    width: int
    """P"""

    @property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """What is trained of the projection."""
        return tuple(p for p in self.projection.parameters() if p.requires_grad)

    @property
    def unknown(self) -> str | None:
        """Which part keeps it from being trained here, None where none does: only LoRA's two matrices are."""
        for name, part in self.projection.named_parameters():
            if part.requires_grad and not (".lora_A." in f".{name}" or ".lora_B." in f".{name}"):
                return f"{INPUT_PROJECTION}.{name}"
        # It is computed again in the backward pass, and would draw other numbers there.
        dropped = any(isinstance(part, nn.Dropout) and part.p for part in self.projection.modules())
        return f"{INPUT_PROJECTION} dropout" if dropped else None


def read_maker(decoder: nn.Module, layers: int, widths: set[int]) -> InputMaker | None:
    """Return what makes the inputs of `layers`, None where they have none; `widths`: of their inputs.

    Raises Unlike where the decoder makes them otherwise.
    """
    if not widths:
        return None
    projection = find_child(decoder, INPUT_PROJECTION)
    find_child(decoder, INPUT_TABLE)
    makes = all(hasattr(decoder, name) for name in ("get_per_layer_inputs", "project_per_layer_inputs"))
    if not makes or len(widths) != 1 or count_features(projection)[1] != layers * max(widths):
        raise Unlike(INPUT_PROJECTION)
    return InputMaker(decoder, projection, max(widths))


class LayerInputs:
    """See the file's docstring."""

    def __init__(self, maker: InputMaker, store: FlatStore, dtype: torch.dtype, *, wide: bool) -> None:
        """`store` holds what is trained; `wide`: whether the embeddings' gradient is wanted, too."""
        self.maker, self.dtype, self.wide = maker, dtype, wide
        self.trained = [(parameter, store.gradient(parameter)) for parameter in maker.trained]

    @property
    def wanted(self) -> bool:
        """Whether anything hears what comes back."""
        return bool(self.trained) or self.wide

    def forward(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """Return p (T, L, P)."""
        sizes = x.shape[0], len(self.maker.decoder.layers), self.maker.width
        out = torch.empty(sizes, dtype=self.dtype, device=x.device)
        with torch.no_grad():
            for ids, rows, place in zip(*(one.split(MADE_ROWS) for one in (token_ids, x, out)), strict=True):
                place.copy_(self._make(ids, rows))
        return out

    def backward(self, token_ids: Tensor, x: Tensor, gradients: Tensor) -> Tensor | None:
        """Add the gradients of what is trained, given those of p; returns dx (T, H) where it is wanted."""
        sources, dx = [parameter for parameter, _ in self.trained], []
        for ids, rows, upstream in zip(
            *(one.split(MADE_ROWS) for one in (token_ids, x, gradients)), strict=True
        ):
            with torch.enable_grad():
                start = rows.detach().requires_grad_(self.wide)
                made = self._make(ids, start)
                heard = [start, *sources] if self.wide else sources
                found = torch.autograd.grad(made, heard, upstream.to(made.dtype))
            dx.append(found[0])
            for (_, place), gradient in zip(self.trained, found[self.wide :], strict=True):
                place.add_(gradient)
        return torch.cat(dx) if self.wide else None

    def _make(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """Return p (T, L, P)."""
        decoder, half = self.maker.decoder, self.dtype.itemsize == 2
        with torch.autocast(x.device.type, dtype=self.dtype, enabled=half):
            # Gemma 3n asks for ids alone; Gemma 4 for embeddings, too, as of pictures there are no ids.
            asked = len(inspect.signature(decoder.get_per_layer_inputs).parameters)
            looked_up = decoder.get_per_layer_inputs(*(token_ids[None], x[None])[:asked])
            return decoder.project_per_layer_inputs(x[None], looked_up)[0]
