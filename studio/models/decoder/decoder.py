"""A whole decoder with its loss head: one micro-step, without autograd and without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from studio_kernels.attention import Attention, Documents, choose_attention
from studio_kernels.dispatch import Kernels, bind
from torch import Tensor, nn

from studio.core.policy import LayerPolicy, MemoryPolicy
from studio.core.text import Text, text
from studio.models.decoder.adapters import AdapterStore
from studio.models.decoder.layer import Kept, Layer, Rows
from studio.models.decoder.linears import TAIL, Drops, LinearGroup, Part, read_part
from studio.models.decoder.offload import Offload
from studio.models.decoder.rotary import RotaryTables
from studio.models.decoder.spec import DecoderSpec, LayerSpec, read_decoder
from studio.models.decoder.weights import OpenedWeights, ResidentWeights, Scratch, Weights


class Decoder:
    """Takes over the arithmetic of one model, whose modules stay usable beside it.

    Adapter parameters become views of one buffer (`store`), 16-bit base weights views of padded matrices; `release`
    gives everybody memory of their own again.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        layers: Sequence[Layer],
        store: AdapterStore,
        kernels: Kernels,
        policy: MemoryPolicy,
        scratch: Scratch,
    ) -> None:
        self.spec = spec
        self.layers = tuple(layers)
        self.store = store
        self.kernels = kernels
        self._scratch = scratch
        self._offload = Offload(store.weights.device)
        self._rotary = RotaryTables(spec.rotary, {layer.spec.rotary for layer in self.layers})
        self.follow(policy)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.store.weights.device

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
        first = len(self.layers) - count
        for number, layer in enumerate(self.layers):
            for group in layer.groups:
                group.weights.keep_open(number >= first, self.kernels)

    def rebind(self, choices: Mapping[str, str]) -> None:
        """Compute ops by other implementations from here on (op -> "reference" or "triton")."""
        self.kernels = bind({**self.kernels.implementations, **choices})
        if self.kernels.implementations["flash"] != "triton":
            for layer in self.layers:
                layer.attention = layer.attention.without_triton()

    def note_change(self) -> None:
        """Say that adapter weights have changed: each layer takes over its own when it is next computed."""
        self.store.version += 1

    def forget_opened(self) -> None:
        """Open 4-bit weights anew when they are next needed: a recorded graph must not count on what stood there."""
        self._scratch.forget()

    def release(self) -> None:
        """Give every parameter memory of its own again; the decoder is not to be used after it."""
        for layer in self.layers:
            for group in layer.groups:
                group.weights.release()
        self.store.release()
        self._offload.release()

    def make_rows(self, documents: Documents, seed: Tensor | None = None) -> Rows:
        """Return what the layers need to know of the rows of `documents`; `seed` draws their dropout, None: none."""
        tables = self._rotary.up_to(documents.longest, self.device)
        return Rows(documents.positions, documents, tables, Drops(seed), self.policy.mlp_chunk_tokens)

    @torch.no_grad()
    def add_gradients(
        self, token_ids: Tensor, rows: Rows, picks: Tensor | None, targets: Tensor, scale: float | Tensor
    ) -> Tensor:
        """Add the gradients of `scale` times the summed loss to the store's; returns the sum, a () fp32 tensor.

        token_ids (T,); picks (N,) rows whose next token `targets` (N,) is trained, None for all rows.
        """
        kept: list[Kept] = []
        away = [i for i, policy in enumerate(self.policy.layers) if policy.offload]
        self._offload.drop()
        x = self.spec.embedding(token_ids)
        for i, (layer, policy) in enumerate(zip(self.layers, self.policy.layers, strict=True)):
            x, one = layer.forward(x, rows, self.kernels, policy.keep)
            if policy.offload:
                self._offload.put(away.index(i), one.move_out())
            else:
                self._offload.settle()  # what layers on the card keep comes in its place
            kept.append(one)
        self._offload.settle()
        loss, dx = self._head(x, picks, targets, scale)
        upstream = [dx]  # the only place that holds it: a layer takes it out
        del x, one, dx
        for i in reversed(range(len(self.layers))):
            one = kept.pop()
            if self.policy.layers[i].offload:
                away.pop()
                one.move_in(self._offload.take(len(away)))
                self._offload.fetch(len(away) - 1)  # while this layer is computed
            upstream.append(self.layers[i].backward(one, upstream, rows, self.kernels, first=i == 0))
        return loss

    @torch.no_grad()
    def hidden(self, token_ids: Tensor, rows: Rows) -> Tensor:
        """Return the last layer's result (T, H), before the last norm; nothing is kept."""
        x = self.spec.embedding(token_ids)
        for layer in self.layers:
            x, _ = layer.forward(x, rows, self.kernels, None)
        return x

    @torch.no_grad()
    def sum_loss(self, token_ids: Tensor, rows: Rows, picks: Tensor | None, targets: Tensor) -> Tensor:
        """Return the summed loss, a () fp32 tensor."""
        x = self.hidden(token_ids, rows)
        return self._losses(
            self._normalise(x if picks is None else x.index_select(0, picks))[0], targets, 1.0, False
        )[0]

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (N, V) fp32 of some of the last layer's results: for comparison, not for training."""
        logits = (self._normalise(x)[0] @ self.spec.head.weight.T).float() * self.spec.logit_scale
        return self.spec.softcap * torch.tanh(logits / self.spec.softcap) if self.spec.softcap else logits

    def _normalise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        norm = self.spec.norm
        y, _, r = self.kernels.rms_norm.forward(x, norm.weight, *norm.options)
        return y, r

    def _losses(
        self, hidden: Tensor, targets: Tensor, scale: float | Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        return self.kernels.linear_cross_entropy.forward(
            hidden,
            self.spec.head.weight,
            targets,
            scale=scale,
            softcap=self.spec.softcap,
            logit_scale=self.spec.logit_scale,
            gradient=gradient,
            rows=self.policy.head_rows,
            columns=self.policy.head_columns,
            out=hidden if gradient else None,
        )

    def _head(
        self, x: Tensor, picks: Tensor | None, targets: Tensor, scale: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the gradient of the last layer's result, wide for its down group."""
        picked = x if picks is None else x.index_select(0, picks)
        hidden, r = self._normalise(picked)
        loss, dhidden = self._losses(hidden, targets, scale, True)
        del hidden
        loss = loss / scale
        norm, width, down = self.spec.norm, x.shape[1], self.layers[-1].down
        dx = down.widen_gradient(x.shape[0])
        if picks is None:
            self.kernels.rms_norm.backward(dhidden, picked, norm.weight, r, norm.offset, out=dx[:, :width])
        else:
            rows = self.kernels.rms_norm.backward(dhidden, picked, norm.weight, r, norm.offset)
            dx[:, :width].zero_().index_copy_(0, picks, rows)
        return loss, dx


def take_over(
    model: nn.Module,
    kernels: Kernels,
    *,
    dtype: torch.dtype,
    policy: MemoryPolicy | None = None,
    capability: tuple[int, int] | None = None,
) -> Decoder | Text:
    """Return a Decoder of `model` (inside any peft wrapper, LoRA attached), or the reason why there is none.

    `dtype`: of the arithmetic and of opened 4-bit weights; 16-bit base weights must have it. `capability`: compute
    with what such a card can do; None: what the device says.
    """
    spec = read_decoder(model)
    if isinstance(spec, Text):
        return spec
    parts = [_read_parts(layer) for layer in spec.layers]
    adapted = [
        part for layer in parts for group in layer.values() for part in group if isinstance(part, Part)
    ]
    unknown = [
        part for layer in parts for group in layer.values() for part in group if not isinstance(part, Part)
    ]
    if unknown:
        return text("model.decoder.unlike", part=unknown[0])
    ours = [p for part in adapted for p in (part.a, part.b) if p is not None]
    trained = [p for p in model.parameters() if p.requires_grad]
    if not ours or {id(p) for p in ours} != {id(p) for p in trained}:
        return text("model.decoder.trained")
    if reason := _refuse_base(adapted, dtype):
        return reason
    order = [p for layer in parts for group in layer.values() for p in _in_order(group)]
    store, scratch = AdapterStore(order), Scratch()
    attentions: dict[tuple, Attention] = {}
    flash = kernels.implementations["flash"] == "triton"
    layers = [
        Layer(
            layer,
            _group(groups, store, scratch, dtype, number),
            _attention(layer, store.weights.device, dtype, capability, flash, attentions),
            store,
        )
        for number, (layer, groups) in enumerate(zip(spec.layers, parts, strict=True))
    ]
    policy = policy or MemoryPolicy(layers=(LayerPolicy(),) * len(layers))
    return Decoder(spec, layers, store, kernels, policy, scratch)


def _read_parts(layer: LayerSpec) -> dict[str, list[Part | str]]:
    groups = {"qkv": layer.qkv, "output": (layer.output,), "gate_up": layer.gate_up, "down": (layer.down,)}
    return {name: [read_part(module) for module in modules] for name, modules in groups.items()}


def _in_order(group: Sequence[Part]) -> list[nn.Parameter]:
    """Return a group's adapter weights as the store wants them: every A, which lie below each other, then every B."""
    adapted = [part for part in group if part.rank]
    return [part.a for part in adapted] + [part.b for part in adapted]


def _refuse_base(parts: Sequence[Part], dtype: torch.dtype) -> Text | None:
    """Return why a base layer cannot be computed here, or None."""
    for part in parts:
        state = getattr(part.base.weight, "quant_state", None)
        if state is None and (type(part.base) is not nn.Linear or part.base.weight.dtype != dtype):
            return text(
                "model.decoder.weights", kind=type(part.base).__name__, dtype=str(part.base.weight.dtype)
            )
        if state is not None and (state.quant_type != "nf4" or state.blocksize != 64):
            return text("model.decoder.weights", kind=state.quant_type, dtype=str(state.blocksize))
    return None


def _group(
    parts: Mapping[str, Sequence[Part]],
    store: AdapterStore,
    scratch: Scratch,
    dtype: torch.dtype,
    number: int,
) -> dict[str, LinearGroup]:
    groups = {}
    for place, (name, group) in enumerate(parts.items()):
        rank = sum(part.rank for part in group)
        weights = _weights([part.base for part in group], -(-rank // TAIL) * TAIL, dtype, scratch)
        groups[name] = LinearGroup(group, weights, store, stream=number * len(parts) + place)
    return groups


def _attention(
    spec: LayerSpec,
    device: torch.device,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    flash: bool,
    known: dict[tuple, Attention],
) -> Attention:
    """Return the attention of a layer's kind; each kind is chosen once, by trying. `flash`: ours may be, too."""
    kind = (spec.head_dim, spec.query_heads, spec.key_heads, spec.scale, spec.window, spec.softcap)
    if kind not in known:
        known[kind] = choose_attention(
            device=device,
            dtype=dtype,
            head_dim=spec.head_dim,
            query_heads=spec.query_heads,
            key_heads=spec.key_heads,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            capability=read_capability(device) if capability is None else capability,
            triton=flash,
        )
    return known[kind]


def read_capability(device: torch.device) -> tuple[int, int] | None:
    """Return a card's compute capability, None elsewhere."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _weights(linears: Sequence[nn.Module], tail: int, dtype: torch.dtype, scratch: Scratch) -> Weights:
    if getattr(linears[0].weight, "quant_state", None) is None:
        return ResidentWeights(linears, tail)
    return OpenedWeights(linears, tail, dtype, scratch)
