"""Well-known models that anybody may train and use, by size, and the shapes of usual sizes; as of 2026-11-21."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from studio.core.facts import ModelFacts
from studio.models.config_facts import outline_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """A model on the hub that needs no login; `config` holds what its config.json says of its shape."""

    source: str
    licence: str
    config: Mapping[str, Any]


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
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3", "smollm3": "SmolLM3"}
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
PICKS = (
    Pick(
        source="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        config=_config("llama", 30, 576, (9, 3, 64), 1536, 49_152, 8192, tied=True),
    ),
    Pick(
        source="Qwen/Qwen2.5-0.5B-Instruct",
        licence="Apache-2.0",
        config=_config("qwen2", 24, 896, (14, 2, 64), 4864, QWEN_WORDS, 32_768, tied=True),
    ),
    Pick(
        source="Qwen/Qwen3-0.6B",
        licence="Apache-2.0",
        config=_config("qwen3", 28, 1024, (16, 8, 128), 3072, QWEN_WORDS, 40_960, tied=True),
    ),
    Pick(
        source="Qwen/Qwen3-1.7B",
        licence="Apache-2.0",
        config=_config("qwen3", 28, 2048, (16, 8, 128), 6144, QWEN_WORDS, 40_960, tied=True),
    ),
    Pick(
        source="HuggingFaceTB/SmolLM3-3B",
        licence="Apache-2.0",
        config=_config("smollm3", 36, 2048, (16, 4, 128), 11_008, 128_256, 65_536, tied=True),
    ),
    Pick(
        source="microsoft/Phi-4-mini-instruct",
        licence="MIT",
        config=_config("phi3", 32, 3072, (24, 8, 128), 8192, 200_064, 131_072, tied=True),
    ),
    Pick(
        source="Qwen/Qwen3-4B",
        licence="Apache-2.0",
        config=_config("qwen3", 36, 2560, (32, 8, 128), 9728, QWEN_WORDS, 40_960, tied=True),
    ),
    Pick(
        source="Qwen/Qwen3-8B",
        licence="Apache-2.0",
        config=_config("qwen3", 36, 4096, (32, 8, 128), 12_288, QWEN_WORDS, 40_960),
    ),
    Pick(
        source="Qwen/Qwen3-14B",
        licence="Apache-2.0",
        config=_config("qwen3", 40, 5120, (40, 8, 128), 17_408, QWEN_WORDS, 40_960),
    ),
    Pick(
        source="Qwen/Qwen3-32B",
        licence="Apache-2.0",
        config=_config("qwen3", 64, 5120, (64, 8, 128), 25_600, QWEN_WORDS, 40_960),
    ),
)
"""Ascending by size."""
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
def outline_picks() -> Mapping[str, ModelFacts]:
    """Return the facts of PICKS by their hub id."""
    return {pick.source: outline_model(pick.source, pick.config) for pick in PICKS}


@cache
def outline_sizes() -> Mapping[str, ModelFacts]:
    """Return the facts of SIZES by their name."""
    return {name: outline_model(name, config) for name, config in SIZES.items()}
