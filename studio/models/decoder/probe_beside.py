"""What a layer reads beside the residual stream, in the probe: in the model's form and in ours, with its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from studio.models.decoder.probe_states import LAYER_INPUT, LENT, Stream
from studio.models.decoder.shared_rows import SharedRows
from studio.models.decoder.spec import LayerSpec


class BesideRows:
    """The inputs of one layer beside its rows, taken out of what the layer is `given`."""

    def __init__(self, stream: Stream, spec: LayerSpec, kind: str, given: dict[str, Any]) -> None:
        """`kind`: what the config calls the layer, by which it finds keys and values of another."""
        self.given, self._stream, self._spec = dict(given), stream, spec
        self.leaves: dict[str, Tensor] = {}
        """By names for people: (D, S, P), and (D, key heads, S, d) twice."""
        if spec.layer_input is not None:
            self.leaves["layer input"] = self.given[LAYER_INPUT] = _open(given[LAYER_INPUT])
        if spec.source is not None:
            # Up to transformers 5.17 Gemma 3n finds them by the lending layer's number, all others by its kind.
            by = kind if kind in given[LENT] else spec.source
            keys, values = map(_open, given[LENT][by])
            self.leaves |= {"keys": keys, "values": values}
            self.given[LENT] = {by: (keys, values)}

    def cut(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return gradients of the leaves as our rows."""
        return [self._stream.cut(one if one.dim() == 3 else one.transpose(1, 2)) for one in gradients]

    def share(self) -> SharedRows:
        """Return the leaves as our layer reads them, with room for their gradients."""
        shared, spec = SharedRows(), self._spec
        rows = dict(zip(self.leaves, self.cut([one.detach() for one in self.leaves.values()]), strict=True))
        if spec.layer_input is not None:
            p = rows["layer input"]
            shared.inputs = p[:, None].expand(-1, spec.layer_input.number + 1, -1)
            shared.gradients = torch.zeros_like(shared.inputs, memory_format=torch.contiguous_format)
        if spec.source is not None:
            shared.keys[spec.source] = rows["keys"], rows["values"]
        return shared

    def collect(self, shared: SharedRows) -> list[Tensor]:
        """Return the gradients that our layer has left in `shared`, in the leaves' order."""
        spec = self._spec
        found = [] if spec.layer_input is None else [shared.gradients[:, spec.layer_input.number]]
        return found if spec.source is None else [*found, *shared.key_gradients[spec.source]]


def _open(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def share_inputs(stream: Stream, given: list[dict[str, Any]]) -> Tensor | None:
    """Return the inputs of all layers (T, L, P) that `stream` recorded, None where they have none."""
    found = [one[LAYER_INPUT] for one in given if one.get(LAYER_INPUT) is not None]
    return torch.stack([stream.cut(one) for one in found], 1) if found else None
