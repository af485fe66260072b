"""Rows of documents in chunks, for what runs from chunk to chunk with a state (gated_delta.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

CHUNK = 64
"""Rows of a chunk: work within one grows with them, and work from one to the next with their number."""


class Chunks:
    """How rows of documents fall into chunks; none holds rows of two."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str) -> None:
        """`lengths`: of the documents, none of them empty. Made on the CPU and copied once, without waiting.

        Raises:
            ValueError: there are no rows.
        """
        if not lengths:
            raise ValueError("There are no rows.")
        self.lengths = tuple(int(length) for length in lengths)
        self.counts = tuple(-(-length // CHUNK) for length in self.lengths)
        """Chunks of each document."""
        begins, starts = [0, *accumulate(self.lengths)], [0, *accumulate(self.counts)]
        table = [
            (begin + CHUNK * place, min(begin + CHUNK * (place + 1), end))
            for begin, end, count in zip(begins, begins[1:], self.counts, strict=False)
            for place in range(count)
        ]
        flat = torch.tensor([number for pair in table for number in pair] + starts, dtype=torch.int32)
        placed = flat.to(device, non_blocking=True)
        self.table = placed[: 2 * len(table)].view(-1, 2)
        """(chunks, 2) int32: a chunk's first row, and where its rows end."""
        # A copy: its address is a multiple of 16 whatever the number of chunks, as kernels are compiled for.
        self.starts = placed[2 * len(table) :].clone()
        """(documents + 1,) int32: the first chunk of each."""

    def __len__(self) -> int:
        return self.table.shape[0]

    @cached_property
    def positions(self) -> Tensor:
        """(T,) int32: each row's place in its document, from 0."""
        sizes = torch.tensor(self.lengths)
        firsts = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return (torch.arange(len(firsts)) - firsts).int().to(self.table.device, non_blocking=True)

    @cached_property
    def places(self) -> Tensor:
        """(T,) int64: the place of each row in all chunks' rows."""
        table = self.table.long()
        lengths = table[:, 1] - table[:, 0]
        rows = torch.arange(sum(self.lengths), device=table.device)
        firsts = CHUNK * torch.arange(len(self), device=table.device) - table[:, 0]
        return rows + firsts.repeat_interleave(lengths, output_size=len(rows))

    @cached_property
    def steps(self) -> list[Tensor]:
        """For each place in a document, the chunks that have it, longest documents first."""
        order = sorted(range(len(self.counts)), key=lambda place: -self.counts[place])
        starts = [0, *accumulate(self.counts)]
        found = [
            [starts[one] + place for one in order if self.counts[one] > place]
            for place in range(max(self.counts))
        ]
        device = self.table.device
        return [torch.tensor(chunks).to(device, non_blocking=True) for chunks in found]

    def cut(self, rows: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        """Return (chunks, heads, members, 64, ...) of (T, heads x members, ...), 0 behind a chunk's rows."""
        padded = rows.new_zeros(len(self) * CHUNK, *rows.shape[1:], dtype=dtype)
        padded.index_copy_(0, self.places, rows.to(dtype))
        return padded.view(len(self), CHUNK, heads, -1, *rows.shape[2:]).movedim(1, 3)

    def join(self, chunked: Tensor, dtype: torch.dtype) -> Tensor:
        """Return (T, heads x members, ...) of what cut() gives."""
        rows = chunked.movedim(3, 1).flatten(2, 3).flatten(0, 1)
        return rows.index_select(0, self.places).to(dtype)
