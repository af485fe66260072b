"""Structure of a decoder: which linears, norms and heads its layers consist of, and in what shapes. No torch.

The one description that all read who ask what a layer is: the decoder, which finds these parts among a model's modules
(spec.py), the facts of a model, the estimates of memory and time, the planner. A layer is

    norm, query/key/value, (head norms), rotary, attention, output, (branch norm), +,
    norm, gate and up, down, (branch norm), +

and where its norms stand is one of PLACEMENTS. In the place of its MLP it may have experts, of which a router gives
each token some, and beside them a shared one that all pass. A family may multiply its embeddings, each branch and its
logits.

H: hidden width   I: width inside the MLP   Q, K: width of all query heads, of all key heads
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]

EXPERTS = "experts"
"""What a mixture calls the module of its experts, which transformers holds as stacks of matrices."""
ROUTERS = ("gate", "router")
"""What it calls that which chooses among them."""
SHARED, SHARED_GATES = ("shared_expert", "shared_experts", "shared_mlp"), ("shared_expert_gate",)
"""What it calls an expert that all tokens pass, and the linear by which that one is weighed."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN_COUNTS = ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts")
"""What configs call the number of experts, and how many of them a token passes."""
SHARED_MLPS = tuple(f"mlp.{name}" for name in SHARED)
MIXER = "mixer"
"""What layers of one block call it, whatever it computes (Nemotron-H)."""
UNGATED_MLPS = ("mlp", MIXER, *(f"{MIXER}.{name}" for name in SHARED))
"""Where MLPs without a gate stand: up and down alone."""
GROUPS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.qkv_proj",),
            ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
            ("self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"), ("self_attn.q_proj", "self_attn.k_proj"),
            ("self_attn.q_proj",)),
    "query_up": (("self_attn.q_b_proj",),),
    "value_up": (("self_attn.kv_b_proj",),),
    "output": (("self_attn.o_proj",), ("self_attn.out_proj",)),
    "gate_up": (("mlp.gate_proj", "mlp.up_proj"), ("mlp.gate_up_proj",), ("shared_mlp.input_linear",),
                ("feed_forward.w1", "feed_forward.w3"),
                *(tuple(f"{owner}.{name}" for name in ("gate_proj", "up_proj")) for owner in SHARED_MLPS),
                *((f"{owner}.up_proj",) for owner in UNGATED_MLPS)),
    "down": (("mlp.down_proj",), ("mlp.down_proj",), ("shared_mlp.output_linear",), ("feed_forward.w2",),
             *((f"{owner}.down_proj",) for owner in (*SHARED_MLPS, *UNGATED_MLPS[1:]))),
    "input_gate": (("per_layer_input_gate",),),
    "input_up": (("per_layer_projection",),),
    "laurel_left": (("laurel.linear_left",),),
    "laurel_right": (("laurel.linear_right",),),
}  # fmt: skip
"""Linears of a layer that read the same rows, each group in the forms that the decoder knows: apart, as one, or as one
by another name; the last forms are those of an expert that all tokens pass, and of attention whose keys and values come
from a narrow row (DeepSeek V2, from which `query_up` and `value_up` widen them), or whose values are its keys before
their norms (Gemma 4), or which has queries alone, and keys and values of another layer (Gemma 4 E2B)."""
INPUT_GROUPS = ("input_gate", "input_up")
"""Groups that only layers with inputs of their own have, which the decoder makes of its tokens (Gemma 4 E2B)."""
STREAMS, LAUREL = "altup", "laurel"
"""What layers of several residual streams call what weighs them, and a narrow map beside attention (Gemma 3n)."""
LAUREL_GROUPS = ("laurel_left", "laurel_right")
"""Groups of that map, which only such layers have."""
STREAM_MAPS = ("altup.modality_router", "altup.prediction_coefs", "altup.correction_coefs")
"""Matrices that weigh its streams, of some numbers a token: they get no adapter and stay as they are stored."""
STREAM_COUNT = "altup_num_inputs"
"""What configs call the number of streams."""
STREAM_VECTORS = ("altup.router_norm", "altup.correct_output_scale")
"""And vectors."""
LAUREL_NORM = "laurel.post_laurel_norm"
CUT_ROWS = 1024
"""Rows of a gate that are cut at once (blocks/gate_cut.py): in fp32 those of Gemma 3n E2B take 32 MiB."""
INPUT_PROJECTION, INPUT_TABLE = "per_layer_model_projection", "embed_tokens_per_layer"
"""What the decoder makes these inputs by."""
MADE_ROWS = 1024
"""Tokens whose inputs are made at once: of Gemma 4 E2B's 35 x 256 numbers a token takes 250 KB meanwhile."""
LATENT_GROUPS = ("query_up", "value_up")
"""Groups that only attention of that kind has."""
LATENT_NORMS = ("self_attn.q_a_layernorm", "self_attn.kv_a_layernorm")
"""Norms of its narrow rows."""
MLPS = ("mlp", "shared_mlp", "feed_forward", "block_sparse_moe")
"""What layers call the module of their MLP or of their experts."""
PLACEMENTS: tuple[Mapping[str, str], ...] = (
    {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    {
        "input_norm": "input_layernorm",
        "attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "output_norm": "post_feedforward_layernorm",
    },
    {
        "input_norm": "input_layernorm",
        "attention_norm": "post_self_attn_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "output_norm": "post_mlp_layernorm",
    },
    {"attention_norm": "post_attention_layernorm", "output_norm": "post_feedforward_layernorm"},
    {"input_norm": "operator_norm", "mlp_norm": "ffn_norm"},
    {
        "input_norm": "input_layernorm",
        "attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "output_norm": "post_feedforward_layernorm",
        "shared_norm": "post_feedforward_layernorm_1",
        "routed_norm": "pre_feedforward_layernorm_2",
        "experts_norm": "post_feedforward_layernorm_2",
    },
    {
        "input_norm": "input_layernorm",
        "attention_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "output_norm": "post_feedforward_layernorm",
        "layer_input_norm": "post_per_layer_input_norm",
    },
    {"input_norm": "norm"},
)
"""Where norms of H columns stand, and by which names: before attention and before the MLP, on what each of them adds to
the residual stream (`attention_norm`, `output_norm`), or both. Of Llama, Gemma 2, GLM-4, OLMo 2, LFM2, and of
Gemma 4, whose experts stand beside its MLP, with a norm before them and one after each of both, and of Gemma 4 E2B,
with one on what a token's own input to the layer adds, and of Nemotron-H, whose layers are one block each."""
ONE_BLOCK = PLACEMENTS[-1]
"""Where layers have a norm and one module alone, which mixes tokens or has the place of an MLP."""
RESIDUAL_SCALES = ("residual_multiplier", "residual_scale")
"""What layers call the number by which they multiply their branches: Granite's, MiniCPM3's."""
FINAL_NORMS = ("norm", "embedding_norm", "final_layernorm", "norm_f")
"""What decoders call the norm after their last layer."""
EMBEDDINGS = ("embed_tokens", "embeddings")
"""What they call the table of their tokens."""
HEAD_NORM_FORMS = (
    ("self_attn.q_norm", "self_attn.k_norm"),
    ("self_attn.query_layernorm", "self_attn.key_layernorm"),
    ("self_attn.q_layernorm", "self_attn.k_layernorm"),
)
"""Norms of query and key, of each head or of all heads at once."""
HEAD_NORMS = tuple(name for names in HEAD_NORM_FORMS for name in names)
VALUE_NORM = "v_norm"
"""What attention calls the norm of its values, which has no weight (Gemma 4)."""
SINKS = "sinks"
"""What attention calls the score that each query head adds to every softmax (gpt-oss)."""
NORMS = frozenset(
    {
        *HEAD_NORMS,
        *LATENT_NORMS,
        *STREAM_VECTORS,
        LAUREL_NORM,
        f"self_attn.{SINKS}",
        *(name for place in PLACEMENTS for name in place.values()),
    }
)
LINEARS = frozenset(name for forms in GROUPS.values() for names in forms for name in names)
TAIL_STEP = 64
"""The columns in which a group carries its adapters are its ranks' sum, rounded up to this: a product with 64 columns
more costs as much as one with 16 more (measured on an H200)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Linears that read the same rows, as one matrix (outputs + tail, inputs + tail)."""

    inputs: int
    outputs: int
    tail: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.outputs + self.tail, self.inputs + self.tail


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyTraits:
    """What a config does not say of its family's layers; needed only where no weights are here to show it."""

    qkv: int = 0
    """Which form of GROUPS the attention's linears have."""
    mlp: int = 0
    """And those of the MLP."""
    placement: int = 0
    """Which of PLACEMENTS the norms have."""
    head_norms: int | None = None
    """Which of HEAD_NORM_FORMS query and key have."""
    joint_head_norms: bool = False
    """These are taken over all heads at once."""
    tied: bool = False
    """Input and output embeddings are the same where the config does not say."""
    scores_capped: bool = False
    """Attention caps its scores where the config does not say."""
    window_every: int = 0
    """One of so many layers sees all tokens, where the config does not say; 0: all see the window."""


TRAITS: Mapping[str, FamilyTraits] = {
    "llama": FamilyTraits(),
    "mistral": FamilyTraits(),
    "qwen2": FamilyTraits(),
    "qwen3": FamilyTraits(head_norms=0),
    "smollm3": FamilyTraits(tied=True),
    "gemma": FamilyTraits(tied=True),
    "gemma2": FamilyTraits(placement=1, tied=True, scores_capped=True, window_every=2),
    "gemma3_text": FamilyTraits(head_norms=0, placement=1, tied=True, window_every=6),
    "phi3": FamilyTraits(qkv=1, mlp=1),
    "ministral3": FamilyTraits(),
    "granite": FamilyTraits(),
    "olmo2": FamilyTraits(placement=3, head_norms=0, joint_head_norms=True),
    "olmo3": FamilyTraits(placement=3, head_norms=0, joint_head_norms=True, window_every=4),
    "exaone4": FamilyTraits(placement=3, head_norms=0, window_every=4),
    "glm": FamilyTraits(mlp=1),
    "glm4": FamilyTraits(placement=2, mlp=1),
    "hunyuan_v1_dense": FamilyTraits(head_norms=1),
    "ernie4_5": FamilyTraits(tied=True),
    "helium": FamilyTraits(),
}
"""model_type -> Traits, each proved against transformers' own modules (tests/models/decoder/test_structure.py). Of a
family that is not here the layers are known once its weights are."""


def name_parts(owner: str = "") -> set[str]:
    """Return the last names of linears and norms inside `owner` ("self_attn", "mlp"; "" for the layer itself)."""
    split = [name.rpartition(".") for name in (*LINEARS, *NORMS)]
    return {name for inside, _, name in split if inside == owner}


def round_tail(rank: int) -> int:
    """Return the columns of a group's tail for adapters whose ranks are `rank` together."""
    return -(-rank // TAIL_STEP) * TAIL_STEP


def share_rank(rank: int, chosen: int) -> int:
    """Return the rank of each expert's adapter where those of the `chosen` that a token passes have `rank` together.

    So adapters keep their share of the weights, and a mixture of 128 experts does not train a billion numbers.
    Source: Schulman et al. 2025, "LoRA Without Regret".
    """
    return max(1, rank // max(1, chosen))


def is_target(name: str, targets: str) -> bool:
    """Return whether the linear `name` of a layer gets an adapter (peft's rule for a list of names)."""
    wanted = [word.strip() for word in targets.split(",")]
    return wanted == ["all-linear"] or any(name == word or name.endswith(f".{word}") for word in wanted)


def find_placement(names: Collection[str]) -> Mapping[str, str]:
    """Return which of PLACEMENTS has the norms `names` of a layer, others left out; {} where none has."""
    found = {name for place in PLACEMENTS for name in place.values() if name in names}
    return next((place for place in PLACEMENTS if set(place.values()) == found), {})


def find_strange(
    linears: Collection[str], norms: Mapping[str, int], head_dim: int, query_heads: int, key_heads: int
) -> list[str]:
    """Return the parts of a layer that the decoder does not know; `norms`: name -> width."""
    strange = [*sorted(set(linears) - LINEARS), *sorted(set(norms) - NORMS)]
    for query, key in HEAD_NORM_FORMS:
        widths = norms.get(query, head_dim), norms.get(key, head_dim)
        if widths not in ((head_dim, head_dim), (query_heads * head_dim, key_heads * head_dim)):
            strange += [query, key]
    if not strange and norms and not find_placement(norms):
        strange = sorted(name for name in set(norms) - set(HEAD_NORMS) if "." not in name)
    return strange


def group_linears(
    linears: Mapping[str, tuple[int, int]], rank: int = 0, targets: str = "all-linear"
) -> dict[str, Group] | None:
    """Return the Groups of a layer's `linears`, name -> (outputs, inputs), with adapters of `rank` on `targets`.

    None where a group is missing, or a linear is in none.
    """
    groups, known = {}, 0
    for group, forms in GROUPS.items():
        form = next((names for names in forms if set(names) <= set(linears)), None)
        if form is None and group in (*LATENT_GROUPS, *INPUT_GROUPS, *LAUREL_GROUPS):
            continue
        if form is None:
            return None
        known += len(form)
        groups[group] = Group(
            inputs=linears[form[0]][1],
            outputs=sum(linears[name][0] for name in form),
            tail=round_tail(rank * sum(is_target(name, targets) for name in form)),
        )
    return groups if known == len(linears) else None


def split_mixers(
    linears: Mapping[str, tuple[int, int]],
) -> tuple[dict[str, tuple[int, int]], dict[str, dict[str, tuple[int, int]]]]:
    """Return the linears of the MLP, and those of each mixer by its name: a layer's child that is no MLP."""
    mlp, mixers = {}, {}
    known = {name for group in ("gate_up", "down") for names in GROUPS[group] for name in names}
    for name, shape in linears.items():
        owner = name.partition(".")[0]
        if owner in MLPS or name in known:
            mlp[name] = shape
        else:
            mixers.setdefault(owner, {})[name] = shape
    return mlp, mixers


def find_mixers(
    linears: Collection[str], norms: Collection[str], strange: Collection[str]
) -> tuple[str, ...]:
    """Return the children by which layers mix tokens, where all that is `strange` (find_strange) lies inside them.

    Then they run as the model's own modules, beside an MLP that is known, or as the only block of a layer. () where
    nothing is strange, or more is: what a layer's children are called decides, as in spec.py. `linears` and `norms`:
    of all layers together.
    """
    owners = {name.partition(".")[0] for name in linears if "." in name} - set(MLPS)
    placement = find_placement({name for name in norms if "." not in name})
    mlp = any(set(names) <= set(linears) for names in GROUPS["down"])
    known = bool(placement) and (mlp or placement == ONE_BLOCK)
    inside = all("." in name and name.partition(".")[0] in owners for name in strange)
    return tuple(sorted(owners)) if strange and known and inside else ()


def shape_linears(hidden: int, queries: int, keys: int, mlp_width: int) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of every linear of LINEARS, for widths H, Q, K and I."""
    return {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.qkv_proj": (queries + 2 * keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (mlp_width, hidden),
        "mlp.up_proj": (mlp_width, hidden),
        "mlp.gate_up_proj": (2 * mlp_width, hidden),
        "mlp.down_proj": (hidden, mlp_width),
        "shared_mlp.input_linear": (2 * mlp_width, hidden),
        "shared_mlp.output_linear": (hidden, mlp_width),
        "self_attn.out_proj": (hidden, queries),
        "feed_forward.w1": (mlp_width, hidden),
        "feed_forward.w3": (mlp_width, hidden),
        "feed_forward.w2": (hidden, mlp_width),
    }


def shape_layer(traits: FamilyTraits, config: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shapes of one layer's weights, (outputs, inputs) for a linear; {} where the config lacks a number."""
    hidden, heads = first_int(config, "hidden_size"), first_int(config, "num_attention_heads")
    width = first_int(config, "intermediate_size")
    if not (hidden and heads and width):
        return {}
    head_dim = first_int(config, "head_dim") or hidden // heads
    queries, keys = heads * head_dim, (first_int(config, "num_key_value_heads") or heads) * head_dim
    shapes = shape_linears(hidden, queries, keys, width)
    forms = {"qkv": traits.qkv, "output": 0, "gate_up": traits.mlp, "down": traits.mlp}
    layer: dict[str, Shape] = {
        name: shapes[name] for group, form in forms.items() for name in GROUPS[group][form]
    }
    layer |= dict.fromkeys(PLACEMENTS[traits.placement].values(), (hidden,))
    if traits.head_norms is not None:
        widths = (queries, keys) if traits.joint_head_norms else (head_dim, head_dim)
        layer |= {
            name: (norm_width,)
            for name, norm_width in zip(HEAD_NORM_FORMS[traits.head_norms], widths, strict=True)
        }
    return layer


def list_windowed(family: str, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Return whether each layer sees a window only; () where all do."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return tuple(kind == "sliding_attention" for kind in kinds)
    family = str(config.get("model_type") or family)  # a language model inside another has one of its own
    every = first_int(config, "sliding_window_pattern") or TRAITS.get(family, FamilyTraits()).window_every
    return tuple(bool((layer + 1) % every) for layer in range(layers)) if every else ()


def caps_scores(family: str, config: Mapping[str, Any]) -> bool:
    """Return whether attention caps its scores."""
    if "attn_logit_softcapping" in config:
        return bool(config["attn_logit_softcapping"])
    return TRAITS.get(family, FamilyTraits()).scores_capped


def list_scaled(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which results, of `attention` and `mlp`, are multiplied before they join the residual stream."""
    scale, depth = config.get("residual_multiplier"), config.get("scale_depth")
    if isinstance(depth, (int, float)):  # MiniCPM3 divides it by the root of its layers
        scale = depth / max(1, first_int(config, "num_hidden_layers")) ** 0.5
    return ("attention", "mlp") if scale not in (None, 1, 1.0) else ()


def first_int(data: Mapping[str, Any], *keys: str) -> int:
    """Return the first of the numbers named `keys`; 0 when there is none."""
    return next((int(data[key]) for key in keys if isinstance(data.get(key), (int, float))), 0)
