"""What a policy costs in time: operations done twice, copies that the arithmetic does not hide, and small portions.

All in operations of a matrix product for one token, so that no card's speed is needed; only a copied byte is weighed
against them, by OPERATIONS_A_BYTE.
"""

from __future__ import annotations

from dataclasses import dataclass

from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.models.decoder.structure import INPUT_GROUPS, LATENT_GROUPS, LAUREL_GROUPS
from studio.planning.decoder_shape import DecoderShape
from studio.planning.layer_memory import moved_bytes

OPERATIONS_A_BYTE = 15_000
"""Operations in the time in which a byte crosses PCIe, taken high, so that a planned copy is a hidden one: an H200
multiplies at 680 TFLOP/s and copies 45 to 55 GB/s, 12,400 to 15,100. A 4090 (150, 22 to 25) has 6,000 to 6,800, a 3090
(70, 25) 2,800, an A100 (270, 25) 10,800, a T4 (25, 12) 2,100."""
ATTENTION_SLOWNESS = 1.3
"""Time of one operation of attention in those of a matrix product: 540 against 680 TFLOP/s on an H200."""
PORTION_TOKENS = 16
"""What a portion of the MLP takes beyond its own tokens: launches, and a GPU that is not full at its end."""
HEAD_SHARES = (0.0, 0.03, 0.06)
"""Time that the loss head takes longer in each of its smaller portions (memory_planner.HEAD_PORTIONS)."""
COPY_SHARE = 0.01
"""What a hidden copy still takes of its time: the card's memory serves it, too."""
OPENING_OPERATIONS = 1000
"""A 4-bit weight, opened forward and backward: 10 ms for the 7 billion of an 8B model on an H200."""

READING_OPERATIONS = 650
"""A 16-bit weight, read forward and backward: 4 bytes at 4.2 TB/s beside 680 TFLOP/s."""
LAYER_OPERATIONS = 1.5e11
"""The starts and ends of a layer's 55 kernels, 4 us each on an H200."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer's operations a token, where nothing is done twice."""

    forward: float
    backward: float
    """One product for each frozen weight, two for a trained one, and two and a half times attention."""
    mlp: float
    """Of the MLP, forward."""
    gate_up: float
    repeated: tuple[float, ...]
    """What each of KEEP_LEVELS leaves to be done again."""


def measure_work(shape: DecoderShape, window: int, document_tokens: int) -> LayerWork:
    """Return the work of a layer whose tokens see `window` tokens (0: all before them) of such documents."""
    seen = document_tokens / 2
    if 0 < window < document_tokens:
        seen = window - window**2 / (2 * document_tokens)
    attention = ATTENTION_SLOWNESS * 4 * shape.mean_columns("queries") * seen
    output, qkv, gate_up, down = (
        2 * shape.groups[name].inputs * shape.groups[name].outputs
        for name in ("output", "qkv", "gate_up", "down")
    )
    if shape.routed is not None:  # of the mean layer
        share = shape.routed.layers / shape.layers
        gate_up += share * 2 * shape.routed.chosen * shape.hidden * shape.routed.opened
        down += share * 2 * shape.routed.chosen * shape.hidden * shape.routed.width
    qkv += sum(
        2 * group.inputs * group.outputs for name in LATENT_GROUPS if (group := shape.groups.get(name))
    )
    inputs = sum(
        2 * group.inputs * group.outputs
        for name in (*INPUT_GROUPS, *LAUREL_GROUPS)
        if (group := shape.groups.get(name))
    )
    linear = output + qkv + gate_up + down + inputs
    repeated = tuple(
        inputs + rest for rest in (attention + output + qkv + gate_up, qkv + gate_up, gate_up, 0.0)
    )
    if shape.record:  # the model's own mixer runs again at each level but the highest
        repeated = (repeated[0], repeated[0], repeated[0], 0.0)
    return LayerWork(
        forward=linear + attention,
        backward=linear * (1 + shape.whole) + 2.5 * attention,
        mlp=gate_up + down,
        gate_up=gate_up,
        repeated=repeated,
    )


def extra_work(shape: DecoderShape, work: LayerWork, layer: LayerPolicy, mlp_chunk_tokens: int) -> float:
    """Return what a layer that follows `layer` takes beyond `work`, operations a token.

    A layer's copy out has the time of the layer above it, its copy back that of the one above in the backward pass.
    """
    level = KEEP_LEVELS.index(layer.keep)
    repeated = work.repeated[level]
    extra = repeated
    if layer.offload:
        copy = OPERATIONS_A_BYTE * moved_bytes(shape, layer.keep)
        extra += 2 * COPY_SHARE * copy
        extra += max(0.0, copy - work.forward) + max(0.0, copy - work.backward - repeated)
    if mlp_chunk_tokens:
        extra += (2 * work.mlp + (level < 3) * work.gate_up) * PORTION_TOKENS / mlp_chunk_tokens
    return extra


def micro_step_work(shape: DecoderShape, *, opened: bool) -> float:
    """Return what a micro-step takes beside its tokens, in operations: 22 ms of an 8B model in 4 bits on an H200.

    Each 16-bit weight is read in both directions, each 4-bit one opened as well, and each of a layer's kernels leaves
    the card partly idle at its start and end. Trained weights have a gradient in 32 bits, which is read and written.
    """
    reading = READING_OPERATIONS * (3 if shape.whole else 1)
    weights = shape.layers * sum(group.inputs * group.outputs for group in shape.groups.values())
    if shape.routed is not None:  # all of them, of however few tokens
        weights += shape.routed.layers * shape.routed.experts * shape.routed.weights
    return weights * (reading + OPENING_OPERATIONS * opened) + shape.layers * LAYER_OPERATIONS


def head_work(shape: DecoderShape) -> float:
    """Return the loss head's operations a token: the logits, and the gradients of what they are made from."""
    return (4.0 + 2.0 * shape.whole) * shape.hidden * shape.vocabulary


def slowdown(shape: DecoderShape, policy: MemoryPolicy, document_tokens: int) -> float:
    """Return the time that `policy` adds to a micro-step, as a share of one that keeps all on the card."""
    works = {window: measure_work(shape, window, document_tokens) for window in set(shape.windows)}
    extra = total = 0.0
    known: dict[tuple[int, LayerPolicy], float] = {}
    for window, layer in zip(shape.windows, policy.layers, strict=True):
        if (window, layer) not in known:
            known[window, layer] = extra_work(shape, works[window], layer, policy.mlp_chunk_tokens)
        extra += known[window, layer]
        total += works[window].forward + works[window].backward
    return extra / (total + head_work(shape))
