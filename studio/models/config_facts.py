"""What a model is, from its config alone: for models whose weights are not on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from studio.core.facts import ModelFacts
from studio.models.architectures import judge_config
from studio.models.catalog import name_quantization
from studio.models.config_shapes import CONFIG_DTYPES, LAYERS, read_shapes
from studio.models.decoder.structure import TRAITS, FamilyTraits, Shape, first_int, shape_layer
from studio.models.stored_weights import OPENED

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
    packed = quantization in OPENED
    written = shape.get("dtype") or shape.get("torch_dtype") or config.get("torch_dtype")
    dtype = CONFIG_DTYPES.get(str(written), "fp32")
    shapes = shape_weights(TRAITS[family], shape) if family in TRAITS else {}
    counted = sum(map(math.prod, shapes.values())) or parameters
    architecture = str(next(iter(config.get("architectures") or ()), ""))
    return ModelFacts(
        source=source,
        name=source,
        folder="",
        architecture=architecture,
        family=family,
        parameters=counted,
        weight_bytes=2 * counted if packed else weight_bytes or counted * DTYPE_BYTES[dtype],
        dtype="bf16" if packed else dtype,
        quantization="none" if packed else quantization,
        has_chat_template=has_chat_template,
        trainable=judge_config(config, architecture, quantization),
        **read_shapes(family, shape, shapes),
    )


def shape_weights(traits: FamilyTraits, config: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the shape of every weight of a model with such layers by its name; {} where the config lacks a number."""
    hidden, layers = first_int(config, "hidden_size"), first_int(config, "num_hidden_layers")
    vocabulary = first_int(config, "vocab_size")
    layer = shape_layer(traits, config)
    if not (hidden and vocabulary and layer and layers > 0):
        return {}
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for number in range(layers):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", traits.tied):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes
