"""How a GGUF file's model turns its queries and keys: transformers' `rope_parameters`, from llama.cpp's keys."""

from __future__ import annotations

import itertools
import math
from typing import Any

from studio.models.gguf.keys import GgufKeys, shorten

DEFAULT_THETA = 10_000.0
LLAMA3_BOUNDS = ((1.0, 4.0), (1.0, 1.0), (1.0, 2.0), (1.0, 8.0), (1.0, 16.0), (1.0, 32.0))
"""(low, high) frequency factors that models were published with; (1, 4) are Llama 3's."""
LLAMA3_LENGTHS = tuple(2**power for power in range(6, 21))
CLOSE = 2e-4
"""Factors are stored in fp32 after arithmetic that differs from ours in order alone."""


def read_rope(keys: GgufKeys, head_dim: int) -> dict[str, Any]:
    """Return `rope_parameters` of the model: its base, and how it is stretched. Raises StudioError for unknown ways."""
    theta = float(keys.get("rope.freq_base", DEFAULT_THETA))
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    turned = keys.get("rope.dimension_count", head_dim)
    if turned != head_dim and head_dim:
        found["partial_rotary_factor"] = turned / head_dim
    kind = keys.get("rope.scaling.type", "linear" if "rope.scale_linear" in keys else "none")
    factor = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0)))
    if "rope_freqs.weight" in keys.tensors:
        found |= _read_llama3(keys, theta, turned)
    elif "rope_factors_long.weight" in keys.tensors:
        found |= _read_longrope(keys)
    elif kind == "linear" and factor != 1.0:
        found |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        found |= {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": keys["rope.scaling.original_context_length"],
        }
        named = {
            "beta_fast": "yarn_beta_fast",
            "beta_slow": "yarn_beta_slow",
            "attention_factor": "yarn_attn_factor",
        }
        for name, key in named.items():
            if f"rope.scaling.{key}" in keys:
                found[name] = keys[f"rope.scaling.{key}"]
    elif kind not in ("none", "linear"):
        raise keys.refuse("rope", kind=kind)
    return found


def _read_llama3(keys: GgufKeys, theta: float, turned: int) -> dict[str, Any]:
    """Return Llama 3's way of stretching from the factors that llama.cpp keeps of it, one a frequency.

    Factors: 1 for short waves, `factor` for long ones, between them 1 / ((1 - s) / factor + s), s from 0 to 1 by the
    wavelength (transformers' `_compute_llama3_parameters`). The bounds are those of published models.
    """
    factors = keys.read_values("rope_freqs.weight")
    factor = shorten(max(factors))
    if len(factors) != turned // 2:
        raise keys.refuse("rope", kind="llama3")
    if max(factors) - 1.0 < CLOSE and min(factors) > 1.0 - CLOSE:
        return {}
    for length, (low, high) in itertools.product(LLAMA3_LENGTHS, LLAMA3_BOUNDS):
        ours = [
            stretch_llama3(theta ** (2 * place / turned) * 2 * math.pi, factor, low, high, length)
            for place in range(turned // 2)
        ]
        if all(abs(one - other) <= CLOSE * factor for one, other in zip(ours, factors, strict=True)):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": length,
            }
    raise keys.refuse("rope", kind="llama3")


def stretch_llama3(wavelength: float, factor: float, low: float, high: float, length: int) -> float:
    """Return by how much a wave of `wavelength` tokens is stretched in a model first trained on `length` tokens."""
    if wavelength < length / high:
        return 1.0
    if wavelength > length / low:
        return factor
    smooth = (length / wavelength - low) / (high - low) if high != low else 0.0
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _read_longrope(keys: GgufKeys) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": [shorten(one) for one in keys.read_values("rope_factors_long.weight")],
        "short_factor": [shorten(one) for one in keys.read_values("rope_factors_short.weight")],
        "original_max_position_embeddings": keys["rope.scaling.original_context_length"],
    }
    if "rope.scaling.attn_factor" in keys:
        found["attention_factor"] = keys["rope.scaling.attn_factor"]
    return found
