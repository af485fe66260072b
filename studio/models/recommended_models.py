"""Well-known models that anybody may train and use, by size, and the shapes of usual sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from studio.core.codec import from_json
from studio.core.facts import ModelFacts
from studio.core.json_file import read_json
from studio.models.config_facts import outline_model

PICKS_FILE = Path(__file__).resolve().parents[2] / "assets" / "models.json"
"""Written by assets/make_models.py, where the models stand with their configs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """A model on the hub that needs no login."""

    facts: ModelFacts
    line: str
    """Which models it belongs to, of one maker and one year: `Qwen3.5`."""
    licence: str
    stored_bytes: int
    """To download."""

    @property
    def source(self) -> str:
        """Its hub id."""
        return self.facts.source


def _config(
    family: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    mlp_width: int,
    vocabulary: int,
    positions: int,
    tied: bool = False,
) -> dict[str, Any]:
    """`heads`: query heads, key heads, width of one."""
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{names[family]}ForCausalLM"],
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "intermediate_size": mlp_width,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }


QWEN_WORDS = 151_936
SIZES = {
    "0.5B": _config("qwen2", 24, 896, (14, 2, 64), 4864, QWEN_WORDS, 32_768, tied=True),
    "1B": _config("llama", 16, 2048, (32, 8, 64), 8192, 128_256, 131_072, tied=True),
    "3B": _config("llama", 28, 3072, (24, 8, 128), 8192, 128_256, 131_072, tied=True),
    "8B": _config("llama", 32, 4096, (32, 8, 128), 14_336, 128_256, 131_072),
    "14B": _config("qwen3", 40, 5120, (40, 8, 128), 17_408, QWEN_WORDS, 40_960),
    "32B": _config("qwen3", 64, 5120, (64, 8, 128), 25_600, QWEN_WORDS, 40_960),
    "70B": _config("llama", 80, 8192, (64, 8, 128), 28_672, 128_256, 131_072),
}
"""Configs of the proportions that models of a size usually have (Llama 3, Qwen), ascending."""


@cache
def read_picks() -> tuple[Pick, ...]:
    """Return the models that are advised, ascending by size."""
    return tuple(from_json(Pick, entry) for entry in read_json(PICKS_FILE))


@cache
def outline_sizes() -> Mapping[str, ModelFacts]:
    """Return the facts of SIZES by their name."""
    return {name: outline_model(name, config) for name, config in SIZES.items()}
