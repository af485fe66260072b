"""Reads a model's decoder by its structure: which modules a layer consists of and with which constants, or why not.

Covers the layer of Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3 and Phi-3, and whatever else is built of the same parts:
norm, query/key/value, (query and key norm), rotary embedding, causal attention, output, (norm), sum, norm, gated MLP,
(norm), sum. Names of classes are never looked at: parity_check.py proves that a layer computes what its parts suggest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from studio.core.i18n import Text, text
from studio.models.decoder.structure import BRANCH_NORMS, GROUPS, INPUT_NORM, MIDDLE_NORM, name_parts
from studio.models.module_swaps import name_activation
from studio.models.norm_probe import Norm, is_rms_norm, read_norm

NO_ROTARY = "none"
"""Every fourth layer of SmolLM3 leaves query and key as they are (NoPE)."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's modules and constants. Widths in elements; heads as counts."""

    module: nn.Module
    input_norm: Norm
    attention_norm: Norm | None
    """On the attention's result, before it joins the residual stream (Gemma)."""
    mlp_norm: Norm
    output_norm: Norm | None
    """On the MLP's result, likewise."""
    query_norm: Norm | None
    key_norm: Norm | None
    qkv: tuple[nn.Module, ...]
    """Linears that give query, key and value, or one that gives all three."""
    output: nn.Module
    gate_up: tuple[nn.Module, ...]
    down: nn.Module
    activation: str
    query_heads: int
    key_heads: int
    head_dim: int
    scale: float
    window: int
    """Tokens that a token sees, itself included; 0: all before it."""
    softcap: float
    rotary: str
    """Which of the rotary module's tables the layer uses; "" where it has one, NO_ROTARY where it rotates nothing."""

    @property
    def groups(self) -> dict[str, tuple[nn.Module, ...]]:
        """The linears that read the same rows, by the name of their group."""
        return {"qkv": self.qkv, "output": (self.output,), "gate_up": self.gate_up, "down": (self.down,)}


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: embeddings, layers, last norm, and the module that makes the rotary tables."""

    embedding: nn.Module
    layers: tuple[LayerSpec, ...]
    norm: Norm
    rotary: nn.Module
    hidden_size: int
    head: nn.Module
    """The output embeddings."""
    softcap: float
    logit_scale: float


class _Unlike(Exception):
    """The structure is another one; carries the reason."""

    def __init__(self, part: str) -> None:
        self.part = part
        super().__init__(part)


def read_decoder(model: nn.Module) -> DecoderSpec | Text:
    """Return the DecoderSpec of `model` (a causal language model, adapters attached), or why there is none."""
    try:
        return _read(model)
    except _Unlike as unlike:
        return text("model.decoder.unlike", part=unlike.part)


def _read(model: nn.Module) -> DecoderSpec:
    decoder, config = model.get_decoder(), model.config.get_text_config()
    if getattr(config, "use_bidirectional_attention", False):
        raise _Unlike("use_bidirectional_attention")
    kinds = getattr(config, "layer_types", None)
    layers = _child(decoder, "layers")
    found = tuple(_read_layer(layer, config, kinds[i] if kinds else "") for i, layer in enumerate(layers))
    head = model.get_output_embeddings()
    if head is None or type(head) is not nn.Linear or _known(head) != {"weight"}:
        raise _Unlike("lm_head")
    return DecoderSpec(
        embedding=_child(decoder, "embed_tokens"),
        layers=found,
        norm=_norm(decoder, "norm"),
        rotary=_child(decoder, "rotary_emb"),
        hidden_size=config.hidden_size,
        head=head,
        softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
        logit_scale=1.0,
    )


def _read_layer(layer: nn.Module, config: Any, kind: str) -> LayerSpec:
    attention, mlp = _child(layer, "self_attn"), _child(layer, "mlp")
    _refuse_dropout(layer)
    _refuse_strangers(layer, attention, mlp)
    head_dim = int(attention.head_dim)
    before_mlp, after_mlp = BRANCH_NORMS
    sandwiched = hasattr(layer, before_mlp)
    qkv = _linears(layer, "qkv")
    (output,) = _linears(layer, "output")
    query_width = _features(output)[0]
    together = sum(_features(module)[1] for module in qkv)
    key_width = (together - query_width) // 2
    if query_width % head_dim or key_width % head_dim or query_width + 2 * key_width != together:
        raise _Unlike("self_attn")
    if getattr(attention, "attention_dropout", 0.0) or getattr(config, "attention_dropout", 0.0):
        raise _Unlike("attention_dropout")
    window = getattr(attention, "sliding_window", None) if hasattr(attention, "sliding_window") else None
    if not hasattr(attention, "sliding_window"):
        window = getattr(config, "sliding_window", None)
    per_layer = isinstance(getattr(config, "rope_parameters", None), dict) and kind in config.rope_parameters
    rotated = bool(getattr(attention, "use_rope", True))
    return LayerSpec(
        module=layer,
        input_norm=_norm(layer, INPUT_NORM),
        attention_norm=_norm(layer, MIDDLE_NORM) if sandwiched else None,
        mlp_norm=_norm(layer, before_mlp if sandwiched else MIDDLE_NORM),
        output_norm=_norm(layer, after_mlp) if sandwiched else None,
        query_norm=_head_norm(attention, "q_norm", head_dim),
        key_norm=_head_norm(attention, "k_norm", head_dim),
        qkv=qkv,
        output=output,
        gate_up=_linears(layer, "gate_up"),
        down=_linears(layer, "down")[0],
        activation=_activation(mlp),
        query_heads=query_width // head_dim,
        key_heads=key_width // head_dim,
        head_dim=head_dim,
        scale=float(attention.scaling),
        window=int(window or 0),
        softcap=float(getattr(attention, "attn_logit_softcapping", None) or 0.0),
        rotary=(kind if per_layer else "") if rotated else NO_ROTARY,
    )


PARTS = {
    "layer": {"self_attn", "mlp", "resid_attn_dropout", "resid_mlp_dropout"} | name_parts(),
    "attention": name_parts("self_attn"),
    "mlp": name_parts("mlp") | {"act_fn", "activation_fn"},
}
"""Every child that a layer of the known form may have: a further one would be left out of our arithmetic."""


def _refuse_strangers(layer: nn.Module, attention: nn.Module, mlp: nn.Module) -> None:
    for known, module in zip(PARTS.values(), (layer, attention, mlp), strict=True):
        strangers = {name for name, _ in module.named_children()} - known
        own = [name for name, _ in module.named_parameters(recurse=False)]
        if strangers or own:
            raise _Unlike(", ".join(sorted([*strangers, *own])))


def _refuse_dropout(layer: nn.Module) -> None:
    """Dropout of the model's own (not of an adapter) is left to the stock forward."""
    for name, module in layer.named_modules():
        if isinstance(module, nn.Dropout) and module.p and ".lora_dropout." not in f".{name}.":
            raise _Unlike(name)


def _child(module: nn.Module, name: str) -> nn.Module:
    child = getattr(module, name, None)
    if not isinstance(child, nn.Module):
        raise _Unlike(name)
    return child


def _norm(module: nn.Module, name: str) -> Norm:
    child = _child(module, name)
    norm = read_norm(child) if is_rms_norm(child) else None
    if not isinstance(norm, Norm):
        raise _Unlike(name)
    return norm


def _head_norm(attention: nn.Module, name: str, head_dim: int) -> Norm | None:
    if not hasattr(attention, name):
        return None
    norm = _norm(attention, name)
    if norm.weight.numel() != head_dim:  # over all heads at once, as in OLMo 2
        raise _Unlike(name)
    return norm


def _linears(layer: nn.Module, group: str) -> tuple[nn.Module, ...]:
    """Return the linears of a group, in the first of its forms that the layer has."""
    for names in GROUPS[group]:
        found = [_find(layer, name) for name in names]
        if all(isinstance(module, nn.Module) for module in found):
            return tuple(found)
    raise _Unlike(GROUPS[group][0][0])


def _find(layer: nn.Module, name: str) -> Any:
    for part in name.split("."):
        layer = getattr(layer, part, None)
    return layer


def _features(linear: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer, inside an adapter or not."""
    return int(linear.in_features), int(linear.out_features)


def _activation(mlp: nn.Module) -> str:
    function = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
    kind = name_activation(function, torch.device("cpu")) if callable(function) else None
    if kind is None:
        raise _Unlike("act_fn")
    return kind


def _known(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters()}
