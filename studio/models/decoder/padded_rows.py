"""Documents of one stream as rows of a batch, for code that knows no other form: nothing can leak between them.

    stream (T, H)  <->  blocks (D, S, H), each of documents that are at least half as long as its longest

What stands behind a document in its row is its last token again: of a causal part no token sees it, and its result is
left out. D documents in a block, S tokens of its longest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from studio_kernels.varlen import Documents
from torch import Tensor

LEAST_FILLED = 0.5
"""A document goes into a row that it fills so far; shorter ones get a block of their own."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some of a stream's documents as (D, S) rows."""

    documents: int
    length: int
    first: Tensor
    """(D,) the stream's row at which each document begins."""
    rows: Tensor | None
    """(D S,) which row of the stream stands where; None: the block is the whole stream."""
    places: Tensor | None
    """(n,) the places, of D S, that are a document's own."""
    own: Tensor | None
    """(n,) and the stream's rows that stand there."""

    def spread(self, stream: Tensor) -> Tensor:
        """Return (D, S, ...) of (T, ...)."""
        taken = stream if self.rows is None else stream.index_select(0, self.rows)
        return taken.unflatten(0, (self.documents, self.length))

    def spread_gradient(self, stream: Tensor) -> Tensor:
        """Return (D, S, ...) of (T, ...), zero behind each document."""
        if self.places is None:
            return stream.unflatten(0, (self.documents, self.length))
        taken = stream.new_zeros(self.documents * self.length, *stream.shape[1:])
        taken.index_copy_(0, self.places, stream.index_select(0, self.own))
        return taken.unflatten(0, (self.documents, self.length))

    def cut(self, block: Tensor, out: Tensor) -> None:
        """Write the documents' own places of (D, S, ...) to their rows of `out` (T, ...)."""
        flat = block.flatten(0, 1)
        if self.places is None:
            out.copy_(flat)
        else:
            out.index_copy_(0, self.own, flat.index_select(0, self.places).to(out.dtype))

    def positions(self, stream: Tensor) -> Tensor:
        """Return (D, S) int64 positions, which go on behind a document, of the stream's (T,)."""
        counted = torch.arange(self.length, device=stream.device)
        return stream.index_select(0, self.first)[:, None].long() + counted


def cut_blocks(documents: Documents) -> tuple[RowBlock, ...]:
    """Return the blocks of a stream, longest documents first; one, in the stream's own order, where all are equal."""
    device, lengths = documents.starts.device, documents.lengths
    if documents.uniform is not None:
        first = documents.starts[:-1].long()
        return (RowBlock(len(lengths), documents.uniform, first, None, None, None),)
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    groups: list[list[int]] = []
    for place in order:
        if not groups or lengths[place] < LEAST_FILLED * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(place)
    starts = torch.tensor((0, *lengths[:-1])).cumsum(0)
    return tuple(_make_block(group, starts, torch.tensor(lengths), device) for group in groups)


def _make_block(group: list[int], starts: Tensor, lengths: Tensor, device: torch.device) -> RowBlock:
    """Made on the CPU and copied once."""
    first, size = starts[group], lengths[group]
    longest = int(size[0])
    counted = torch.arange(longest)
    rows = (first[:, None] + torch.minimum(counted, size[:, None] - 1)).flatten()
    places = (counted < size[:, None]).flatten().nonzero().flatten()
    moved = torch.cat((first, rows, places, rows[places])).to(device, non_blocking=True)
    return RowBlock(len(group), longest, *moved.split((len(first), len(rows), len(places), len(places))))
