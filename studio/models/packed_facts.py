"""The facts of a model that is opened into a folder of 16-bit weights before it trains, from its config and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from studio.core.facts import ModelFacts, Verdict
from studio.core.i18n import Text
from studio.models.architectures import judge_config
from studio.models.config_shapes import CONFIG_DTYPES, read_shapes
from studio.models.sdpa import supports_sdpa

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def describe_packed(
    source: str,
    name: str,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: str,
    has_chat_template: bool,
    opening: Text,
) -> ModelFacts:
    """Return the facts of what it will be opened as; its `folder` is "".

    `config`: without what it says of its stored form. `shapes`: of the opened weights, by name; `dtype`: theirs, as
    PyTorch calls it. `opening`: what opening takes and costs.
    """
    architecture = str(next(iter(config.get("architectures") or ()), ""))
    family, inner = str(config.get("model_type", "")), config.get("text_config")
    verdict = judge_config(config, architecture, "none")
    parameters = sum(map(math.prod, shapes.values()))
    return ModelFacts(
        source=source,
        name=name,
        folder="",
        architecture=architecture,
        family=family,
        parameters=parameters,
        weight_bytes=parameters * ITEM_BYTES[dtype],
        dtype=CONFIG_DTYPES[dtype],
        quantization="none",
        sdpa=supports_sdpa(family, architecture),
        has_chat_template=has_chat_template,
        trainable=Verdict(ok=True, reason=opening) if verdict.ok else verdict,
        packed=True,
        **read_shapes(family, inner if isinstance(inner, Mapping) else config, shapes),
    )
