"""A layer of several residual streams (Gemma 3n): attention, a narrow map beside it and the MLP on one of them.

    P = predict(X)    a = P_0    z = (attention(a) + laurel(a)) / sqrt 2    y = mlp(z)    C = correct(P, y)
    C_i += layer_input(s C_0) for i > 0

T rows; X, P, C (T, n H) hold n streams side by side. Beside what attention and MLP keep, X is kept, and P is had again
from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from studio_kernels.attention import Attention
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.core.memory_policy import KEEP_LEVELS, Keep
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.alt_up import AltUp, SavedStreams
from studio.models.decoder.blocks.block import LayerBlock, StreamRows
from studio.models.decoder.blocks.laurel import SHARE, Laurel
from studio.models.decoder.cached_rows import CachedRows, SlotRows
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.layer import Layer, SavedLayer
from studio.models.decoder.spec import LayerSpec
from studio.models.decoder.structure import LAUREL_GROUPS


@dataclass(frozen=True, slots=True)
class SavedAltUpLayer(SavedLayer):
    """See SavedLayer."""

    streams: SavedStreams


class AltUpLayer(Layer):
    """See the file's docstring."""

    def __init__(
        self,
        spec: LayerSpec,
        groups: dict[str, LinearGroup],
        kernel: Attention | None,
        store: FlatStore,
        stream: StreamRows,
    ) -> None:
        """See Layer; `stream`: the form of one of the streams."""
        super().__init__(spec, groups, kernel, store, stream)
        self.laurel = Laurel(spec, *(groups[name] for name in LAUREL_GROUPS), self.norm_gradients)
        together = replace(stream, outputs=spec.alt_up.streams * stream.outputs)
        self.alt_up = AltUp(spec, together, self.norm_gradients)

    @property
    def blocks(self) -> tuple[LayerBlock, ...]:
        """See Layer."""
        return self.attention, self.laurel, self.mlp, self.layer_input, self.alt_up

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, keep: Keep | None
    ) -> tuple[Tensor, SavedAltUpLayer | None]:
        """See Layer; x and y are (T, n H)."""
        self.take_over_changes(kernels)
        level = -1 if keep is None else KEEP_LEVELS.index(keep)
        predictions = self.alt_up.predict(x, kernels)
        a = self.alt_up.active(predictions).contiguous()
        middle, first = self.attention.forward(a, rows, kernels, level)
        z = self.laurel.forward(a, middle, rows, kernels)
        del middle
        result, second = self.mlp.forward(z, rows, kernels, level)
        first.x = second.x = None  # had again from the streams, and from attention's branch
        del a, z
        y = self._finish(predictions, result, rows, kernels)
        return y, SavedAltUpLayer(first, second, SavedStreams(x)) if level >= 0 else None

    def decode(self, number: int, x: Tensor, rows: CachedRows | SlotRows, kernels: Kernels) -> Tensor:
        """See Layer."""
        predictions = self.alt_up.predict(x, kernels)
        a = self.alt_up.active(predictions).contiguous()
        middle = self.attention.decode(number, a, rows, kernels)
        z = self.laurel.forward(a, middle, rows.layout, kernels)
        result, _ = self.mlp.forward(z, rows.layout, kernels, -1)
        return self._finish(predictions, result, rows.layout, kernels)

    def _finish(self, predictions: Tensor, result: Tensor, rows: BatchLayout, kernels: Kernels) -> Tensor:
        """Return C (T, n H) with what the token's own input adds to it."""
        y, hidden = self.alt_up.correct(predictions, result, kernels), result.shape[1]
        met = self.alt_up.scale(self.alt_up.active(y)).contiguous()
        self._others(y, hidden).add_(self.layer_input.added(met, rows, kernels)[:, None])
        return y

    def _others(self, streams: Tensor, hidden: int) -> Tensor:
        """Return (T, n - 1, H), in place: all streams but the first."""
        return streams.unflatten(1, (-1, hidden))[:, 1:]

    def backward(
        self,
        saved: SavedAltUpLayer,
        upstream: list[Tensor],
        rows: BatchLayout,
        kernels: Kernels,
        *,
        last: bool = False,
        below: LinearGroup | StreamRows | None = None,
    ) -> Tensor | None:
        """See Layer; the gradients of x and y are (T, n H)."""
        x, alt_up = saved.streams.x, self.alt_up
        saved.streams.x = None
        predictions = alt_up.predict(x, kernels)
        a = saved.attention.x = alt_up.active(predictions).contiguous()
        middle = self.attention.recompute(saved.attention, None, rows, kernels)
        saved.mlp.x = self.laurel.forward(a, middle, rows, kernels)
        del middle
        y, hidden = self.mlp.recompute(saved.mlp, None, rows, kernels), a.shape[1]
        streams = upstream.pop()
        met = alt_up.scale(alt_up.correct_active(predictions, y, kernels))
        added = self._others(streams, hidden).sum(1)
        dmet = self.layer_input.added_backward(added, met, rows, kernels)
        alt_up.active(streams).add_(alt_up.scale(dmet))
        del met, added, dmet
        dy = self.mlp.outer.widen_gradient(x.shape[0])
        alt_up.correct_backward(streams, predictions, y, kernels, dy[:, :hidden])
        del predictions, y
        dz = self.mlp.backward(dy, saved.mlp, rows, kernels, self.attention.outer)
        del dy
        dz[:, :hidden].mul_(SHARE)
        one = None if last else replace(alt_up.outer, outputs=hidden)
        da = self.attention.backward(dz, saved.attention, rows, kernels, one)
        self.laurel.backward(dz[:, :hidden], a, da, rows, kernels)
        if da is None:
            return None
        alt_up.active(streams).add_(da)
        dx = (below or self.outer).widen_gradient(x.shape[0])
        alt_up.predict_backward(streams, x, kernels, dx)
        return dx


def build_layer(
    spec: LayerSpec,
    groups: dict[str, LinearGroup],
    kernel: Attention | None,
    store: FlatStore,
    stream: StreamRows,
) -> Layer:
    """Return the layer of `spec`; all else as Layer takes it."""
    kind = Layer if spec.alt_up is None else AltUpLayer
    return kind(spec, groups, kernel, store, stream)
