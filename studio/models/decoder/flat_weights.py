"""All weights of a decoder as one flat buffer in fp32, their gradients as another, and a 16-bit copy that multiplies.

Matrices come first, then norms and biases, which do not decay. Gradients of all micro-steps are summed in fp32. Norms
and the input embedding compute with the fp32 weights themselves, as the model's own code does under autocast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.spec import DecoderSpec, LayerSpec
from studio.models.decoder.structure import INPUT_PROJECTION
from studio.models.norm_probe import Norm

ALIGN = 128
"""Elements: matrices of 16-bit numbers begin at multiples of 256 bytes, as memory of their own would."""
WIDE = (torch.float32, torch.float64)
"""What trained weights may be stored in."""


class WholeStore(FlatStore):
    """The weights of `spec`; what multiplies reads `rounded`, (n,) in `dtype`: the weights themselves where equal."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        matrices, biases, norms = list_matrices(spec), list_biases(spec), list_norms(spec)
        super().__init__([*matrices, *biases, *norms], align=ALIGN)
        self._decayed = self._places[id((biases or norms)[0][0])]
        self._multiplied = [parameter for run in (*matrices, *biases) for parameter in run]
        same = dtype == self.weights.dtype
        self.rounded = self.weights if same else self.weights.to(dtype)

    @property
    def decayed_count(self) -> int:
        """See FlatStore: the matrices."""
        return self._decayed

    def note_change(self) -> None:
        """See FlatStore; the copy is rounded anew, in one launch."""
        super().note_change()
        if self.rounded is not self.weights:
            self.rounded.copy_(self.weights)

    def computed(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """See FlatStore."""
        return self._cut(self.rounded, parameters)

    def release(self) -> None:
        """See FlatStore."""
        super().release()
        self.rounded = self.rounded.new_empty(0)

    @contextmanager
    def holding(self, buffer: Tensor) -> Iterator[None]:
        """Let the modules hold `buffer`, `weights` or `rounded`, inside, all but the norms, whose weights stay fp32.

        With `rounded` their own code, under autocast, computes with the numbers that ours does.
        """
        held = [parameter.data for parameter in self._multiplied]
        for parameter in self._multiplied:
            parameter.data = self._cut(buffer, [parameter])
        try:
            yield
        finally:
            for parameter, data in zip(self._multiplied, held, strict=True):
                parameter.data = data


def list_matrices(spec: DecoderSpec) -> list[list[nn.Parameter]]:
    """Return the weights of the linears, group by group, of the embedding, and of the head where it has its own."""
    groups = [[module.weight for module in group] for layer in spec.layers for group in layer.groups.values()]
    table, head = spec.embedding.weight, spec.head.weight
    return [*groups, [table], *([] if head is table else [[head]])]


def list_biases(spec: DecoderSpec) -> list[list[nn.Parameter]]:
    """Return the biases, group by group."""
    groups = [group for layer in spec.layers for group in layer.groups.values()]
    found = [[module.bias for module in group if module.bias is not None] for group in groups]
    return [biases for biases in found if biases]


def list_norms(spec: DecoderSpec) -> list[list[nn.Parameter]]:
    """Return the weights of the norms, one by one."""
    norms = [norm for layer in spec.layers for norm in norms_of(layer).values()]
    return [[norm.module.weight] for norm in (*norms, spec.norm)]


def list_parameters(spec: DecoderSpec) -> list[nn.Parameter]:
    """Return all weights of `spec`, a shared one as often as it is used."""
    runs = (*list_matrices(spec), *list_biases(spec), *list_norms(spec))
    return [parameter for run in runs for parameter in run]


def norms_of(layer: LayerSpec) -> dict[str, Norm]:
    """Return a layer's norms by the names of LayerSpec."""
    fields = ((name, getattr(layer, name)) for name in layer.__slots__)
    return {name: value for name, value in fields if isinstance(value, Norm)}


def explain_unlike(spec: DecoderSpec) -> str | None:
    """Return which part keeps all weights of `spec` from being trained here, or None."""
    if spec.inputs is not None:
        return INPUT_PROJECTION
    for layer in spec.layers:
        if layer.mixer is not None:
            return layer.mixer.name
        for name, group in layer.groups.items():
            if any(type(module) is not nn.Linear for module in group):
                return name
            if len({module.bias is None for module in group}) > 1:
                return f"{name}.bias"
    table = spec.embedding
    if not isinstance(table, nn.Embedding) or [name for name, _ in table.named_parameters()] != ["weight"]:
        return "embed_tokens"
    if table.max_norm is not None or table.scale_grad_by_freq or table.sparse:
        return "embed_tokens"
    weights = list_parameters(spec)
    if len({parameter.dtype for parameter in weights}) > 1 or weights[0].dtype not in WIDE:
        return str(weights[0].dtype)
    return "shared weights" if len(set(map(id, weights))) < len(weights) else None
