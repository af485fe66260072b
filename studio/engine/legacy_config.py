"""Spells a saved model's settings so that programs that know older names read them, too.

transformers 5 writes `rope_parameters` and `dtype` alone, and a tokenizer class of its own. transformers 4 and mlx-lm
look for `rope_theta`, `rope_scaling` and `torch_dtype`, and take 10,000 for a theta that they do not find; transformers
4 does not know the class. transformers 5 reads both spellings and computes the same, but for the ropes of some families
with one for each kind of layer, which it then loses: those stay as they are. With both, 4.57.6 gave the very logits of
5.23 for SmolLM2, Qwen2.5, Gemma 3 and a Llama 3 rope, and the same tokens; mlx-lm 0.32.2 a KL of at most 3e-5.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig

from studio.core.json_file import read_json

NEW_CLASS, OLD_CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
NEW_TOKENIZER_KEYS = ("backend", "is_local", "local_files_only")
OLD_ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
"""Kinds of rotary embedding that transformers 4 knows. Of another (Gemma 4's proportional) the older names hold half of
what is needed, and transformers 5 then loads nothing."""
ROPE_KEYS = ("rope_theta", "partial_rotary_factor")
"""What older configs hold beside `rope_scaling`."""


def add_older_spelling(folder: Path) -> None:
    """Add older names to config.json and tokenizer_config.json in `folder`, where they are; to be done last.

    Saving them again by transformers takes the tokenizer's away. Raises OSError, StudioError for what is no JSON.
    """
    for name, spell in (("config.json", _spell_config), ("tokenizer_config.json", _spell_tokenizer)):
        file = folder / name
        if file.is_file():
            settings = spell(read_json(file))
            file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _spell_config(config: dict[str, Any]) -> dict[str, Any]:
    spelled = copy.deepcopy(config)
    _add_ropes(spelled)
    if _read_ropes(spelled) != _read_ropes(config):
        spelled = copy.deepcopy(config)
    _add_dtypes(spelled)
    return spelled


def _add_ropes(config: dict[str, Any]) -> None:
    """Add the older names of the rotary embedding to a config and its parts, such as the language model's."""
    rope = config.get("rope_parameters")
    # By kind of layer, as in Gemma 3: older configs know the sliding ones' theta by a name of its own.
    whole = rope.get("full_attention", rope) if isinstance(rope, dict) else None
    if isinstance(whole, dict) and whole.get("rope_type", "default") in OLD_ROPES:
        local = rope.get("sliding_attention", {})
        added = {key: whole[key] for key in ROPE_KEYS if key in whole}
        rest = {key: value for key, value in whole.items() if key not in ROPE_KEYS}
        plain = rest.get("rope_type", "default") == "default"
        added["rope_scaling"] = None if plain else rest
        if rest.get("rope_type") == "longrope" and "original_max_position_embeddings" in rest:
            added["original_max_position_embeddings"] = rest["original_max_position_embeddings"]
        if "rope_theta" in local:
            added["rope_local_base_freq"] = local["rope_theta"]
        config.update({key: value for key, value in added.items() if key not in config})
    for part in _list_parts(config):
        _add_ropes(part)


def _add_dtypes(config: dict[str, Any]) -> None:
    if "dtype" in config:
        config.setdefault("torch_dtype", config["dtype"])
    for part in _list_parts(config):
        _add_dtypes(part)


def _list_parts(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [part for part in config.values() if isinstance(part, dict) and "model_type" in part]


def _read_ropes(config: Mapping[str, Any]) -> Any:
    """Return the rotary embeddings that transformers understands, by part; None for a family that it does not know."""
    if config.get("model_type") not in CONFIG_MAPPING:
        return None
    # transformers understands its own spelling of infinity in files alone.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        read = AutoConfig.from_pretrained(folder, local_files_only=True).to_dict()

    def pick(part: Mapping[str, Any]) -> dict[str, Any]:
        inner = {name: pick(value) for name, value in part.items() if isinstance(value, dict)}
        return inner | {"rope_parameters": part.get("rope_parameters")}

    return pick(read)


def _spell_tokenizer(settings: dict[str, Any]) -> dict[str, Any]:
    if settings.get("tokenizer_class") != NEW_CLASS:
        return settings
    settings["tokenizer_class"] = OLD_CLASS
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    for key in NEW_TOKENIZER_KEYS:
        settings.pop(key, None)
    return settings
