"""The token rows that every stack of a case trains on: random, the same in each process, full or of real lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.cases import Case

MEDIAN_TOKENS, SPREAD, SHORTEST, LONGEST = 350, 1.0, 16, 2048
"""Documents' lengths are log-normal, as those of chats are; `SPREAD` is the deviation of their logarithm."""
FIRST_ID, END_ID = 3, 128_000
"""Below are special tokens; above too, in Llama 3."""
POOL = 512
"""Documents that rows are packed from."""
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on its device."""

    ids: torch.Tensor
    """(B, S) int64"""
    lengths: tuple[tuple[int, ...], ...]
    """Tokens of each document, row by row; what is left of a row is padding."""

    @property
    def tokens(self) -> int:
        """Tokens that are no padding."""
        return sum(map(sum, self.lengths))

    @property
    def full(self) -> bool:
        """Whether every row is one document without padding."""
        return all(row == (self.ids.shape[1],) for row in self.lengths)

    def mask(self) -> torch.Tensor:
        """Return (B, S) int64: 1 where a token is no padding."""
        mask = torch.zeros(self.ids.shape, dtype=torch.int64)
        for row, lengths in enumerate(self.lengths):
            mask[row, : sum(lengths)] = 1
        return mask.to(self.ids.device)

    def labels(self) -> torch.Tensor:
        """Return (B, S) int64: the ids, with IGNORED for padding and for each document's first token."""
        labels = torch.full(self.ids.shape, IGNORED, dtype=torch.int64)
        ids = self.ids.cpu()
        for row, lengths in enumerate(self.lengths):
            start = 0
            for length in lengths:
                labels[row, start + 1 : start + length] = ids[row, start + 1 : start + length]
                start += length
        return labels.to(self.ids.device)


def draw_batches(case: Case, vocabulary: int, device: torch.device, seed: int = 0) -> Iterator[Batch]:
    """Yield the micro-batches of a case without end; the ids come from a CPU generator, so all processes agree."""
    generator = torch.Generator().manual_seed(seed)
    rows = draw_rows(case, seed)
    while True:
        lengths = tuple(next(rows) for _ in range(case.batch))
        # Rows are padded to the longest of them, packed ones and full ones to the case's length.
        width = max(map(sum, lengths)) if case.lengths == "padded" else case.tokens
        ids = torch.randint(
            FIRST_ID, min(END_ID, vocabulary), (case.batch, width), generator=generator, dtype=torch.int64
        )
        yield Batch(ids.to(device), lengths)


def draw_rows(case: Case, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of the documents of one row after another, without end."""
    while True:
        if case.lengths == "full":
            yield (case.tokens,)
            continue
        documents = draw_lengths(POOL, min(LONGEST, case.tokens), seed)
        yield from pack(documents, case.tokens) if case.lengths == "packed" else [(n,) for n in documents]
        seed += 1


def draw_lengths(count: int, longest: int, seed: int) -> list[int]:
    """Return `count` document lengths in tokens: log-normal, cut to SHORTEST and `longest`."""
    draw = random.Random(seed)
    return [
        max(SHORTEST, min(longest, round(draw.lognormvariate(math.log(MEDIAN_TOKENS), SPREAD))))
        for _ in range(count)
    ]


def pack(documents: Sequence[int], tokens: int) -> list[tuple[int, ...]]:
    """Return the documents put into rows of at most `tokens`: each, longest first, where the least room is left.

    The rows are shuffled with a fixed seed, or the first would hold the long documents and the last the short ones.
    """
    rows: list[list[int]] = []
    for length in sorted(documents, reverse=True):
        fitting = [row for row in rows if sum(row) + length <= tokens]
        if fitting:
            max(fitting, key=sum).append(length)
        else:
            rows.append([length])
    random.Random(0).shuffle(rows)
    return [tuple(row) for row in rows]
