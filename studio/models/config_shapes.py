"""The shapes inside a model, from its config and the shapes of its stored tensors: widths, heads, windows, linears."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from studio.core.layer_facts import AttentionFacts, BlockFacts
from studio.models.decoder.structure import (
    CHOSEN_COUNTS,
    EXPERT_COUNTS,
    HEAD_NORM_FORMS,
    MLPS,
    ONE_BLOCK,
    ROUTERS,
    caps_scores,
    first_int,
    list_scaled,
    list_windowed,
    shape_linears,
)

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)\.weight$")
"""A weight of one layer: `model.layers.3.self_attn.q_proj.weight`."""
VECTOR = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.([^.]+\.[^.]+)(?<!weight)(?<!bias)$")
"""Another parameter of a part of a layer, such as `model.layers.3.self_attn.sinks`."""
LAYER_NUMBER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
EXPERT = re.compile(r"(?:^|\.)experts\.|(?:^|\.)block_sparse_moe\.(?:input|output)_linear\b")
"""A weight of experts, one by one or together. transformers 5 holds them as parameters of three dimensions; the second
form is that of Granite's files."""
EXPERT_BIAS = re.compile(r"bias$")
UNGATED = {"up_proj", "down_proj"}
"""Matrices of an expert without a gate."""
ROUTER = re.compile(r"(?:^|\.)(?:gate|router)(?:\.proj|\.layer)?$")
"""The matrix that scores a layer's experts: in transformers 5 a parameter of its own class, which stays as it is."""
TOWER = re.compile(
    r"(?:^|\.)(?:vision|visual|audio|speech|image|img|vit|vpm|sam|qformer|siglip|resampler|perceiver)[^.]*\."
    r"|(?:^|\.)[^.]*(?:_tower|projector|aligner|connector)\."
    r"|(?:^|\.)embed_tokens_extend\."
)
"""Names of parts that read pictures or sound, and of what leads from them to the language model."""
HEADS = re.compile(r"^(lm_head|output|embed_out)\.weight$|\.lm_head\.weight$")
"""Output embeddings with weights of their own."""
CONFIG_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
"""What configs call a dtype, and the facts of a model."""
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "embed_dim")
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
"""What configs call the number of layers, the width and the number of heads: attribute_map of transformers' configs."""


def read_shapes(
    family: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return what ModelFacts holds of a model's inside, by field name.

    `config`: that of the language model. `shapes`: every parameter's, by its full name; (n, 1) for one whose n
    weights are packed. What cannot be told is left at 0 or empty.
    """
    hidden = first_int(config, *HIDDEN)
    heads = first_int(config, *QUERY_HEADS)
    key_heads = first_int(config, "num_key_value_heads") or heads
    head_dim = first_int(config, "head_dim") or (hidden // heads if heads else 0)
    mlp_width = first_int(config, "intermediate_size", "n_inner", "ffn_dim")
    window = first_int(config, "sliding_window") if config.get("use_sliding_window", True) else 0
    linears, norms, linear_parameters = _read_layers(
        shapes, shape_linears(hidden, heads * head_dim, key_heads * head_dim, mlp_width)
    )
    experts = {
        name: shape for name, shape in shapes.items() if EXPERT.search(name) and not EXPERT_BIAS.search(name)
    }
    tied = not any(HEADS.search(name) for name in shapes)
    # Nemotron-H's config as transformers saves it lists its layers and does not count them.
    layers = first_int(config, *LAYERS) or len(_split_layers(shapes))
    matrices = {name.removesuffix(".weight").rpartition(".")[2] for name in experts}
    return {
        "hidden_size": hidden,
        "layers": layers,
        "vocabulary": first_int(config, "vocab_size"),
        "max_positions": first_int(
            config, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"
        ),
        "mlp_width": mlp_width,
        "query_heads": heads,
        "key_heads": key_heads,
        "head_dim": head_dim,
        "sliding_window": window,
        "windowed_layers": list_windowed(family, config, layers) if window else (),
        "scores_capped": caps_scores(family, config),
        "scaled_branches": list_scaled(config),
        "tied_embeddings": tied if shapes else None,
        "linear_parameters": linear_parameters,
        "expert_parameters": sum(math.prod(shape) for shape in experts.values()),
        "experts": (
            len({match[1] for name in experts if (match := LAYER_NUMBER.search(name))}),
            first_int(config, *EXPERT_COUNTS) if experts else 0,
            first_int(config, *CHOSEN_COUNTS) if experts else 0,
        ),
        "expert_matrices": (2 if matrices == UNGATED else 3) if experts else 0,
        "linears": linears,
        "norms": norms,
        "attentions": _list_attentions(shapes),
        "blocks": _list_blocks(shapes),
    }


def _split_layers(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the parameters of each layer of the language model by the layer's number, their names inside it."""
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = None if TOWER.search(name) else LAYER_NUMBER.search(name)
        if match is not None:
            layers.setdefault(match[1], {})[name[match.end() :]] = shape
    return layers


def _list_blocks(shapes: Mapping[str, tuple[int, ...]]) -> tuple[BlockFacts, ...]:
    """Return ModelFacts.blocks; () where layers are more than a norm and one module, or packed weights hide shapes."""
    norm = ONE_BLOCK["input_norm"]
    kinds: Counter[tuple[Any, ...]] = Counter()
    for parts in _split_layers(shapes).values():
        owners = {name.partition(".")[0] for name in parts}
        if len(owners) != 2 or norm not in owners or any(shape[-1:] == (1,) for shape in parts.values()):
            return ()
        linears = {
            name.removesuffix(".weight"): shape
            for name, shape in parts.items()
            if len(shape) == 2 and name.endswith(".weight") and not EXPERT.search(name)
        }
        plain = tuple(sorted((name, shape) for name, shape in linears.items() if not ROUTER.search(name)))
        kinds[plain, any(EXPERT.search(name) for name in parts)] += 1
    return tuple(
        BlockFacts(layers=count, linears=dict(linears), routed=routed)
        for (linears, routed), count in kinds.items()
    )


def _list_attentions(shapes: Mapping[str, tuple[int, ...]]) -> tuple[AttentionFacts, ...]:
    """Return ModelFacts.attentions; () where norms do not say how wide each kind's heads are.

    Their MLPs count, too, where a model has no experts: in Gemma 4 E2B they are wider where keys are borrowed.
    """
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    parts = ("self_attn.",) if any(EXPERT.search(name) for name in shapes) else ("self_attn.", "mlp.")
    for name, shape in shapes.items():
        match = LAYER.search(name)
        if match is not None and match[2].startswith(parts) and not TOWER.search(name):
            layers.setdefault(match[1], {})[match[2]] = shape
    kinds = Counter(tuple(sorted(parts.items())) for parts in layers.values())
    found = []
    for parts, count in kinds.items():
        linears = {name: shape for name, shape in parts if len(shape) == 2}
        norms = {name: shape[0] for name, shape in parts if len(shape) == 1}
        widths = {norms.get(name) for names in HEAD_NORM_FORMS for name in names} - {None}
        if len(kinds) == 1 or len(widths) != 1 or any(inputs == 1 for _, inputs in linears.values()):
            return ()
        found.append(AttentionFacts(layers=count, head_dim=widths.pop(), linears=linears))
    return tuple(found)


def _read_layers(
    shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, tuple[int, int]], dict[str, int], int]:
    """Return a layer's linears, its norms and other vectors, and the parameters of all layers' linears.

    Experts and routers are left out of these.

    `known`: (outputs, inputs) by the names that linears have in most families: packed weights do not tell theirs.
    """
    widths = {name.rpartition(".")[2]: shape for name, shape in known.items()}
    linears: dict[str, tuple[int, int]] = {}
    norms: dict[str, int] = {}
    count = 0
    for name, shape in shapes.items():
        if TOWER.search(name):
            continue
        match, vector = LAYER.search(name), VECTOR.search(name)
        if vector is not None and len(shape) == 1 and vector[1].partition(".")[0] not in (*MLPS, *ROUTERS):
            norms[vector[1]] = shape[0]
        if match is None:
            continue
        inner = match[2]
        if len(shape) == 1:
            norms[inner] = shape[0]
        if len(shape) != 2:
            continue
        count += 0 if EXPERT.search(inner) or ROUTER.search(inner) else math.prod(shape)
        if shape[1] == 1:
            unpacked = widths.get(inner.rpartition(".")[2])
            if unpacked is None or math.prod(unpacked) != shape[0]:
                continue
            shape = unpacked
        linears[inner] = shape
    return linears, norms, count
