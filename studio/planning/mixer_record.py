"""What autograd holds of a mixer that runs as the model's own module (models/decoder/blocks/foreign_mixer.py).

Counted from the widths of its linears by what was measured of transformers' own code, which composes most mixers of
PyTorch's operations; libraries' kernels hold less. Measured in bf16 with adapters on one H200, 2 x 2,048 tokens, at the
widths of Qwen3.5 9B, Gemma 4 26B, DeepSeek-V3, LFM2 1.2B and Granite 4-H Tiny (torch 2.11, transformers 5.17).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SCORE_BYTES = 4
"""Attention that is composed of matrix products keeps each score in fp32, and once more as it multiplies."""
Linears = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes a token of one kind of mixer, in 16 bits."""

    inside: float
    """Held for each output of its linears but the last."""
    outside: float
    """Held for each feature of the layer's input."""
    forward: float
    """What its forward pass needs beside, as a share of what is held."""
    backward: float
    """Likewise, while autograd runs back."""


GATED_DELTA = Cost(32.0, 13.0, 0.2, 0.12)
FUSED_DELTA = Cost(5.4, 13.0, 0.35, 0.7)
"""By the ops gated_delta, rms_norm and glu, which keep what they read alone. Counted: a slice of Qwen3.5 9B used 12,841
MiB on an H200 where 13,512 were foretold. At the widths of
Qwen3.5 9B autograd saves 112 kB a token, and 128 where transformers repeats key heads (5.17 does); the same count gives
436 for transformers' code, of which 438 were measured. Beside them live each chunk's state and its gradient, 16 kB a
token each, and gradients of keys and queries of each value head in fp32, 32."""
DELTA_RULE = "linear_attn"
"""What layers call a mixer with a gated delta rule."""
CONVOLUTION = Cost(4.1, 4.0, 0.65, 0.4)
LATENT = Cost(5.3, 4.0, 0.65, 0.55)
GATED_ATTENTION = Cost(8.2, 4.0, 0.5, 0.4)
SHARED_KEYS = Cost(14.1, 4.0, 0.35, 0.7)
"""Gemma 4's attention to all tokens: its keys are its values before their norms."""
NORMED_ATTENTION = Cost(11.0, 4.0, 0.4, 0.45)
ATTENTION = Cost(7.2, 4.0, 0.55, 0.75)
STATE_SPACE = Cost(5.7, 4.0, 1.2, 2.8)
"""Mamba 2 by our code (models/state_space.py), which keeps what it reads alone: held as autograd saves it on a
processor with 5.23, the rest by the memory of a process with 8,192 tokens."""
UNKNOWN = Cost(45.0, 4.0, 0.6, 1.0)
"""Mamba 2, as transformers composes it from 5.18 on, which holds most of all that is known: counted likewise, the rest
reckoned."""


@dataclass(frozen=True, slots=True)
class MixerRecord:
    """Bytes a token."""

    held_bytes: int
    """Of the mixer that holds most, where layers have several kinds."""
    mean_bytes: int
    """Of all layers, on average."""
    forward_bytes: int
    """What a forward pass needs beside what it holds, at most."""
    backward_bytes: int
    """Likewise, while autograd runs back."""


def choose_cost(name: str, linears: Linears, head_norms: bool, fused: bool = False) -> Cost:
    """Return what is known of the mixer that a layer calls `name`; its `linears` are (outputs, inputs).

    `fused`: a delta rule is computed by our kernels.
    """
    leaves = {full.rpartition(".")[2]: shape for full, shape in linears.items()}
    if name == DELTA_RULE:
        return FUSED_DELTA if fused else GATED_DELTA
    if name == "conv":
        return CONVOLUTION
    if leaves.keys() == {"in_proj", "out_proj"}:
        return STATE_SPACE
    if name != "self_attn":
        return UNKNOWN
    if "kv_b_proj" in leaves:
        return LATENT
    if "v_proj" not in leaves and "qkv_proj" not in leaves:
        return SHARED_KEYS
    if "q_proj" in leaves and "o_proj" in leaves and leaves["q_proj"][0] == 2 * leaves["o_proj"][1]:
        return GATED_ATTENTION
    return NORMED_ATTENTION if head_norms else ATTENTION


def count_record(
    mixers: Mapping[str, Linears],
    *,
    layers: int,
    weights: int,
    head_norms: bool,
    element_bytes: int,
    score_bytes: int,
    fused: bool = False,
    counts: Mapping[str, int] | None = None,
) -> MixerRecord:
    """Return what is held of `mixers`, the linears of each kind by the name of its module.

    `weights`: of all layers' mixers together, from which the layers of two kinds are counted. `score_bytes`: what
    composed attention holds of a token's scores. `fused`: see choose_cost(). `counts`: how many layers have a mixer of
    each kind, where that is known and others have none.
    """
    wider = max(1, element_bytes // 2)
    held, sizes, costs = [], [], []
    for name, linears in mixers.items():
        cost, shapes = choose_cost(name, linears, head_norms, fused), list(linears.values())
        hidden = max((inputs for _, inputs in shapes), default=0) if len(shapes) < 2 else shapes[0][1]
        inside = sum(outputs for full, (outputs, _) in linears.items() if not _returns(full))
        scores = score_bytes if name == "self_attn" else 0
        held.append(math.ceil(wider * (cost.inside * inside + cost.outside * hidden)) + scores)
        sizes.append(sum(outputs * inputs for outputs, inputs in shapes))
        costs.append(cost)
    most = max(held)
    if counts is None:
        mean = _average(held, sizes, layers, weights)
    else:
        mean = sum(one * counts[name] for one, name in zip(held, mixers, strict=True)) / layers
    return MixerRecord(
        held_bytes=most,
        mean_bytes=math.ceil(mean),
        forward_bytes=max(math.ceil(cost.forward * one) for cost, one in zip(costs, held, strict=True)),
        backward_bytes=max(math.ceil(cost.backward * one) for cost, one in zip(costs, held, strict=True)),
    )


def name_mixer(linears: Linears) -> str:
    """Return `self_attn` for the linears of an attention under whatever name, else that of their module."""
    inside = {name.rpartition(".")[2] for name in linears}
    owner = next(iter(linears)).partition(".")[0]
    return "self_attn" if {"q_proj", "k_proj", "v_proj", "o_proj"} <= inside else owner


def _returns(name: str) -> bool:
    """Return whether a linear leads back to the layer's width."""
    return name.rpartition(".")[2] in ("o_proj", "out_proj")


def _average(held: list[int], sizes: list[int], layers: int, weights: int) -> float:
    """Return the mean of `held` over all layers; of two kinds of unlike size their counts follow from the weights."""
    if len(held) != 2 or sizes[0] == sizes[1] or not layers:
        return max(held)
    first = (weights - layers * sizes[1]) / (sizes[0] - sizes[1])
    if not 0 <= first <= layers or first != int(first):
        return max(held)
    return (first * held[0] + (layers - first) * held[1]) / layers
