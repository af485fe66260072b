"""The shape of the studio's own decoder for one run, from a model's facts, or why the model's own code trains it.

Where layers differ in the shapes of their attention, its groups of linears have those of the mean layer.

Where a layer mixes its tokens by the model's own module (blocks/foreign_mixer.py), that stands in the shape as one
matrix of the mean mixer's size, and what autograd holds of it as `record_bytes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from studio_kernels.op import NEEDS_DOTS_WHERE_ASKED

from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import FOUR_BITS, LEARNS, Recipe
from studio.models.decoder.structure import (
    GROUPS,
    HEAD_NORMS,
    INPUT_GROUPS,
    INPUT_PROJECTION,
    LATENT_GROUPS,
    Group,
    find_mixers,
    find_placement,
    find_strange,
    group_linears,
    is_target,
    split_mixers,
)
from studio.models.rope_scaling import count_positions
from studio.planning.attention_shape import AttentionShape, shape_attention
from studio.planning.layer_kinds import (
    Routed,
    add_mlp,
    count_adapters,
    count_outside,
    count_streams,
    list_kinds,
    no_mixer,
    read_routed,
    stand_beside,
)
from studio.planning.mixer_record import DELTA_RULE, SCORE_BYTES, MixerRecord, count_record, name_mixer
from studio.planning.trained_beside import Beside, count_beside, list_others

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
ATTENTION = "self_attn."
"""Where the linears of an attention stand that we compute by ourselves."""
COMPOSED = ("glu", "dropout", "linear_cross_entropy")
"""Ops whose PyTorch twins need room that their kernels do not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderShape:
    """A decoder of layers that are equal, but for their attention; with what one recipe trains of it."""

    layers: int
    hidden: int
    vocabulary: int
    mlp_width: int
    head_dim: int
    """Of the widest heads."""
    attentions: tuple[AttentionShape, ...]
    """Of each kind of layer; of the model's own module the widths of its heads alone."""
    groups: Mapping[str, Group]
    trained_parameters: int
    """Of the adapters of all layers, or of the whole model."""
    whole: bool
    """Whether all weights are trained, and no adapters."""
    branch_norms: bool
    scaled_branches: tuple[str, ...]
    dropout: bool
    composed_attention: bool
    """Whether attention is composed of matrix products, because its scores are capped."""
    composed: bool
    """Whether gate and loss head are composed of PyTorch's operations."""
    fp8: bool
    """Whether frozen weights are multiplied in 8 bits, from copies of their own."""
    magnitudes: bool
    """Whether the length of each output's weights is trained (DoRA): then 16-bit weights are opened, too."""
    element_bytes: int
    windows: tuple[int, ...]
    """Of each layer: the tokens that a token sees; 0: all before it."""
    record: MixerRecord | None = None
    """What autograd holds of the model's own mixer; None: attention is ours."""
    paired: bool = False
    """Whether experts stand beside the MLP, each with norms of its own."""
    routed: Routed | None = None
    """Experts, where layers have some: those without are taken to be like them."""
    widest_mlp: int = 0
    """I of the widest layer, where `mlp_width` is that of the mean one."""
    input_width: int = 0
    """P: of a token's own input to each layer (blocks/layer_input.py)."""
    hears_inputs: bool = False
    """Whether their gradients are wanted."""
    lent: int = 0
    """Columns of all keys and values that layers make for others, and hold as long as a step takes."""
    one_block: bool = False
    """Whether each layer is one block, a mixer or an MLP: what the one kept is not there while the other computes."""
    streams: int = 1
    """Residual streams; of several each layer computes one, and cuts its gate (models/decoder/alt_up_layer.py)."""
    written_out: int = 0
    """Rows of attention for each of the stream at most, where answers share their prompt in it; 0: the same rows."""
    beside: Beside = Beside()
    """What is trained beside the adapters; `trained_parameters` counts it, too."""

    @property
    def recordable(self) -> bool:
        """Whether short micro-steps can be recorded as graphs: see Decoder.recordable."""
        under_autograd = self.record is not None or self.input_width or self.streams > 1
        return not under_autograd and not self.composed_attention

    @property
    def trains_head(self) -> bool:
        """Whether the loss head adds the gradient of the whole output embedding."""
        return self.whole or self.beside.trains_head

    @property
    def keeps_branches(self) -> bool:
        """Whether attention's and the MLP's results are kept beside the stream that they join."""
        return self.branch_norms or self.magnitudes

    @property
    def projection_tail(self) -> int:
        """The tails of the groups between a layer's rows and attention."""
        return sum(self.groups[name].tail for name in ("qkv", *LATENT_GROUPS) if name in self.groups)

    def mean_columns(self, name: str) -> int:
        """Return an AttentionShape's value by its name, of all layers on average."""
        total = sum(one.layers * getattr(one, name) for one in self.attentions)
        return -(-total // self.layers)

    @property
    def weights_a_token(self) -> int:
        """Weights of all layers that a token meets."""
        linear = self.layers * sum(group.inputs * group.outputs for group in self.groups.values())
        routed = self.routed
        return linear + (routed.layers * routed.chosen * routed.weights if routed else 0)


def explain_stock(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> Text | None:
    """Return why the model's own forward trains and not the studio's own decoder; None where the decoder does.

    That is so for DoRA with dropout, 8-bit weights, further modules trained in full, and layers of another structure.
    """
    spec, stored = recipe.adapter, plan.quantization.value
    if trains_magnitudes(recipe) and spec.dropout:
        return text("plan.stock.dora")
    if recipe.model.rope_scaling == "dynamic":
        return text("plan.stock.rope")
    if others := list_others(spec):
        return text("plan.stock.modules", names=", ".join(others))
    if stored not in ("none", *FOUR_BITS):
        return text("plan.stock.quantization", value=stored)
    strange = _find_strange(model)
    if strange and not (spec.method == "lora" and not spec.dropout and list_mixers(model)):
        return text("model.decoder.unlike", part=", ".join(strange[:3]))
    if not model.query_heads or _read_groups(model, recipe) is None:
        return text("plan.stock.structure", architecture=model.architecture)
    return None


def describe_steps(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> Text:
    """Return who computes the steps of a planned run, and why."""
    reason = explain_stock(plan, model, recipe)
    if not model.linears:
        return text("plan.decoder.unknown")
    if reason is not None:
        return reason
    if plan.memory is None:
        return text("plan.decoder.processor")
    mixers = list_mixers(model)
    return text("plan.decoder.mixers", parts=", ".join(mixers)) if mixers else text("plan.decoder.whole")


def read_decoder(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> DecoderShape | None:
    """Return the shape of the studio's own decoder for this run; None where explain_stock() has a reason."""
    if explain_stock(plan, model, recipe) is not None:
        return None
    spec, groups = recipe.adapter, _read_groups(model, recipe)
    whole, beside = spec.method == "full", count_beside(model, spec)
    composed = model.scores_capped and plan.attention.value == "eager" and not _by_triton(plan, "flash")
    windowed = model.windowed_layers or (True,) * model.layers
    foreign, element_bytes = list_mixers(model), DTYPE_BYTES[plan.dtype.value]
    return DecoderShape(
        layers=model.layers,
        hidden=model.hidden_size,
        vocabulary=1 if recipe.objective == "reward" else model.vocabulary,
        mlp_width=groups["down"].inputs,
        widest_mlp=max([groups["down"].inputs, *(shape[1] for shape in _list_downs(model))]),
        input_width=groups[INPUT_GROUPS[0]].outputs if INPUT_GROUPS[0] in groups else 0,
        hears_inputs=INPUT_GROUPS[0] in groups and is_target(INPUT_PROJECTION, spec.target_modules),
        lent=_count_lent(model),
        written_out=count_sequences(recipe) if plan.shared_prompts.value else 0,
        head_dim=max([model.head_dim, *(kind.head_dim for kind in list_kinds(model))]),
        attentions=_shape_attentions(model, foreign),
        groups=groups,
        trained_parameters=model.parameters if whole else count_adapters(model, spec) + beside.parameters,
        whole=whole,
        scaled_branches=model.scaled_branches,
        branch_norms="output_norm" in find_placement(model.norms),
        dropout=spec.dropout > 0 and not whole,
        composed_attention=composed and not foreign,
        composed=not all(_by_triton(plan, op) for op in COMPOSED if op in plan.kernels),
        fp8=bool(plan.fp8.value),
        magnitudes=trains_magnitudes(recipe),
        element_bytes=element_bytes,
        routed=read_routed(model, spec),
        beside=beside,
        one_block=bool(model.blocks),
        streams=count_streams(model),
        paired=stand_beside(model),
        windows=tuple(model.sliding_window if is_windowed else 0 for is_windowed in windowed),
        record=_count_record(
            model,
            foreign,
            element_bytes,
            longest_document(model, recipe) if plan.attention.value == "eager" else 0,
            fused=element_bytes == 2 and _by_triton(plan, "gated_delta"),
        ),
    )


def trains_magnitudes(recipe: Recipe) -> bool:
    """Return whether each output's length is trained beside its adapter (models/decoder/magnitudes.py)."""
    return recipe.adapter.dora and recipe.adapter.method == "lora"


def find_asked_ops(recipe: Recipe, model: ModelFacts, *, fp8: bool) -> tuple[str, ...]:
    """Return the ops beside OPS that a run of `recipe` asks for; `fp8`: whether it multiplies in 8 bits."""
    asked = {
        "magnitudes": trains_magnitudes(recipe), "fp8": fp8, "grouped_matmul": bool(model.expert_parameters),
        "gated_delta": has_delta_rule(model),
    }  # fmt: skip
    return tuple(op for op in NEEDS_DOTS_WHERE_ASKED if asked[op])


def has_delta_rule(model: ModelFacts) -> bool:
    """Return whether layers have mixers with a gated delta rule."""
    return any(name.partition(".")[0] == DELTA_RULE for name in _list_linears(model))


def longest(model: ModelFacts, recipe: Recipe) -> int:
    """Return the most tokens that an example may have, a pair in both of its sequences together."""
    return count_sequences(recipe) * longest_document(model, recipe)


def longest_document(model: ModelFacts, recipe: Recipe) -> int:
    """Return the most tokens that a sequence may have."""
    return min(recipe.data.max_length, count_positions(model, recipe) or recipe.data.max_length)


def count_sequences(recipe: Recipe) -> int:
    """Return how many sequences an example has: a better and a worse answer, or one."""
    return 2 if recipe.objective in LEARNS["preference"] else 1


def list_mixers(model: ModelFacts) -> tuple[str, ...]:
    """Return the names of the modules by which layers mix tokens where these are the model's own; () for ours."""
    return find_mixers(_list_linears(model), model.norms, _find_strange(model))


def _list_linears(model: ModelFacts) -> dict[str, tuple[int, int]]:
    """Return the linears of all kinds of layers."""
    found: dict[str, tuple[int, int]] = {}
    for kind in list_kinds(model):
        found |= add_mlp(kind.linears, model.hidden_size) if kind.routed else kind.linears
    return found


def _find_strange(model: ModelFacts) -> list[str]:
    found: dict[str, None] = {}
    for kind in list_kinds(model):
        norms, key_heads = model.norms, model.key_heads
        if model.attentions and kind.head_dim:
            norms = {name: kind.head_dim if name in HEAD_NORMS else width for name, width in norms.items()}
            key_heads = 0  # of several kinds: their norms are of each head
        linears = add_mlp(kind.linears, model.hidden_size) if kind.routed else kind.linears
        found |= dict.fromkeys(find_strange(linears, norms, kind.head_dim, model.query_heads, key_heads))
    return list(found)


def _shape_attentions(model: ModelFacts, foreign: Collection[str]) -> tuple[AttentionShape, ...]:
    if foreign:
        return (shape_attention({}, model.layers, model.query_heads, model.head_dim, head_norms=False),)
    head_norms = not model.norms.keys().isdisjoint(HEAD_NORMS)
    found = []
    for kind in list_kinds(model):
        linears = {name: shape for name, shape in kind.linears.items() if name.startswith(ATTENTION)}
        found.append(
            shape_attention(linears, kind.count, model.query_heads, kind.head_dim, head_norms=head_norms)
        )
    return tuple(found)


def _list_downs(model: ModelFacts) -> list[tuple[int, int]]:
    """Return the shapes of the MLPs' last linears where layers differ in them."""
    kinds = model.blocks or (() if model.expert_parameters else model.attentions)
    downs = {name for names in GROUPS["down"] for name in names}
    return [shape for kind in kinds for name, shape in kind.linears.items() if name in downs]


def _count_lent(model: ModelFacts) -> int:
    """Return DecoderShape.lent: of each width of heads that some layers have queries alone for."""
    key, widths = "self_attn.k_proj", {}
    for kind in model.attentions:
        if key in kind.linears:
            widths[kind.head_dim] = 2 * kind.linears[key][0]
    borrowed = {kind.head_dim for kind in model.attentions if key not in kind.linears}
    return sum(width for head_dim, width in widths.items() if head_dim in borrowed)


def _count_record(
    model: ModelFacts, mixers: tuple[str, ...], element_bytes: int, scored_tokens: int, *, fused: bool
) -> MixerRecord | None:
    """Return DecoderShape.record.

    `scored_tokens`: how many scores a head keeps of a token, where attention is composed of matrix products.
    `fused`: whether a gated delta rule is computed by our kernels.
    """
    if not mixers:
        return None
    if model.blocks:
        kinds = [(found, kind.count) for kind in list_kinds(model) if (found := _list_mixing(kind.linears))]
        found, counts = ({name_mixer(one[0]): one[place] for one in kinds} for place in (0, 1))
    else:
        _, linears = split_mixers(_list_linears(model))
        found, counts = {name: linears[name] for name in mixers}, None
    return count_record(
        found,
        counts=counts,
        layers=model.layers,
        weights=_count_mixers(model),
        head_norms=not model.norms.keys().isdisjoint(HEAD_NORMS),
        element_bytes=element_bytes,
        score_bytes=model.query_heads * scored_tokens * (SCORE_BYTES + element_bytes),
        fused=fused,
    )


def _list_mixing(linears: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return those of a layer's `linears` that are no MLP's."""
    return {name: shape for one in split_mixers(linears)[1].values() for name, shape in one.items()}


def _by_triton(plan: BackendPlan, op: str) -> bool:
    return op in plan.kernels and plan.kernels[op].value == "triton"


def _read_groups(model: ModelFacts, recipe: Recipe) -> dict[str, Group] | None:
    """Return the Groups of a layer; None for layers whose shapes differ otherwise, which are another structure."""
    spec, foreign = recipe.adapter, bool(list_mixers(model))
    if model.expert_parameters and (read_routed(model, spec) is None or spec.method == "full"):
        return None
    rank, found, weights = spec.rank if spec.method == "lora" else 0, [], count_outside(model)
    for kind in list_kinds(model):
        linears = add_mlp(kind.linears, model.hidden_size) if kind.routed else kind.linears
        if foreign:
            mlp = add_mlp(split_mixers(linears)[0], model.hidden_size)
            linears = dict(mlp) | no_mixer(model.hidden_size)
        groups = group_linears(linears, rank, spec.target_modules)
        if groups is None:
            return None
        if not groups["down"].inputs:
            groups |= {name: replace(groups[name], tail=0) for name in ("gate_up", "down")}
        found.append((kind.count, groups))
        weights += kind.count * sum(group.inputs * group.outputs for group in groups.values())
    if foreign:
        groups = _average(found, model) if model.blocks else found[0][1]
        return _put_mixer(groups, model, _count_mixers(model))
    return _average(found, model) if weights == model.linear_parameters else None


def _average(kinds: Sequence[tuple[int, dict[str, Group]]], model: ModelFacts) -> dict[str, Group]:
    """Return the groups of the first of `kinds`, each with its count; those of attention are the mean layer's, and
    without experts, or where layers are one block each, those of the MLP.
    """

    def average(group: str, side: str) -> int:
        return -(-sum(count * getattr(groups[group], side) for count, groups in kinds) // model.layers)

    first = kinds[0][1]
    tails = {name: max(groups[name].tail for _, groups in kinds) for name in ("qkv", "gate_up", "down")}
    mean = first | {
        "qkv": replace(first["qkv"], outputs=average("qkv", "outputs"), tail=tails["qkv"]),
        "output": replace(first["output"], inputs=average("output", "inputs")),
    }
    if model.expert_parameters and not model.blocks:
        return mean
    return mean | {
        "gate_up": replace(first["gate_up"], outputs=average("gate_up", "outputs"), tail=tails["gate_up"]),
        "down": replace(first["down"], inputs=average("down", "inputs"), tail=tails["down"]),
    }


def _count_mixers(model: ModelFacts) -> int:
    """Return the linear parameters of all layers' mixers."""
    mlps = (
        kind.count * sum(outputs * inputs for outputs, inputs in split_mixers(kind.linears)[0].values())
        for kind in list_kinds(model)
    )
    return model.linear_parameters - count_outside(model) - sum(mlps)


def _put_mixer(groups: dict[str, Group], model: ModelFacts, weights: int) -> dict[str, Group] | None:
    """Return `groups` with the mean mixer as one matrix, `qkv`, without a tail: its adapters multiply one by one.

    `weights`: of all layers' mixers.
    """
    if not model.layers or weights <= 0:
        return None
    outputs = -(-weights // (model.layers * model.hidden_size))
    qkv = Group(inputs=model.hidden_size, outputs=outputs, tail=0)
    return groups | {"qkv": qkv, "output": Group(inputs=0, outputs=model.hidden_size, tail=0)}
