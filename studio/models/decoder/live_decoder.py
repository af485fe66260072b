"""A decoder that answers: the blocks of the training's, over the modules as they stand, with kept keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from studio_kernels.attention import Attention, Documents
from studio_kernels.decode_attention import PAGE_TOKENS
from studio_kernels.dispatch import ERRORS, Kernels
from torch import Tensor, nn

from studio.core.i18n import Text, text
from studio.models.decoder.alt_up_layer import build_layer
from studio.models.decoder.attention_choice import choose_layer_attention
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.blocks.block import StreamRows
from studio.models.decoder.cached_rows import CachedRows, PageArena, SlotRows, lay_rows, page_bytes
from studio.models.decoder.embedding import Embedding
from studio.models.decoder.fused_lora_linear import Drops
from studio.models.decoder.half_weights import HalfWeights, has_products, pack
from studio.models.decoder.layer import Layer
from studio.models.decoder.layer_inputs import LayerInputs
from studio.models.decoder.live_linears import LiveGroup
from studio.models.decoder.rotary import RotaryTables
from studio.models.decoder.row_products import multiply_rows
from studio.models.decoder.spec import DecoderSpec, read_decoder
from studio.models.decoder.stream_ends import StreamEnds

MEASURED_GROUPS = 8
"""Of linears: together more than a cache holds, also in 4 bits."""


class StillStore:
    """Stands where a FlatStore does when nothing is trained."""

    def __init__(self) -> None:
        self.version = 0

    def find_gradient(self, parameter: nn.Parameter | None) -> None:
        """See FlatStore: there is none."""
        return None

    def gradient(self, parameter: nn.Parameter) -> None:
        """See FlatStore: there is none."""
        return None


class LiveDecoder:
    """Computes rows of token ids over kept keys and values; nothing of the model is moved or changed."""

    def __init__(
        self,
        spec: DecoderSpec,
        layers: Sequence[Layer],
        model: nn.Module,
        kernels: Kernels,
        dtype: torch.dtype,
    ) -> None:
        self.spec = spec
        self.layers = tuple(layers)
        self.kernels = kernels
        self.dtype = dtype
        self.device = next(model.parameters()).device
        # The wrappers themselves: what peft trained of embedding and head hangs on its own switches.
        self._embedding = Embedding(model.get_input_embeddings(), dtype, None, spec.embedding_scale)
        self._head = model.get_output_embeddings()
        self._head_halves: HalfWeights | None = None
        maker, ends, store = spec.inputs, spec.ends, self.layers[0].store
        self._inputs = None if maker is None else LayerInputs(maker, store, dtype, wide=False)
        self._ends = None if ends is None else StreamEnds(ends, store, dtype)
        self._rotary = RotaryTables(spec.rotary, {layer.rotary for layer in spec.layers})
        self._windows = {layer.window for layer in spec.layers}
        self._store = self.layers[0].store
        self.longest = _rotary_limit(model.config.get_text_config()) if self._rotary.length_dependent else 0
        """Tokens beyond which angles would change with a sequence's length, 0 where they never do."""

    @property
    def routed(self) -> bool:
        """Whether layers have experts."""
        return any(layer.experts for layer in self.spec.layers)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of keys and values, of all layers."""
        return page_bytes(self.spec.layers, self.dtype)

    def make_arena(self, pages: int) -> PageArena:
        """Return room for keys and values. Raises torch.OutOfMemoryError."""
        return PageArena.of(self.spec.layers, pages, self.dtype, self.device)

    def open_weights(self, room_bytes: int) -> bool:
        """Hold weights in 16 bits, too, where all fit in `room_bytes`: fp32 ones of a processor, 4-bit ones of a card.

        The latter where that is measured to be faster. What is read is 3.8 times as much; what is saved is opening it
        in each step. On an H200 an 8B model's step took 5.5 ms by opened weights and 7.2 by packed ones (one sequence),
        8.7 and 14.6 (64). The former (half_weights.py) always: nothing that is said may hang on a clock.
        """
        groups = [group for layer in self.layers for group in layer.groups if group.opened_bytes]
        if self.device.type == "cpu":
            return self._open_halves(groups, room_bytes)
        if not groups or self.device.type != "cuda" or sum(one.opened_bytes for one in groups) > room_bytes:
            return False
        some = sorted(groups, key=lambda group: -group.opened_bytes)[:MEASURED_GROUPS]
        rows = [torch.zeros(1, group.inputs, dtype=self.dtype, device=self.device) for group in some]

        def run() -> None:
            for group, x in zip(some, rows, strict=True):
                group.forward(x, self.kernels)

        try:
            packed_ms = _time_ms(run)
            for group in groups:
                group.open(self.kernels)
            if _time_ms(run) < packed_ms:
                return True
        except ERRORS:  # less room than was said, or nothing can be recorded here: they stay as they are
            torch.cuda.synchronize()
        for group in groups:
            group.close()
        return False

    def _open_halves(self, groups: Sequence[LiveGroup], room_bytes: int) -> bool:
        """Hold weights of a processor in 16 bits, too; False without such products, or without room."""
        head = self._plain_head
        head_bytes = 0 if head is None else head.numel() * torch.half.itemsize
        if not has_products() or self.dtype != torch.float32:
            return False
        if sum(one.opened_bytes for one in groups) + head_bytes > room_bytes:
            return False
        for group in groups:
            group.open(self.kernels)
        self._head_halves = None if head is None else pack([head])
        return True

    @property
    def _plain_head(self) -> Tensor | None:
        """The head's weight (V, H) where it is a plain product of the rows' dtype; None for a wrapper with switches."""
        head = self._head
        plain = type(head) is nn.Linear and head.weight.dtype == self.dtype and head.bias is None
        return head.weight.detach() if plain else None

    def note_change(self, *, adapted: bool) -> None:
        """Say that weights may have changed, and whether adapters count from here on."""
        self._store.version += 1
        for layer in self.layers:
            for group in layer.groups:
                group.adapted = adapted
            layer.take_over_changes(self.kernels)
            if not adapted:
                layer.drop_adapters()
        head = self._plain_head
        if self._head_halves is not None and (head is None or not self._head_halves.still([head])):
            self._head_halves = None

    def lay_rows(
        self, arena: PageArena, sequences: Sequence[tuple[int, int, Sequence[int]]], longest: int
    ) -> CachedRows:
        """See cached_rows.lay_rows(); `longest`: tokens of which none of these sequences will ever have more."""
        tables = self._rotary.up_to(self.longest or longest, self.device)
        return lay_rows(arena, sequences, tables, self._windows, self.device)

    def lay_slots(self, arena: PageArena, table: Tensor, lengths: Tensor) -> SlotRows:
        """Return one row of each slot, by its pages in `table` (S, pages) and its `lengths` (S,), both int32.

        Without waiting for the device: it can be recorded.
        """
        tables = self._rotary.up_to(self.longest or table.shape[1] * PAGE_TOKENS, self.device)
        positions = (lengths - 1).clamp_min_(0)
        documents = Documents(
            lengths=(1,) * len(lengths), starts=lengths, positions=positions, uniform=1, longest=1
        )
        return SlotRows(arena, BatchLayout(positions, documents, tables, Drops(None)), table, lengths)

    @torch.no_grad()
    def forward(self, token_ids: Tensor, rows: CachedRows | SlotRows) -> Tensor:
        """Return the last layer's result (T, H), before the last norm, and keep keys and values of ids (T,)."""
        x = self._embedding.forward(token_ids)
        rows.layout.shared.start(None if self._inputs is None else self._inputs.forward(token_ids, x))
        x = x if self._ends is None else self._ends.spread(x)
        for number, layer in enumerate(self.layers):
            x = layer.decode(number, x, rows, self.kernels)
        return x if self._ends is None else self._ends.gather(x)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (N, V) fp32 of some of forward()'s rows."""
        norm = self.spec.norm
        normal = self.kernels.rms_norm.forward(x, norm.weight, *norm.options, out=torch.empty_like(x))[0]
        cast = torch.is_autocast_enabled(normal.device.type)
        if self._head_halves is not None and normal.dtype == torch.float32 and not cast:
            logits = self._head_halves.multiply(normal)
        elif (head := self._plain_head) is not None and head.dtype == normal.dtype:
            logits = multiply_rows(normal, head, normal.new_empty(normal.shape[0], head.shape[0])).float()
        else:  # a wrapper, whose own code knows its switches
            logits = self._head(normal).float()
        if self.spec.logit_scale != 1.0:
            logits *= self.spec.logit_scale
        return self.spec.softcap * torch.tanh(logits / self.spec.softcap) if self.spec.softcap else logits


@torch.no_grad()
def _time_ms(run: Callable[[], None]) -> float:
    """Return what `run` takes on the card when it is recorded, as steps are."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begun.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended)


def _rotary_limit(config: Any) -> int:
    """Return up to how many tokens a rotary embedding that hangs on the length stays the same."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [one for one in rope.values() if isinstance(one, dict)] or [rope]
    limits = [one.get("original_max_position_embeddings") or config.max_position_embeddings for one in kinds]
    return int(min(limits))


def read_live(model: nn.Module, kernels: Kernels, dtype: torch.dtype) -> LiveDecoder | Text:
    """Return a decoder that answers for `model` (a causal language model, adapters enabled), or why there is none.

    `dtype`: of the rows and of what is kept.
    """
    spec = read_decoder(model)
    if isinstance(spec, Text):
        return spec
    if spec.mixers:
        return text("model.decoder.unlike", part=type(spec.mixers[0].module).__name__)
    device = next(model.parameters()).device
    store, stream = StillStore(), StreamRows(spec.hidden_size, dtype, device)
    attentions: dict[tuple, Attention] = {}
    flash = kernels.implementations["flash"] == "triton"
    layers = [
        build_layer(
            layer,
            {name: LiveGroup(group, dtype) for name, group in layer.groups.items()},
            choose_layer_attention(layer, device, dtype, None, flash, attentions),
            store,
            stream,
        )
        for layer in spec.layers
    ]
    decoder = LiveDecoder(spec, layers, model, kernels, dtype)
    decoder.note_change(adapted=True)
    return decoder
