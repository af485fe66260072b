"""A LoRA adapter of peft as a GGUF file that llama.cpp adds to its base: `llama-server -m BASE --lora FILE`.

llama.cpp adds alpha / rank * B A, one alpha for all: what differs between modules is multiplied into B.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.json_file import read_json
from studio.models.gguf.family_changes import (
    DONE,
    TURNED,
    group_heads,
    group_inputs,
    group_values,
    group_values_behind,
)
from studio.models.gguf.file_tensors import list_stored, name_plainly
from studio.models.gguf.file_writer import GgufWriter
from studio.models.gguf.header import refuse
from studio.models.gguf.tensor_types import BY_NAME
from studio.models.gguf.write import config_as_family, find_written

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FRONT = "base_model.model."
ROWS = (*TURNED.values(), group_heads, group_values, group_values_behind)
"""What moves a weight's rows: those of B."""
UNSAID = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "lora_bias")
"""Settings of an adapter beyond two matrices a map: a GGUF file has no place for them, and vLLM refuses them."""


def find_unsaid(adapter: Path) -> str:
    """Return the setting of an adapter that neither a GGUF file nor vLLM knows; "" where they know all."""
    config = read_json(adapter / CONFIG)
    kind = str(config.get("peft_type", "LORA")).upper()
    if kind != "LORA":
        return f"peft_type={kind}"
    return next((name for name in UNSAID if config.get(name)), "")


def write_adapter(adapter: Path, base: Path, name: str, path: Path) -> dict[str, torch.Tensor]:
    """Write the adapter in `adapter`, trained on the model in `base`, as the file at `path`; return what it holds.

    name: what it is called in the file. Raises StudioError for what the file cannot hold; OSError.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig

    unsaid = find_unsaid(adapter)
    if unsaid:
        raise refuse("adapter_unsaid", path.name, setting=unsaid)
    inner = AutoConfig.from_pretrained(base, trust_remote_code=False).get_text_config()
    family = find_written(inner.model_type)
    if family is None:
        raise refuse("no_family", path.name, family=inner.model_type)
    config = config_as_family(inner, family, path.name)
    settings = read_json(adapter / CONFIG)
    pairs = _pair(load_file(adapter / WEIGHTS), path.name)
    shapes = {f"{module}.weight": (b.shape[0], a.shape[1]) for module, (a, b) in pairs.items()}
    stored = list_stored(family, shapes, config, path.name)
    factors = {module: _scale(settings, module, a.shape[0]) for module, (a, _) in pairs.items()}
    alpha = next(factors[module] * a.shape[0] for module, (a, _) in pairs.items())
    tensors = {}
    for one in stored:
        module = one.sources[0].removesuffix(".weight")
        change = family.changes.get(one.inner)
        if one.part or len(one.sources) > 1 or change not in (None, group_inputs, *ROWS):
            raise refuse("no_place", path.name, tensor=f"{module}.lora_A")
        a, b = (part.float() for part in pairs[module])
        if change is group_inputs:
            a = DONE[change](a, config)
        elif change is not None:
            b = DONE[change](b, config)
        tensors[f"{one.name}.lora_a"] = a.half()
        tensors[f"{one.name}.lora_b"] = (b * (factors[module] * a.shape[0] / alpha)).half()
    metadata = {
        "general.architecture": family.architecture,
        "general.type": "adapter",
        "general.name": name,
        "general.file_type": 1,
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    table = [(key, tuple(one.shape), BY_NAME["F16"]) for key, one in tensors.items()]
    with GgufWriter(path, metadata, table) as file:
        for one in tensors.values():
            file.write(one.contiguous().numpy().tobytes())
    return tensors


def _pair(weights: Mapping[str, torch.Tensor], file: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return A (r, in) and B (out, r) by the module's name."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for key, weight in weights.items():
        match = re.fullmatch(rf"{re.escape(FRONT)}(.+)\.lora_([AB])\.weight", key)
        plain = name_plainly(match[1] + ".weight") if match else None
        if match is None or plain is None:
            raise refuse("no_place", file, tensor=key)
        found.setdefault(plain.removesuffix(".weight"), {})[match[2]] = weight
    return {module: (pair["A"], pair["B"]) for module, pair in found.items()}


def _scale(settings: Mapping[str, Any], module: str, rank: int) -> float:
    """Return what peft multiplies B A of a module with."""
    patterns = settings.get("alpha_pattern") or {}
    alpha = next((value for key, value in patterns.items() if _fits(key, module)), settings["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _fits(pattern: str, module: str) -> bool:
    """Return whether a key of peft's patterns names a module: as a regular expression for the end of its name."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
