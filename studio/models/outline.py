"""What a model is, from its config alone: for models whose weights are not on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from studio.core.facts import ModelFacts
from studio.models.catalog import CONFIG_DTYPES, judge_config, name_quantization
from studio.models.shapes import LAYERS, first_int, read_shapes

PLAIN = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "phi3")
"""Families whose layers are made of the linears that shape_layer() names; of others only the totals are known."""
FUSED = ("phi3",)
"""Those of PLAIN that hold query, key and value in one matrix, and gate and up in another."""
HEAD_NORMS = ("qwen3", "gemma3_text")
BRANCH_NORMS = ("gemma2", "gemma3_text")
TIED = ("gemma", "gemma2", "gemma3_text")
"""Families whose input and output embeddings are the same where the config does not say."""
MOST_LAYERS = 1000
"""A config with more is not believed: what is made for each layer would fill the memory."""
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


def outline_model(
    source: str,
    config: Mapping[str, Any],
    *,
    parameters: int = 0,
    weight_bytes: int = 0,
    has_chat_template: bool = True,
) -> ModelFacts:
    """Return the facts of a hub model that is not here (folder ""), from config.json and what the hub says of it.

    `parameters` and `weight_bytes`: as the hub counts them, 0 when it does not; where the config tells the shapes,
    parameters follow from them. What cannot be told is 0 or empty.
    """
    inner = config.get("text_config")
    shape = inner if isinstance(inner, Mapping) else config
    if first_int(shape, *LAYERS) > MOST_LAYERS:
        shape = {}
    family = str(config.get("model_type", ""))
    quantization = name_quantization(config)
    written = shape.get("dtype") or shape.get("torch_dtype") or config.get("torch_dtype")
    dtype = CONFIG_DTYPES.get(str(written), "fp32")
    shapes = shape_weights(family, shape) if family in PLAIN else {}
    counted = sum(map(math.prod, shapes.values())) or parameters
    architecture = str(next(iter(config.get("architectures") or ()), ""))
    return ModelFacts(
        source=source,
        name=source,
        folder="",
        architecture=architecture,
        family=family,
        parameters=counted,
        weight_bytes=weight_bytes or counted * DTYPE_BYTES[dtype],
        dtype=dtype,
        quantization=quantization,
        has_chat_template=has_chat_template,
        trainable=judge_config(config, architecture, quantization),
        **read_shapes(family, shape, shapes),
    )


def shape_weights(family: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight of a model of PLAIN by its name; {} where the config lacks a number."""
    hidden, layers = first_int(config, "hidden_size"), first_int(config, "num_hidden_layers")
    vocabulary = first_int(config, "vocab_size")
    layer = shape_layer(family, config)
    if not (hidden and vocabulary and layer and layers > 0):
        return {}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", family in TIED):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def shape_layer(family: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one layer's weights, (outputs, inputs) for a linear; {} where the config lacks a number."""
    hidden, heads = first_int(config, "hidden_size"), first_int(config, "num_attention_heads")
    width = first_int(config, "intermediate_size")
    if not (hidden and heads and width):
        return {}
    head_dim = first_int(config, "head_dim") or hidden // heads
    queries, keys = heads * head_dim, (first_int(config, "num_key_value_heads") or heads) * head_dim
    layer: dict[str, tuple[int, ...]]
    if family in FUSED:
        layer = {
            "self_attn.qkv_proj": (queries + 2 * keys, hidden),
            "mlp.gate_up_proj": (2 * width, hidden),
        }
    else:
        layer = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
        }
    layer |= {"self_attn.o_proj": (hidden, queries), "mlp.down_proj": (hidden, width)}
    layer |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    if family in HEAD_NORMS:
        layer |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    if family in BRANCH_NORMS:
        layer |= {"pre_feedforward_layernorm": (hidden,), "post_feedforward_layernorm": (hidden,)}
    return layer
