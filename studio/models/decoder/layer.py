"""One decoder layer: its blocks on one residual stream, forward and backward by hand.

    m = attention(x)        y = mlp(m)        or y = s mlp(m), y = s layer_input(mlp(m)) (Gemma 4), y = m (Nemotron-H)

Layers of several streams are those of alt_up_layer.py.

What a layer keeps, and so what it computes again, is a level of the memory policy. The gradients of what is trained,
adapters or all linears, biases and norms, are added on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from studio_kernels.attention import Attention
from studio_kernels.dispatch import Kernels
from torch import Tensor

from studio.core.memory_policy import KEEP_LEVELS, Keep
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.attention import SavedAttention, SelfAttention
from studio.models.decoder.blocks.block import LayerBlock, StreamRows
from studio.models.decoder.blocks.borrowed_keys import BorrowedKeys
from studio.models.decoder.blocks.foreign_mixer import ForeignMixer, SavedMixer
from studio.models.decoder.blocks.gated_mlp import GatedMLP, SavedMLP
from studio.models.decoder.blocks.gates import SQUARED
from studio.models.decoder.blocks.latent_attention import LatentAttention
from studio.models.decoder.blocks.layer_input import LayerInput
from studio.models.decoder.blocks.paired_mlp import PairedMLP
from studio.models.decoder.blocks.plain_mlp import PlainMLP
from studio.models.decoder.blocks.routed_mlp import RoutedMLP, SavedRoutedMLP, build_routed_mlp
from studio.models.decoder.blocks.router import Router
from studio.models.decoder.cached_rows import CachedRows, SlotRows
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.flat_weights import norms_of
from studio.models.decoder.fused_lora_linear import LinearGroup
from studio.models.decoder.layer_parts import scalars_of
from studio.models.decoder.spec import LayerSpec


@dataclass(frozen=True, slots=True)
class SavedLayer:
    """What the blocks of one layer keep between its forward and its backward pass."""

    attention: SavedAttention | SavedMixer | None
    mlp: SavedMLP | SavedRoutedMLP | None

    def move_out(self) -> dict[str, Tensor]:
        """Return the large tensors by name, and let go of them."""
        parts = {one.name: saved.move_out() for one in fields(self) if (saved := getattr(self, one.name))}
        return {f"{block}.{name}": tensor for block, found in parts.items() for name, tensor in found.items()}

    def move_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what move_out() gave."""
        for name, tensor in tensors.items():
            block, _, field = name.partition(".")
            getattr(self, block).move_in({field: tensor})


class Layer:
    """Computes one layer of `spec` with the bound `kernels` (read anew at each call: an op may go to its twin)."""

    def __init__(
        self,
        spec: LayerSpec,
        groups: dict[str, LinearGroup],
        kernel: Attention | None,
        store: FlatStore,
        stream: StreamRows,
    ) -> None:
        """`kernel`: None where attention is not ours; `stream`: the form of the rows between layers."""
        self.store = store
        self.norm_gradients = {
            name: store.find_gradient(norm.module.weight) for name, norm in norms_of(spec).items()
        }
        """Where each norm's gradient is added, None where it is frozen."""
        self.attention: SelfAttention | ForeignMixer | None = None
        self.mlp: GatedMLP | RoutedMLP | None = None
        """Either is None in a layer of one block."""
        if spec.latent is not None:
            self.attention = LatentAttention(spec, groups, kernel, self.norm_gradients)
        elif spec.attends:
            block = SelfAttention if spec.source is None else BorrowedKeys
            self.attention = block(spec, groups["qkv"], groups["output"], kernel, self.norm_gradients)
        elif spec.mixer is not None:
            trained = [(parameter, store.gradient(parameter)) for parameter in spec.mixer.trained]
            self.attention = ForeignMixer(spec, spec.mixer.module, trained, stream, self.norm_gradients)
        if spec.experts is None and spec.down is not None:
            kind = PlainMLP if spec.activation == SQUARED else GatedMLP
            self.mlp = kind(spec, groups["gate_up"], groups["down"], self.norm_gradients)
        elif spec.experts is not None:
            shared = [groups[name] for name in ("gate_up", "down") if name in groups]
            kind = RoutedMLP if spec.routed_norm is None else PairedMLP
            self.mlp = build_routed_mlp(kind, spec, shared, store, stream, self.norm_gradients)
        self.layer_input: LayerInput | None = None
        if spec.layer_input is not None:
            gate, up = (groups[name] for name in spec.layer_input.groups)
            self.layer_input = LayerInput(spec, gate, up, self.norm_gradients)
        self._version = -1

    @property
    def spec(self) -> LayerSpec:
        """What the layer is made of."""
        return self.blocks[0].spec

    @property
    def blocks(self) -> tuple[LayerBlock, ...]:
        """In the order of the forward pass."""
        found = (self.attention, self.mlp, self.layer_input)
        return tuple(block for block in found if block is not None)

    @property
    def outer(self) -> LinearGroup | StreamRows:
        """See LayerBlock: of the last block."""
        return self.blocks[-1].outer

    @property
    def groups(self) -> tuple[LinearGroup, ...]:
        """The groups of linears of all blocks."""
        return tuple(group for block in self.blocks for group in block.groups)

    @property
    def weights(self) -> int:
        """Weights of all linears and experts."""
        return self._count(lambda router: router.weight.shape[0])

    @property
    def weights_a_token(self) -> int:
        """Those of them that a token meets."""
        return self._count(lambda router: router.top_k)

    def _count(self, experts: Callable[[Router], int]) -> int:
        linear = sum(group.inputs * group.outputs for group in self.groups)
        if isinstance(self.mlp, RoutedMLP):
            linear += experts(self.mlp.experts.router) * self.mlp.expert_weights
        return linear

    def forward(
        self, x: Tensor, rows: BatchLayout, kernels: Kernels, keep: Keep | None
    ) -> tuple[Tensor, SavedLayer | None]:
        """Return y (T, H) and what is kept for backward(), None when `keep` is None (evaluation)."""
        self.take_over_changes(kernels)
        level = -1 if keep is None else KEEP_LEVELS.index(keep)
        y, first, second = x, None, None
        if self.attention is not None:
            y, first = self.attention.forward(x, rows, kernels, level)
        if self.mlp is not None:
            y, second = self.mlp.forward(y, rows, kernels, level)
        if first is None:
            second.x = x
        elif second is not None and first.branch is not None:
            second.x = None  # the stream between the blocks is had again from it for next to nothing
        if self.layer_input is not None:
            y = self.layer_input.forward(y, rows, kernels)
        if self.spec.output_scale != 1.0:
            y.mul_(self.spec.output_scale)
        if rows.kept and level >= 0:
            first.keep_first(rows.kept)
            second.keep_first(rows.kept)
        return y, SavedLayer(first, second) if level >= 0 else None

    def decode(self, number: int, x: Tensor, rows: CachedRows | SlotRows, kernels: Kernels) -> Tensor:
        """Return y (T, H) of new rows of sequences whose keys and values are kept; `number`: the layer's own."""
        y = x if self.attention is None else self.attention.decode(number, x, rows, kernels)
        if self.mlp is not None:
            y, _ = self.mlp.forward(y, rows.layout, kernels, -1)
        if self.layer_input is not None:
            y = self.layer_input.forward(y, rows.layout, kernels)
        return y if self.spec.output_scale == 1.0 else y.mul_(self.spec.output_scale)

    def drop_adapters(self) -> None:
        """Let experts' adapters add nothing until changes are taken over again."""
        if isinstance(self.mlp, RoutedMLP):
            self.mlp.drop_adapters()

    def take_over_changes(self, kernels: Kernels) -> None:
        """Round changed adapters into the matrices; not after the optimizer, where the GPU would wait for it."""
        if self._version != self.store.version:
            for group in self.groups:
                group.refresh(kernels)
            if isinstance(self.mlp, RoutedMLP):
                self.mlp.refresh()
            self._version = self.store.version

    def backward(
        self,
        saved: SavedLayer,
        upstream: list[Tensor],
        rows: BatchLayout,
        kernels: Kernels,
        *,
        last: bool = False,
        below: LinearGroup | StreamRows | None = None,
    ) -> Tensor | None:
        """Return dx, wide for the layer below (None for the `last` that has one, below which nothing is trained).

        `below`: what joins that layer's result to the stream; None: as in this one.

        `upstream`: dy, wide rows (T, H + tail of the down group) whose tail is free, in a list from which it is
        taken, so that its memory goes half-way. Uses `saved` up.
        """
        if saved.mlp is not None and saved.attention is not None:
            saved.mlp.x = self.attention.recompute(saved.attention, saved.mlp.x, rows, kernels)
        dy = upstream.pop()
        if self.spec.output_scale != 1.0:
            dy.mul_(self.spec.output_scale)
        if self.layer_input is not None:
            x = self.mlp.recompute(saved.mlp, None, rows, kernels)
            dy = self.layer_input.backward(dy, x, rows, kernels, self.mlp.outer)
            del x
        under = below or self.outer
        if saved.attention is None:
            return self.mlp.backward(dy, saved.mlp, rows, kernels, under)
        if saved.mlp is not None:
            dy = self.mlp.backward(dy, saved.mlp, rows, kernels, self.attention.outer)
        return self.attention.backward(dy, saved.attention, rows, kernels, None if last else under)


def kind_of(layer: Layer) -> tuple:
    """Return all that layers of one kind have in common, but for the numbers in their weights."""
    spec = layer.spec
    norms = (
        spec.input_norm, spec.attention_norm, spec.mlp_norm, spec.output_norm, spec.query_norm, spec.key_norm,
        spec.shared_norm, spec.routed_norm, spec.experts_norm, spec.layer_input_norm, spec.router_norm,
        spec.laurel_norm,
    )  # fmt: skip
    groups = tuple(
        (group.weights.sizes, group.inputs, group.bias is not None, type(group.weights), group.dropout)
        + tuple((part.rank, part.scale, part.magnitude is not None) for part in group.parts)
        for group in layer.groups
    )
    return (
        spec.constants, scalars_of(spec.module), tuple(norm and norm.options for norm in norms), groups,
        spec.attends and layer.attention.kernel.name, tuple(type(part) for part in spec.module.modules()),
    )  # fmt: skip
