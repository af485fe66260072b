"""What a run keeps in memory for its backward pass, layer by layer: decided by the planner, followed by the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KEEP_LEVELS = ("input", "attention", "qkv", "all")
"""What is kept of a layer; each level keeps what stands before it, too. input: the layer's input. attention: the
attention's result with its log-sum-exp, and the residual stream after attention. qkv: query, key and value. all: gate
and up of the MLP. Results of norms and of the gate are always computed again, the down projection never is."""
Keep = Literal["input", "attention", "qkv", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPolicy:
    """What is kept of one layer."""

    keep: Keep = "all"
    offload: bool = False
    """Whether what is kept waits in the machine's own (pinned) memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPolicy:
    """What a micro-step keeps and in what portions it computes."""

    layers: tuple[LayerPolicy, ...]
    """From the first layer (next to the embeddings) to the last."""
    mlp_chunk_tokens: int = 0
    """Tokens of one portion of the MLP; 0: all at once."""
    head_rows: int = 0
    """Rows of one portion of the loss head; 0: the head's own choice."""
    head_columns: int = 0
    """Columns (vocabulary) of one portion of the loss head; 0: the head's own choice."""
    cached_layers: int = 0
    """How many of the last layers keep their 4-bit weights opened up in 16 bits for the whole run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRun:
    """Neighbouring layers of one LayerPolicy, counted from 1."""

    first: int
    last: int
    policy: LayerPolicy


def list_runs(policy: MemoryPolicy) -> tuple[LayerRun, ...]:
    """Return the layers of `policy` with equal neighbours together: short enough to read."""
    runs: list[LayerRun] = []
    for number, layer in enumerate(policy.layers, start=1):
        first = number
        if runs and runs[-1].policy == layer:
            first = runs.pop().first
        runs.append(LayerRun(first=first, last=number, policy=layer))
    return tuple(runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What arithmetic on shapes cannot know: peak = context + fragmentation x what is allocated."""

    context_bytes: int = 600 * 2**20
    """What driver, torch, its libraries and loaded kernels hold beside torch's own."""
    fragmentation: float = 1.03
    """What torch holds as a multiple of what is used: 1.02 to 1.04 with expandable segments, 1.06 to 1.10 without."""
