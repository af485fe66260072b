"""Reads a model's decoder by its structure: which modules a layer consists of and with which constants, or why not.

Covers the layer of Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, Phi-3, SmolLM3, Granite 3, OLMo 2, EXAONE 4, GLM-4 and
whatever else is built of the same parts: (norm), query/key/value, (query and key norm), (rotary embedding), causal
attention, output, (norm), sum, (norm), gated MLP, (norm), sum; or of layers that are one of its blocks (Nemotron-H).
Names of classes are never looked at: how keys are turned is found by trying (rotary_probe.py), and parity_check.py
proves that a layer computes what its parts suggest.
Where attention alone is another one, the model's own module stays in its place (own_inputs.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from studio_kernels.dispatch import ERRORS
from torch import nn

from studio.core.i18n import Text, text
from studio.models.decoder.attention_spec import NO_ATTENTION, ModelReading, read_attention
from studio.models.decoder.experts_spec import ExpertsSpec, find_mixture, find_shared, read_experts
from studio.models.decoder.latent_spec import Latent
from studio.models.decoder.layer_inputs import InputMaker, read_maker
from studio.models.decoder.layer_parts import (
    PARTS,
    Unlike,
    count_features,
    find_activation,
    find_child,
    find_linears,
    find_mlp_activation,
    find_norm,
    find_norms,
    name_parameters,
    read_residual_scale,
    refuse_dropout,
    refuse_strangers,
)
from studio.models.decoder.one_block import is_one_block, read_ungated
from studio.models.decoder.own_inputs import Mixer, OwnInputs, probe_layers, read_mixer
from studio.models.decoder.query_scale import QueryScale
from studio.models.decoder.rotary_probe import Turning
from studio.models.decoder.stream_ends import EndParts, read_ends
from studio.models.decoder.stream_spec import AltUpParts, LaurelParts, read_gate_cut, read_streams
from studio.models.decoder.structure import (
    EMBEDDINGS,
    EXPERTS,
    FINAL_NORMS,
    INPUT_GROUPS,
    MIXER,
    MLPS,
    NORMS,
    RESIDUAL_SCALES,
    STREAMS,
)
from studio.models.decoder.token_rows import TokenRows, read_rows
from studio.models.new_tokens import unwrap_end
from studio.models.norm_probe import Norm, PlainNorm
from studio.models.score_head import SCORE


@dataclass(frozen=True, slots=True)
class InputParts:
    """What a token's own input to layer `number` goes through."""

    number: int
    gate: nn.Module
    up: nn.Module
    activation: str

    @property
    def groups(self) -> dict[str, tuple[nn.Module, ...]]:
        """As LayerSpec.groups has them."""
        return dict(zip(INPUT_GROUPS, ((self.gate,), (self.up,)), strict=True))


NOT_PLAIN = (nn.Module, nn.Parameter, Norm, PlainNorm, Latent, Mixer, tuple, ExpertsSpec, InputParts, AltUpParts,
             LaurelParts)  # fmt: skip
"""What of a layer's fields is no constant."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer's modules and constants. Widths in elements; heads as counts."""

    module: nn.Module
    input_norm: Norm | None
    """None where attention reads the residual stream as it is (OLMo 2)."""
    attention_norm: Norm | None
    """On the attention's result, before it joins the residual stream (Gemma)."""
    mlp_norm: Norm | None
    output_norm: Norm | None
    """On the MLP's result, likewise."""
    shared_norm: Norm | None
    """On the MLP's result, where experts stand beside it (Gemma 4), before their results are added."""
    routed_norm: Norm | None
    """Before these experts."""
    experts_norm: Norm | None
    """On their result."""
    query_norm: Norm | None
    """Of each head, or of all heads at once (OLMo 2)."""
    key_norm: Norm | None
    value_norm: PlainNorm | None
    """Of each value head (Gemma 4)."""
    source: int | None
    """The layer whose keys and values are read here, too; None: they are made here (Gemma 4 E2B)."""
    latent: Latent | None
    """Of attention whose keys and values come from a narrow row: then the norms of query and key are of narrow rows."""
    mixer: Mixer | None
    """The model's own module in the place of an attention that we know; then all that is told of one is empty."""
    qkv: tuple[nn.Module, ...]
    """Linears that give query, key and value, or one that gives all three."""
    values_are_keys: bool
    """Whether they give query and key alone: values are the keys as they were before norm and rotation (Gemma 4)."""
    output: nn.Module | None
    gate_up: tuple[nn.Module, ...]
    """Of the MLP, or of the expert that all tokens pass; () where there are routed ones alone."""
    down: nn.Module | None
    activation: str
    experts: ExpertsSpec | None
    query_heads: int
    key_heads: int
    head_dim: int
    sinks: nn.Parameter | None
    """(query heads,) a score that each of them adds to every softmax (gpt-oss)."""
    scale: float
    window: int
    """Tokens that a token sees, itself included; 0: all before it."""
    softcap: float
    rotary: str
    """Which of the rotary module's tables the layer uses; "" where it has one, NO_ROTARY where it rotates nothing."""
    turning: Turning
    query_scale: QueryScale | None
    residual_scale: float
    """By which attention's and MLP's results are multiplied before they join the stream (Granite, MiniCPM3)."""
    output_scale: float
    """By which the layer's result is multiplied (Gemma 4)."""
    layer_input: InputParts | None = None
    """What a token's own input to the layer goes through (Gemma 4 E2B)."""
    layer_input_norm: Norm | None = None
    """On its result."""
    lends: int | None = None
    """The layer's own number, where later ones read its keys and values."""
    gate_cut: float | None = None
    """The quantile below which nothing of the MLP's gate passes (blocks/gate_cut.py); None: all passes."""
    alt_up: AltUpParts | None = None
    """What weighs several residual streams, of which the layer computes one (Gemma 3n)."""
    router_norm: Norm | None = None
    """Of the rows by which they are weighed."""
    laurel: LaurelParts | None = None
    """A narrow map beside attention, where there are several streams."""
    laurel_norm: Norm | None = None
    """On its result."""

    @property
    def constants(self) -> tuple[Any, ...]:
        """All fields but modules and norms: layers that differ in one of them are of another kind."""
        values = (getattr(self, one.name) for one in fields(self))
        plain = tuple(one for one in values if not isinstance(one, NOT_PLAIN))
        plain += () if self.latent is None else self.latent.sizes
        plain += () if self.alt_up is None else self.alt_up.sizes
        return plain if self.experts is None else (*plain, self.experts.kind)

    @property
    def attends(self) -> bool:
        """Whether the layer has an attention that we compute by ourselves."""
        return bool(self.qkv)

    @property
    def made_key_heads(self) -> int:
        """Key heads that the layer's own linears give."""
        return self.key_heads if self.source is None else 0

    @property
    def seen(self) -> int:
        """The window, also of the model's own module; 0 for none."""
        return self.window if self.mixer is None else self.mixer.window

    @property
    def fuses_head_norms(self) -> bool:
        """Whether norms and rotation of query and key are one op."""
        norm = self.query_norm
        return norm is not None and not self.turning.norm_last and norm.weight.numel() == self.head_dim

    @property
    def keeps_raw(self) -> bool:
        """Whether query and key are kept as they were before their rotation."""
        return self.query_norm is not None and not self.turning.norm_last

    @property
    def groups(self) -> dict[str, tuple[nn.Module, ...]]:
        """The linears that read the same rows, by the name of their group."""
        mlp = {"gate_up": self.gate_up, "down": (self.down,)} if self.down is not None else {}
        mlp |= {} if self.layer_input is None else self.layer_input.groups
        mlp |= {} if self.laurel is None else self.laurel.groups
        if not self.attends:
            return mlp
        widening = {} if self.latent is None else self.latent.groups
        return {"qkv": self.qkv} | widening | {"output": (self.output,)} | mlp


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A decoder: embeddings, layers, last norm, and the module that makes the rotary tables."""

    embedding: nn.Module
    layers: tuple[LayerSpec, ...]
    norm: Norm
    rotary: nn.Module | None
    """None where the model has none, or hides it inside its layers."""
    hidden_size: int
    head: nn.Module
    """The output embeddings."""
    score: nn.Linear | None
    """What a reward model has for its scores (models/score_head.py)."""
    softcap: float
    logit_scale: float
    embedding_scale: float
    """By which the decoder multiplies the rows of its embedding; what the embedding's own code does is not in it."""
    embedding_rows: TokenRows | None = None
    """Rows of the embedding that are trained apart; likewise of the head, the same ones where both share a table."""
    head_rows: TokenRows | None = None
    inputs: InputMaker | None = None
    """What makes the inputs of each layer, where they have any."""
    ends: EndParts | None = None
    """What several residual streams are made of, and brought together by."""

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers that are the model's own modules."""
        return tuple(layer.mixer for layer in self.layers if layer.mixer is not None)

    @property
    def other_adapters(self) -> list[nn.Parameter]:
        """What is trained as adapters are, beside those of the layers' linears."""
        found = [
            p for layer in self.layers for own in (layer.mixer, layer.experts) if own for p in own.trained
        ]
        found += [rows.parameter for rows in self.token_rows]
        found += [p for one in (self.inputs, self.ends) if one is not None for p in one.trained]
        return found + ([] if self.score is None else [self.score.weight])

    @property
    def token_rows(self) -> tuple[TokenRows, ...]:
        """Rows of tables that are trained apart, shared ones once."""
        found = {id(rows): rows for rows in (self.embedding_rows, self.head_rows) if rows is not None}
        return tuple(found.values())


def read_decoder(model: nn.Module) -> DecoderSpec | Text:
    """Return the DecoderSpec of `model` (a causal language model, adapters attached), or why there is none."""
    try:
        return _read(model)
    except Unlike as unlike:
        return text("model.decoder.unlike", part=unlike.part)


def _read(model: nn.Module) -> DecoderSpec:
    decoder, config = model.get_decoder(), model.config.get_text_config()
    if getattr(config, "use_bidirectional_attention", None) not in (None, False, "vision"):
        raise Unlike("use_bidirectional_attention")
    kinds = getattr(config, "layer_types", None)
    layers, rotary = find_child(decoder, "layers"), getattr(decoder, "rotary_emb", None)
    table = next((name for name in EMBEDDINGS if hasattr(decoder, name)), EMBEDDINGS[0])
    embedding, embedding_rows = _read_end(find_child(decoder, table))
    inputs = OwnInputs(decoder, config.hidden_size, next(embedding.parameters()))
    reading = ModelReading(config, kinds or (), rotary, inputs)
    found = tuple(_read_layer(layer, number, reading) for number, layer in enumerate(layers))
    lenders = {layer.source for layer in found}
    found = tuple(
        replace(layer, lends=number) if number in lenders else layer for number, layer in enumerate(found)
    )
    widths = {count_features(layer.layer_input.up)[0] for layer in found if layer.layer_input is not None}
    if widths and not all(layer.layer_input for layer in found):
        raise Unlike(INPUT_GROUPS[0])
    streams = {1 if layer.alt_up is None else layer.alt_up.streams for layer in found}
    head, head_rows = _read_end(model.get_output_embeddings())
    if embedding_rows and head_rows and head_rows.parameter is embedding_rows.parameter:
        head_rows = embedding_rows
    if head is None or type(head) is not nn.Linear or name_parameters(head) != {"weight"}:
        raise Unlike("lm_head")
    return DecoderSpec(
        embedding=embedding,
        layers=found,
        inputs=read_maker(decoder, len(found), widths),
        ends=read_ends(decoder, streams),
        norm=find_norm(
            decoder, next((name for name in FINAL_NORMS if hasattr(decoder, name)), FINAL_NORMS[0])
        ),
        rotary=rotary,
        hidden_size=config.hidden_size,
        head=head,
        score=getattr(model, SCORE, None),
        softcap=float(getattr(config, "final_logit_softcapping", None) or 0.0),
        logit_scale=_logit_scale(config),
        embedding_scale=float(getattr(decoder, "embedding_multiplier", 1.0)),
        embedding_rows=embedding_rows,
        head_rows=head_rows,
    )


def _read_end(module: nn.Module | None) -> tuple[nn.Module | None, TokenRows | None]:
    """Return an embedding or a head without peft's wrapper, and the rows of it that are trained apart."""
    rows = read_rows(module)
    if isinstance(rows, str):
        raise Unlike(rows)
    return unwrap_end(module), rows


def _logit_scale(config: Any) -> float:
    """Return what logits are multiplied by: Cohere's factor, or one by Granite's divisor."""
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    return float(scale or 1.0) / float(divisor or 1.0)


def _read_layer(layer: nn.Module, number: int, reading: ModelReading) -> LayerSpec:
    owners = [found for name in MLPS if isinstance(found := getattr(layer, name, None), nn.Module)]
    if not owners and is_one_block(layer):
        return _read_one_block(layer, number, reading)
    if not owners:
        raise Unlike("mlp")
    mixture = find_mixture([*owners, layer])
    mlp = owners[0] if mixture is None else find_shared(mixture, owners)
    refuse_dropout(layer)
    if mlp is not None:
        refuse_strangers(mlp, "mlp")
    norms = find_norms(layer)
    if (mixture is layer) != ("routed_norm" in norms):
        raise Unlike(EXPERTS)
    streams, residual_scale = read_streams(layer, reading.config.hidden_size), read_residual_scale(layer)
    if residual_scale != 1.0 and {"attention_norm", "output_norm"} & norms.keys():
        raise Unlike(RESIDUAL_SCALES[0])
    try:
        refuse_strangers(layer, "layer")
        mixing = read_attention(layer, number, reading)
    except Unlike as unlike:
        mixing = _read_mixer(layer, number, reading, unlike)
    experts = None if mixture is None else read_experts(mixture, reading.config.hidden_size)
    if isinstance(experts, str):
        raise Unlike(experts)
    if streams and (experts or mixing["mixer"] or not {"attention_norm", "layer_input_norm"} <= norms.keys()):
        raise Unlike(STREAMS)
    gate_up, (down,) = (
        ((), (None,)) if mlp is None else (find_linears(layer, "gate_up"), find_linears(layer, "down"))
    )
    return LayerSpec(
        module=layer,
        input_norm=norms.get("input_norm"),
        attention_norm=norms.get("attention_norm"),
        mlp_norm=norms.get("mlp_norm"),
        output_norm=norms.get("output_norm"),
        shared_norm=norms.get("shared_norm"),
        routed_norm=norms.get("routed_norm"),
        experts_norm=norms.get("experts_norm"),
        gate_up=gate_up,
        down=down,
        activation="" if mlp is None else find_mlp_activation(mlp, gate_up, down),
        experts=experts,
        residual_scale=residual_scale,
        output_scale=float(getattr(layer, "layer_scalar", 1.0)),
        layer_input=_read_input(layer, number, mixing, norms),
        layer_input_norm=norms.get("layer_input_norm"),
        gate_cut=read_gate_cut(mlp),
        **streams,
        **mixing,
    )


def _read_one_block(layer: nn.Module, number: int, reading: ModelReading) -> LayerSpec:
    """Return the spec of a layer with one block beside its norm: an MLP, experts, or what runs as it is."""
    refuse_dropout(layer)
    norm = find_norms(layer)["input_norm"]
    try:
        block = (
            read_ungated(layer, reading.config.hidden_size) | NO_ATTENTION | {"mixer": None, "mlp_norm": norm}
        )
    except Unlike as unlike:
        block = _read_mixer(layer, number, reading, unlike) | {"input_norm": norm}
    norms = dict.fromkeys(one.name for one in fields(LayerSpec) if one.name.endswith("_norm"))
    empty = {"gate_up": (), "down": None, "activation": "", "experts": None}
    scales = {"residual_scale": read_residual_scale(layer), "output_scale": 1.0}
    return LayerSpec(module=layer, **norms | empty | scales | block)


def _read_input(
    layer: nn.Module, number: int, mixing: dict[str, Any], norms: dict[str, Norm]
) -> InputParts | None:
    """Return what a token's own input to `layer` goes through, None where there is none."""
    if "layer_input_norm" not in norms:
        return None
    if mixing["mixer"] is not None:  # whose arguments are asked for with embeddings of no tokens
        raise Unlike(INPUT_GROUPS[0])
    (gate,), (up,) = (find_linears(layer, name) for name in INPUT_GROUPS)
    return InputParts(number, gate, up, find_activation(layer, (gate,), up))


def _read_mixer(layer: nn.Module, number: int, reading: ModelReading, unlike: Unlike) -> dict[str, Any]:
    """Return LayerSpec's fields where the one child that is neither norm nor MLP runs as it is; else raise `unlike`."""
    known = (PARTS["layer"] | NORMS) - {"self_attn", MIXER}
    names = [name for name, _ in layer.named_children() if name not in known]
    if len(names) != 1 or any(True for _ in layer.named_parameters(recurse=False)):
        raise unlike
    try:
        reading.given = reading.given or probe_layers(reading.inputs)
        mixer = read_mixer(layer, names[0], number, reading.inputs, reading.given[number])
    except ERRORS as error:  # the model's own code, asked for a part of itself, fails in its own ways
        raise Unlike(f"{names[0]} ({type(error).__name__}: {error})") from error
    if mixer is None:
        raise unlike
    reading.lenders.pop(reading.kind(number), None)  # nobody borrows from what it leaves
    return NO_ATTENTION | {"mixer": mixer}
