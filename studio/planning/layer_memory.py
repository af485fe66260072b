"""What a layer of the studio's own decoder keeps, and what it needs while it is computed: plain arithmetic on shapes.

T: tokens of a micro-batch   C: tokens of one portion of the MLP   H: hidden width   I: width inside the MLP
tail: the columns in which a group of linears carries its adapters; those of attention stand in attention_shape.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from studio_kernels.ce_chunks import LEAST_ROWS, LOGITS_PER_PROCESSOR, MOST_ROWS
from studio_kernels.op import PORTION_BYTES, SCORES_BYTES

from studio.core.memory_policy import KEEP_LEVELS, LayerPolicy, MemoryPolicy
from studio.models.decoder.structure import CUT_ROWS, INPUT_GROUPS, LAUREL_GROUPS, MADE_ROWS
from studio.planning.attention_shape import AttentionShape
from studio.planning.decoder_shape import DecoderShape

HEAD_LOGITS = 132 * LOGITS_PER_PROCESSOR
"""The loss head's own choice of a portion on an H200, fewer elsewhere."""
SCORE_BLOCKS = 3
"""Of SCORES_BYTES each, where attention is composed of matrix products."""
MAKING_BYTES = 28
"""Of one number of a layer's input while it is made, and made again under autograd: its norm is taken in fp32."""
JOINING_BYTES = 28
"""Of one number of a row of several streams, while they are brought together and apart again under autograd."""
CUT_BYTES = 5
"""Of one number of a gate while it is cut, and 8 more where it is not in fp32 before."""
LIBRARY_BYTES = 32 * 2**20
"""The matrix library's own workspace on Hopper; 8 MiB elsewhere."""


def kept_bytes(shape: DecoderShape, keep: str) -> int:
    """Return what a layer at the level `keep` holds until its backward pass, bytes a token (SavedLayer)."""
    e, groups, routed = shape.element_bytes, shape.groups, shape.routed
    levels = (
        # The layer's input; the MLP's result where a norm or a length needs it; which experts a token passes.
        e * shape.hidden * (shape.streams + shape.keeps_branches + shape.paired)
        + (routed.kept_bytes(e) if routed else 0),
        _attention_state(shape)
        + e * shape.hidden,  # and the residual stream after it, or what a norm makes it from
        e * (shape.mean_columns("projected") + shape.projection_tail),
        e * (groups["gate_up"].outputs + 2 * groups["gate_up"].tail + groups["down"].tail)
        + (routed.opened_bytes(e) + routed.tail_bytes(e) if routed else 0),
    )
    if shape.record:  # the record alone, and that at the highest level (blocks/foreign_mixer.py)
        levels = (levels[0], e * shape.hidden, 0, levels[3] + shape.record.mean_bytes)
    return sum(levels[: KEEP_LEVELS.index(keep) + 1])


def moved_bytes(shape: DecoderShape, keep: str) -> int:
    """Return what of kept_bytes() waits in the machine's own memory when a layer is offloaded (SavedLayer.move_out).

    All but the adapters' narrow parts and the log-sums, which stay on the card.
    """
    e, groups, routed = shape.element_bytes, shape.groups, shape.routed
    level = KEEP_LEVELS.index(keep)
    stays = (
        routed.kept_bytes(e) if routed else 0,
        e * groups["output"].tail + _log_sums(shape),
        e * shape.projection_tail,
        e * (groups["gate_up"].tail + groups["down"].tail) + (routed.tail_bytes(e) if routed else 0),
    )
    if shape.record:
        stays = (0, 0, 0, stays[3] + shape.record.mean_bytes)
    return kept_bytes(shape, keep) - sum(stays[: level + 1])


def _attention_state(shape: DecoderShape) -> int:
    """Attention's result and its adapter's part, and the log-sums in fp32, bytes a token of the mean layer."""
    e, tail = shape.element_bytes, shape.groups["output"].tail
    return e * (shape.mean_columns("result") + tail) + _log_sums(shape)


def _log_sums(shape: DecoderShape) -> int:
    """Log-sums in fp32, bytes a token of the mean layer: of all rows that attention sees."""
    return 4 * shape.mean_columns("query_heads") * max(1, shape.written_out)


def phase_bytes(shape: DecoderShape, keep: str, tokens: int, mlp_chunk_tokens: int = 0) -> dict[str, int]:
    """Return what the two phases of a layer's backward pass need beside what is kept, `mlp` and `attention`, in bytes.

    What the level `keep` does not hold is computed again and counts here. By the time of its attention a layer has
    given back what its MLP had kept, which is subtracted (models/decoder/blocks are the list of it all). Of layers of
    several kinds the one that needs most.
    """
    kinds = [_phases_of(shape, one, keep, tokens, mlp_chunk_tokens) for one in shape.attentions]
    return {phase: max(one[phase] for one in kinds) for phase in kinds[0]}


def _phases_of(
    shape: DecoderShape, attention: AttentionShape, keep: str, tokens: int, mlp_chunk_tokens: int
) -> dict[str, int]:
    """Return phase_bytes() of a layer with this attention."""
    e, groups, hidden = shape.element_bytes, shape.groups, shape.hidden
    width = max(shape.mlp_width, shape.widest_mlp)
    level, at_once = KEEP_LEVELS.index(keep), min(tokens, mlp_chunk_tokens or tokens)
    # The residual stream's gradients after and before the MLP, wide enough for the adapters' parts.
    above, below = e * (hidden + groups["down"].tail), e * (hidden + groups["output"].tail)
    if shape.record:  # made again before the MLP where its result is needed, else after it
        state, qkv, result = shape.record.held_bytes * (level < 1), 0, 0
        gradients = shape.record.backward_bytes + shape.record.held_bytes * (0 < level < 3)
    else:
        state = (attention.state_bytes(e) + e * groups["output"].tail) * (level < 1)
        qkv = e * (attention.projected + shape.projection_tail) * (level < 2)
        result, gradients = attention.result, attention.gradient_bytes(e)
        # Result, query, key and value written out, and their gradients, beside those of the stream's own rows.
        gradients += shape.written_out * (gradients + e * attention.gradients)
    middle = e * hidden * ((level < 1) + shape.keeps_branches)
    middle += (
        4 * e * hidden * shape.paired
    )  # their sum, its gradient, the MLP's, and what comes back by the router
    # The product takes its gradient's place, gate's and up's gradients theirs; then the norm and its gradient.
    # Composed of PyTorch's operations the gate takes three more of its width, and dropout 12 bytes an element to draw.
    dropped = shape.dropout * (1 + 12 // e * shape.composed)
    product = width * (1 + max(dropped, 3 * shape.composed)) + groups["down"].tail
    norm = hidden * (2 + dropped) + groups["gate_up"].tail
    if shape.fp8:  # 8-bit products are written to a place of their own first
        product = max(product, 2 * width + hidden)
    portion = max(product, norm) + (hidden + groups["down"].tail) * (
        shape.branch_norms or "mlp" in shape.scaled_branches
    )
    if level < 3:
        portion += 2 * width + 2 * groups["gate_up"].tail
    several = shape.streams > 1
    if several:  # the gate that is cut beside its gradient
        portion += width
    # The gradient of all streams, and the rows that are had again of them.
    streams = e * hidden * several * (shape.streams + 1)
    summed = PORTION_BYTES * shape.magnitudes
    if shape.magnitudes:  # gate and up beside their gradients
        portion += 2 * width + groups["gate_up"].tail
    given_back = e * hidden * ((level > 0) + shape.keeps_branches + shape.paired)
    mlp_kept = level == 3 and not shape.one_block
    if mlp_kept:
        given_back += e * (2 * width + groups["gate_up"].tail)
    experts = 0
    if shape.routed is not None:
        opened = shape.routed.opened_bytes(e)
        experts = shape.routed.backward_bytes(e) + (opened if level < 3 else 0)
        given_back += opened if mlp_kept else 0
    mixing = tokens * (below + state + qkv + gradients + streams - given_back)
    # A branch that is multiplied has a gradient of its own, wide for its product, beside the gradient of attention.
    scaled = tokens * (2 * below + state + qkv + e * result - given_back)
    # The layer's own input: the rows that it reads, what it adds to them and that one's gradient, gate, h and theirs.
    own = (
        3 * hidden + 6 * shape.input_width + sum(groups[name].tail for name in INPUT_GROUPS if name in groups)
    )
    cut = CUT_BYTES + 8 * (e < 4) - 3 * e * shape.composed  # beside what a composed gate needs later
    cutting = several * min(at_once, CUT_ROWS) * width * max(0, cut)
    own += several * (2 * hidden + sum(groups[name].tail for name in LAUREL_GROUPS if name in groups))
    # What comes back to all streams, in two places, beside their gradient; by then the layer has let go of the rest.
    apart = e * hidden * (3 * shape.streams + 2) - (kept_bytes(shape, keep) - e * hidden * shape.streams)
    return {
        "mlp": tokens * (above + below + state + qkv + middle + experts + streams)
        + at_once * e * portion
        + summed
        + cutting,
        "attention": max(0, mixing) + summed + SCORE_BLOCKS * SCORES_BYTES * shape.composed_attention,
        "join": max(0, scaled) * ("attention" in shape.scaled_branches),
    } | (
        (
            {"layer_input": tokens * (above + state + qkv + middle + 2 * streams + e * own)}
            if shape.input_width
            else {}
        )
        | ({"streams": max(0, tokens * apart)} if several else {})
    )


def forward_bytes(shape: DecoderShape, keep: str, tokens: int, mlp_chunk_tokens: int = 0) -> int:
    """Return what a layer's forward pass needs beside what is kept: its result, and a portion of its MLP."""
    e, groups = shape.element_bytes, shape.groups
    level, at_once = KEEP_LEVELS.index(keep), min(tokens, mlp_chunk_tokens or tokens)
    width = max(shape.mlp_width, shape.widest_mlp)
    portion = width * (1 + shape.composed) + groups["down"].tail
    if level < 3:
        portion += 2 * width + groups["gate_up"].tail
    experts = 0
    if shape.routed is not None:
        experts = shape.routed.forward_bytes(e) + (shape.routed.opened_bytes(e) if level < 3 else 0)
    needed = e * (tokens * shape.hidden * (1 + (level < 1)) + at_once * portion) + tokens * experts
    if shape.streams > 1:
        needed += e * tokens * shape.hidden * 2 * shape.streams
        needed += min(at_once, CUT_ROWS) * width * (CUT_BYTES + 8 * (e < 4))
    if shape.record is None:
        return needed
    mixing = shape.record.forward_bytes + shape.record.held_bytes * (level < 3)
    return max(needed, tokens * mixing)


def head_bytes(shape: DecoderShape, tokens: int, head_rows: int = 0, head_columns: int = 0) -> int:
    """Return what the loss head needs when every token is trained: a tile of logits and the gradients' sum in fp32.

    Beside them stand the decoder's result, its picked rows, those normalised, and their gradient.
    """
    e, hidden = shape.element_bytes, shape.hidden
    rows = min(tokens, head_rows or MOST_ROWS)
    columns = head_columns
    if not columns:
        tiles = -(-shape.vocabulary // max(1024, HEAD_LOGITS // max(1, rows)))
        columns = -(-shape.vocabulary // tiles)
    if shape.trains_head:  # a row's words all at once: the output embedding's gradient needs their sum first
        whole = -(-shape.vocabulary // 256) * 256
        rows = min(tokens, max(LEAST_ROWS, rows * columns * 4 // 6 // whole))
        columns = whole
    tile = rows * min(columns, shape.vocabulary)
    narrow = e if e < 4 else 0
    # The logits' gradients beside the tile.
    beside = tile * narrow if shape.trains_head else 0
    if shape.composed:
        # The exponentials beside the tile, slopes where logits are capped, and the labels' words.
        beside = tile * (narrow + 4 * shape.composed_attention) + e * rows * hidden
    return 4 * (tile + rows * hidden) + beside + 4 * e * tokens * hidden


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes on the card for one layer of one policy: until its backward pass, while it waits there, and meanwhile."""

    held: int
    moved: int
    """Copied out and back; 0 for a layer that is not offloaded."""
    needed: int
    """In its backward pass, beside what it holds."""
    ahead: int
    """In its forward pass, likewise."""


def size_layer(shape: DecoderShape, tokens: int, layer: LayerPolicy, mlp_chunk_tokens: int) -> LayerSizes:
    """Return the LayerSizes of any layer that follows `layer`."""
    moved = moved_bytes(shape, layer.keep) if layer.offload else 0
    return LayerSizes(
        tokens * (kept_bytes(shape, layer.keep) - moved),
        tokens * moved,
        max(phase_bytes(shape, layer.keep, tokens, mlp_chunk_tokens).values()),
        forward_bytes(shape, layer.keep, tokens, mlp_chunk_tokens),
    )


def peak_of_runs(runs: Sequence[tuple[LayerSizes, int]]) -> tuple[int, int, int]:
    """Return what layers keep and need at the moment of their peak, and what all of them keep before the first goes.

    `runs`: neighbouring layers of equal sizes and their number, from the first. In the backward pass layers are done
    from the last to the first, and each gives back what it kept: while layer l is computed, what layers 0 to l keep is
    there, and no more. Of offloaded layers two are on the card at a time: the one that is computed, and the next one
    below it, on its way back; in the forward pass the one before it, on its way out.
    """
    highest = max((place for place, (sizes, _) in enumerate(runs) if sizes.moved), default=-1)
    kept = below = leaving = 0
    peak = (0, 0)
    for place, (sizes, count) in enumerate(runs):
        back = below if place <= highest else 0
        here = kept + sizes.held + sizes.moved
        peak = max(peak, (here + back, sizes.needed), (here + leaving, sizes.ahead), key=sum)
        kept += count * sizes.held
        below, leaving = sizes.moved or below, sizes.moved
        if count > 1:
            back = below if place <= highest else 0
            here = kept + sizes.moved
            peak = max(peak, (here + back, sizes.needed), (here + leaving, sizes.ahead), key=sum)
    return *peak, kept


def tables_bytes(shape: DecoderShape, tokens: int) -> int:
    """Return the rotary tables in fp32, made for a power of two of places, and ids, places and targets."""
    return 8 * shape.head_dim * (1 << (tokens - 1).bit_length()) + 32 * tokens


def peak_of_layers(shape: DecoderShape, tokens: int, policy: MemoryPolicy) -> tuple[int, int]:
    """Return what is kept and what is needed besides, in bytes, at the moment at which both together are most.

    That is in a layer's forward or backward pass (peak_of_runs), or in the loss head, when all is still there.
    """
    sizes = {layer: size_layer(shape, tokens, layer, policy.mlp_chunk_tokens) for layer in set(policy.layers)}
    runs = [(sizes[layer], len(list(group))) for layer, group in groupby(policy.layers)]
    kept, needed, whole = peak_of_runs(runs)
    head = head_bytes(shape, tokens, policy.head_rows, policy.head_columns)
    several = (shape.streams > 1) * shape.streams * shape.hidden
    head += (
        tokens * shape.element_bytes * several
    )  # the last layer's, from which those that are normalised are made
    joining = (2 * tokens * shape.element_bytes + min(tokens, MADE_ROWS) * JOINING_BYTES) * several
    kept, needed = max((kept, needed), (whole, head), (whole, joining), key=sum)
    shared = shared_bytes(shape, tokens)
    making = min(tokens, MADE_ROWS) * shape.layers * shape.input_width * MAKING_BYTES
    return kept + tables_bytes(shape, tokens) + shared, max(needed, making)


def shared_bytes(shape: DecoderShape, tokens: int) -> int:
    """Return what layers read beside the stream, their inputs and what they borrow, with the gradients of both."""
    inputs = shape.layers * shape.input_width
    return tokens * shape.element_bytes * (inputs * (1 + shape.hears_inputs) + 2 * shape.lent)
