"""A whole decoder with its loss head: one micro-step, without autograd and without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from studio_kernels.attention import Attention, Documents
from studio_kernels.dispatch import Kernels, bind
from torch import Tensor, nn

from studio.core.i18n import Text, text
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.decoder.activation_offload import Offload
from studio.models.decoder.alt_up_layer import build_layer
from studio.models.decoder.attention_choice import choose_layer_attention
from studio.models.decoder.base_weights import refuse_experts
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.beside_weights import BesideStore, list_beside, refuse_beside
from studio.models.decoder.blocks.block import StreamRows
from studio.models.decoder.embedding import Embedding
from studio.models.decoder.flat_parameters import FlatStore
from studio.models.decoder.flat_weights import WholeStore, explain_unlike, list_parameters
from studio.models.decoder.frozen_weights import Scratch
from studio.models.decoder.fused_lora_linear import (
    Drops,
    LinearPart,
    order_parameters,
    read_part,
    refuse_base,
)
from studio.models.decoder.layer import Layer, SavedLayer
from studio.models.decoder.layer_inputs import LayerInputs
from studio.models.decoder.linear_groups import build_groups
from studio.models.decoder.rotary import RotaryTables
from studio.models.decoder.row_judge import RowJudge, make_entropies
from studio.models.decoder.score_rows import score_rows
from studio.models.decoder.spec import DecoderSpec, read_decoder
from studio.models.decoder.stream_ends import StreamEnds


class Decoder:
    """Takes over the arithmetic of one model, whose modules stay usable beside it.

    What is trained, adapters or all weights, becomes views of one buffer (`store`), and frozen 16-bit weights views of
    padded matrices; `release` gives everybody memory of their own again.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layers: Sequence[Layer],
        store: FlatStore,
        kernels: Kernels,
        policy: MemoryPolicy,
        scratch: Scratch,
        stream: StreamRows,
    ) -> None:
        self.spec = spec
        self.layers = tuple(layers)
        self.store = store
        self.kernels = kernels
        rows = spec.embedding_rows
        table = getattr(spec.embedding, "weight", None) if rows is None else rows.parameter
        self.embedding = Embedding(
            spec.embedding, stream.dtype, store.find_gradient(table), spec.embedding_scale, rows
        )
        wide, maker = self.embedding.gradient is not None, spec.inputs
        self.inputs = None if maker is None else LayerInputs(maker, store, stream.dtype, wide=wide)
        self.ends = None if spec.ends is None else StreamEnds(spec.ends, store, stream.dtype)
        self.outer = self.layers[-1].outer if self.ends is None else stream
        """What the head's gradient is wide for."""
        first, below = self.layers[0].norm_gradients.values(), self.ends is not None and spec.ends.trained
        self._ends_there = self.embedding.gradient is None and not below and all(one is None for one in first)
        """Whether nothing is trained below the first layer's linears."""
        self.dtype = stream.dtype  # of the arithmetic
        self._scratch, self._offload = scratch, Offload(store.weights.device)
        own = [layer for layer in self.layers if layer.spec.attends]
        kinds = {layer.spec.rotary for layer in own} | {layer.attention.turns_back for layer in own} - {""}
        self.rotary = RotaryTables(spec.rotary, kinds)
        self.head_scales = spec.logit_scale, spec.softcap  # changed where logits have a temperature
        self.score: nn.Linear | None = None  # set where rows are scored, in place of log-probabilities
        self.takes_along = False  # set where rows may go along of which layers keep nothing
        self.follow(policy)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.store.weights.device

    @property
    def attentions(self) -> list[Attention]:
        """The attention of every layer in which it is ours."""
        return [layer.attention.kernel for layer in self.layers if layer.spec.attends]

    @property
    def routed(self) -> bool:
        """Whether layers have experts."""
        return any(layer.experts for layer in self.spec.layers)

    @property
    def recordable(self) -> bool:
        """Whether a micro-step can be recorded as a graph: by its rows' sizes alone, none of it under autograd."""
        grouped = not self.routed or self.kernels.implementations["grouped_matmul"] == "triton"
        under_autograd = self.spec.mixers or self.inputs or self.ends
        return grouped and not under_autograd and all(k.packed.name != "math" for k in self.attentions)

    def follow(self, policy: MemoryPolicy) -> None:
        """Keep what `policy` says from the next micro-step on; without room for opened weights, none stay open."""
        self.policy = policy
        try:
            self._keep_open(policy.cached_layers)
        except torch.OutOfMemoryError:
            self.policy = replace(policy, cached_layers=0)
            self._keep_open(0)

    def _keep_open(self, count: int) -> None:
        """Keep the 4-bit weights of the last `count` layers opened. Raises torch.OutOfMemoryError."""
        for number, layer in enumerate(self.layers):
            for group in layer.groups:
                group.keep_open(number >= len(self.layers) - count, self.kernels)

    def rebind(self, choices: Mapping[str, str]) -> None:
        """Compute ops by other implementations from here on (op -> "reference" or "triton")."""
        self.kernels = bind({**self.kernels.implementations, **choices})
        if self.kernels.implementations["flash"] != "triton":
            for layer in self.layers:
                if layer.spec.attends:
                    layer.attention.kernel = layer.attention.kernel.without_triton()

    def note_change(self) -> None:
        """Say that what is trained has changed: each layer takes over its own when it is next computed."""
        self.store.note_change()
        for rows in self.spec.token_rows:
            rows.write()

    def forget_opened(self) -> None:
        """Open 4-bit weights anew when they are next needed: a recorded graph must not count on what stood there."""
        self._scratch.forget()

    def release(self) -> None:
        """Give every parameter memory of its own again; the decoder is not to be used after it."""
        for layer in self.layers:
            for group in layer.groups:
                group.release()
        for rows in self.spec.token_rows:
            rows.put_back()
        self.store.release()
        self._offload.release()

    def make_rows(self, documents: Documents, seed: Tensor | None = None) -> BatchLayout:
        """Return what the layers need to know of the rows of `documents`; `seed` draws their dropout, None: none."""
        tables = self.rotary.up_to(documents.longest_of_all, self.device)
        portion = self.policy.mlp_chunk_tokens
        return BatchLayout(documents.row_positions, documents, tables, Drops(seed), portion)

    def make_tables(self, longest: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Return rotary tables for documents of `longest` tokens, which are not kept."""
        return RotaryTables(self.spec.rotary, self.rotary.kinds).up_to(longest, self.device)

    @torch.no_grad()
    def add_gradients(
        self,
        token_ids: Tensor,
        rows: BatchLayout,
        picks: Tensor | None,
        targets: Tensor,
        scale: float | Tensor,
        judge: RowJudge | None = None,
    ) -> Tensor:
        """Add the gradients of the sum of what apply_head() returns to the store's; returns that, (N,) fp32.

        token_ids (T,); picks (N,) rows whose next token `targets` (N,) counts, None for all rows. Of picks behind the
        rows that are kept the judge says 0.
        """
        x, kept = self.forward_layers(token_ids, rows)
        losses, dx = self.apply_head(x, picks, targets, scale, judge)
        count = rows.kept or len(x)
        upstream = [dx[:count]]  # the only place that holds it: a layer takes it out
        del x, dx
        self._go_back(upstream, kept, rows.keep_first(), token_ids[:count])
        return losses

    @torch.no_grad()
    def forward_layers(self, token_ids: Tensor, rows: BatchLayout) -> tuple[Tensor, list[SavedLayer]]:
        """Return the last layer's result (T, H), before the last norm, and what is kept for backward_layers()."""
        kept: list[SavedLayer] = []
        away = [i for i, policy in enumerate(self.policy.layers) if policy.offload]
        self._offload.drop()
        x = self._start(token_ids, rows)
        for i, (layer, policy) in enumerate(zip(self.layers, self.policy.layers, strict=True)):
            x, one = layer.forward(x, rows, self.kernels, policy.keep)
            if policy.offload:
                self._offload.put(away.index(i), one.move_out())
            else:
                self._offload.settle()  # what layers on the card keep comes in its place
            kept.append(one)
        self._offload.settle()
        rows.shared.streams = None if self.ends is None else x
        return self._gather(x), kept

    @torch.no_grad()
    def backward_layers(
        self, dx: Tensor, kept: list[SavedLayer], rows: BatchLayout, token_ids: Tensor
    ) -> None:
        """Add the gradients of layers and embedding, given what apply_head() leaves in `dx`; empties `kept`."""
        self._go_back([dx], kept, rows, token_ids)

    def _go_back(
        self, upstream: list[Tensor], kept: list[SavedLayer], rows: BatchLayout, token_ids: Tensor
    ) -> None:
        away = [i for i, policy in enumerate(self.policy.layers) if policy.offload]
        inputs, ends, shared = self.inputs, self.ends, rows.shared
        if inputs is not None and inputs.wanted:
            shared.gradients = torch.empty_like(shared.inputs)
        if ends is not None:
            upstream.append(ends.gather_backward(shared.streams, upstream.pop()))
            shared.streams = None
        for i in reversed(range(len(self.layers))):
            one = kept.pop()
            if self.policy.layers[i].offload:
                away.pop()
                one.move_in(self._offload.take(len(away)))
                self._offload.fetch(len(away) - 1)  # while this layer is computed
            last = i == 0 and self._ends_there
            below = self.layers[i - 1].outer if i else None
            upstream.append(
                self.layers[i].backward(one, upstream, rows, self.kernels, last=last, below=below)
            )
        room = shared.gradients
        shared.start()
        beside = None
        if room is not None:
            beside = inputs.backward(token_ids, self.embedding.forward(token_ids), room)
        if ends is not None and upstream[-1] is not None:
            given = self.embedding.forward(token_ids), upstream.pop()
            upstream.append(ends.spread_backward(*given, wanted=self.embedding.gradient is not None))
        if self.embedding.gradient is not None:
            dx = upstream.pop()[:, : self.spec.hidden_size]
            self.embedding.backward(token_ids, dx if beside is None else dx.add_(beside))

    @torch.no_grad()
    def hidden(self, token_ids: Tensor, rows: BatchLayout) -> Tensor:
        """Return the last layer's result (T, H), before the last norm; nothing is kept."""
        x = self._start(token_ids, rows)
        for layer in self.layers:
            x, _ = layer.forward(x, rows, self.kernels, None)
        rows.shared.start()
        return self._gather(x)

    def _start(self, token_ids: Tensor, rows: BatchLayout) -> Tensor:
        """Return what the first layer reads, of the embeddings x (T, H), and begin a pass over `rows`."""
        x = self.embedding.forward(token_ids)
        rows.shared.start(None if self.inputs is None else self.inputs.forward(token_ids, x))
        return x if self.ends is None else self.ends.spread(x)

    def _gather(self, x: Tensor) -> Tensor:
        """Return what the last norm reads (T, H) of the last layer's result."""
        return x if self.ends is None else self.ends.gather(x)

    @torch.no_grad()
    def token_losses(
        self, token_ids: Tensor, rows: BatchLayout, picks: Tensor | None, targets: Tensor
    ) -> Tensor:
        """Return -log p of each of `targets`, (N,) fp32."""
        x = self.hidden(token_ids, rows)
        hidden, _ = self._normalise(x if picks is None else x.index_select(0, picks))
        return self._losses(hidden, targets, 1.0, False, None)[0]

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (N, V) fp32 of some of the last layer's results: for comparison, not for training."""
        logits = (self._normalise(x)[0] @ self._head().T).float() * self.spec.logit_scale
        return self.spec.softcap * torch.tanh(logits / self.spec.softcap) if self.spec.softcap else logits

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.spec.norm
        y, _, r = self.kernels.rms_norm.forward(x, norm.weight, *norm.options, out=torch.empty_like(x))
        return y, r

    def _head(self) -> Tensor:
        """Return the output embedding (V, H) as it multiplies."""
        weight = self.spec.head.weight
        return weight if self.store.find_gradient(weight) is None else self.store.computed([weight])

    def _head_gradient(self) -> Tensor | None:
        return self.store.find_gradient((self.score or self.spec.head).weight)

    def _losses(
        self, hidden: Tensor, targets: Tensor, scale: float | Tensor, gradient: bool, unsure: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.score is not None:
            return score_rows(hidden, self.score.weight, scale, self._head_gradient(), gradient=gradient)
        return self.kernels.linear_cross_entropy.forward(
            hidden,
            self._head(),
            targets,
            scale=scale,
            softcap=self.head_scales[1],
            logit_scale=self.head_scales[0],
            gradient=gradient,
            reduction="none",
            rows=self.policy.head_rows,
            columns=self.policy.head_columns,
            out=hidden if gradient else None,
            weight_gradient=self._head_gradient() if gradient else None,
            entropies=unsure,
        )

    @torch.no_grad()
    def apply_head(
        self,
        x: Tensor,
        picks: Tensor | None,
        targets: Tensor,
        scale: float | Tensor,
        judge: RowJudge | None = None,
        *,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return `scale`, () or (N,), times each -log p, (N,) fp32, and the gradient of `x`, the last layer's result.

        The gradient (T, H + tail) is that of the sum of these, each times what `judge` says; it is wide for the down
        group of that layer, its tail left free, and lies in `out` where given.
        """
        picked = x if picks is None else x.index_select(0, picks)
        hidden, r = self._normalise(picked)
        entropies = make_entropies(judge, targets)
        # A trained head adds its gradient while it computes: what each row counts is asked for before.
        if judge is not None and self._head_gradient() is not None:
            losses, _ = self._losses(hidden, targets, scale, False, entropies)
            _, dhidden = self._losses(hidden, targets, scale * judge(losses, entropies), True, None)
        else:
            losses, dhidden = self._losses(hidden, targets, scale, True, entropies)
            counted = None if judge is None else judge(losses, entropies)
            if counted is not None:
                dhidden.mul_(counted[:, None])
            if (rows := self.spec.head_rows) is not None:
                # The loss head has written its gradient over the first ones.
                again, _ = self._normalise(picked)
                place = self.store.gradient(rows.parameter)
                rows.add_counted(again, targets, losses, scale, counted, self.head_scales, place)
        del hidden
        norm, width = self.spec.norm, x.shape[1]
        dx = self.outer.widen_gradient(x.shape[0]) if out is None else out
        dw = self.store.find_gradient(norm.module.weight)
        given = (dhidden, picked, norm.weight, r, norm.offset)
        if picks is None:
            self.kernels.rms_norm.backward(*given, out=dx[:, :width], weight_gradient=dw)
        else:
            rows = self.kernels.rms_norm.backward(*given, weight_gradient=dw)
            dx[:, :width].zero_().index_copy_(0, picks, rows)
        return losses, dx


def take_over(
    model: nn.Module,
    kernels: Kernels,
    *,
    dtype: torch.dtype,
    policy: MemoryPolicy | None = None,
    capability: tuple[int, int] | None = None,
) -> Decoder | Text:
    """Return a Decoder of `model` (inside any peft wrapper), or the reason why there is none.

    Trained are either LoRA adapters or all weights, in fp32. `dtype`: of the arithmetic and of opened 4-bit weights;
    frozen 16-bit weights must have it. `capability`: compute with what such a card can do; None: what the device says.
    """
    spec = read_decoder(model)
    if isinstance(spec, Text):
        return spec
    parts = [
        {name: list(map(read_part, group)) for name, group in layer.groups.items()} for layer in spec.layers
    ]
    read = [part for layer in parts for group in layer.values() for part in group]
    adapted = [part for part in read if isinstance(part, LinearPart)]
    unknown = [part for part in read if not isinstance(part, LinearPart)]
    if not unknown and len({part.magnitude is None for part in adapted if part.rank}) > 1:
        unknown = ["adapter"]
    foreign = [*spec.mixers, *(one for one in (spec.inputs, spec.ends) if one is not None)]
    unknown += [one.unknown for one in foreign if one.unknown]
    if unknown:
        return text("model.decoder.unlike", part=unknown[0])
    ours = [p for layer in parts for group in layer.values() for p in order_parameters(group)]
    ours += spec.other_adapters
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    tables, norms = list_beside(spec) if ours else ([], [])
    whole = not ours and trained == set(map(id, list_parameters(spec)))
    if not whole and (not ours or {id(p) for p in (*ours, *tables, *norms)} != trained):
        return text("model.decoder.trained")
    if whole and (part := explain_unlike(spec)):
        return text("model.decoder.unlike", part=part)
    if not whole and (
        reason := refuse_beside(spec, tables)
        or refuse_base(adapted, dtype)
        or refuse_experts(spec, parts, dtype)
    ):
        return reason
    scratch, attentions = Scratch(), dict[tuple, Attention]()
    if tables or norms:
        store: FlatStore = BesideStore(ours, tables, norms, spec.head.weight, dtype)
    else:
        store = WholeStore(spec, dtype) if whole else FlatStore([ours])
    stream = StreamRows(spec.hidden_size, dtype, store.weights.device)
    flash = kernels.implementations["flash"] == "triton"
    layers = [
        build_layer(
            layer,
            build_groups(groups, store, scratch, dtype, number),
            choose_layer_attention(layer, store.weights.device, dtype, capability, flash, attentions),
            store,
            stream,
        )
        for number, (layer, groups) in enumerate(zip(spec.layers, parts, strict=True))
    ]
    policy = policy or MemoryPolicy(layers=(LayerPolicy(),) * len(layers))
    decoder = Decoder(spec, layers, store, kernels, policy, scratch, stream)
    decoder.note_change()
    return decoder
