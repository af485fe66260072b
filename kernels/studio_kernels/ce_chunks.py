"""In what portions the loss head works, and the memory that takes: for itself and, without torch, for the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_ROWS = 4096
"""Beyond it a block gains nothing: each word of W is read for 4,096 rows, far above any GPU's operations per byte."""
LOGITS_PER_PROCESSOR = 2**19
"""264 MiB of float32 logits on an H200 (132 multiprocessors), 80 MiB on a T4 (40)."""

LEAST_ROWS = 256
"""Of a tile of whole rows: 256 MiB of logits for 262,144 words."""


def portions(rows: int, hidden: int, vocabulary: int, processors: int) -> tuple[int, int]:
    """The rows R and the words C of a tile, for a GPU of that many multiprocessors.

    R: the second product (R, H) fills the GPU 4 times with 128 x 256 tiles, so that its last, partly filled round costs
    little; at most MOST_ROWS. C: as many words as LOGITS_PER_PROCESSOR allows, so few rows take few tiles, each 3
    launches. Both are then evened out, R to a multiple of 128 (or all rows), C to one of 256.
    """
    fill = 128 * max(1, 4 * processors // -(-hidden // 256))
    blocks = -(-rows // min(MOST_ROWS, fill))
    block_rows = min(rows, _round_up(-(-rows // max(1, blocks)), 128))
    tiles = -(-vocabulary // max(1024, processors * LOGITS_PER_PROCESSOR // max(1, block_rows)))
    return block_rows, _round_up(-(-vocabulary // tiles), 256)


def trained_rows(count: int, rows: int, columns: int, vocabulary: int) -> tuple[int, int]:
    """The rows R and the words C >= V of a tile of whole rows, with about as many bytes as `rows` x `columns`.

    Beside the tile stand the logits' gradients in 16 bits, so a logit takes 6 bytes for 4.
    What turns a row's exponentials into gradients is known when all its words are done. At least LEAST_ROWS: each
    block reads and writes dW once, 8 bytes a word and column, for 2 R operations there.
    """
    whole = _round_up(vocabulary, 256)
    most = max(LEAST_ROWS, rows * columns * 4 // 6 // whole // 16 * 16)
    blocks = -(-count // most)
    return min(count, _round_up(-(-count // max(1, blocks)), 16)), whole


def workspace_bytes(
    rows: int, columns: int, hidden: int, dtype: torch.dtype, *, fused: bool = True, softcap: bool = False
) -> int:
    """Bytes that a call with blocks of `rows` and tiles of `columns` holds beside x, W and dx while it runs.

    The float32 tile and the sum A. Without Triton (fused=False) also what stands beside the tile, the shares in `dtype`
    and with a softcap its slopes, or later the labels' words.
    """
    wide, narrow = 4, dtype.itemsize
    held = wide * rows * (columns + hidden) + 128 * rows
    if fused:
        return held
    beside_tile = (narrow if narrow != wide else 0) + (wide if softcap else 0)
    return held + rows * max(beside_tile * columns, narrow * hidden)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
