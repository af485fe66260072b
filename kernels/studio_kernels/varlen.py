"""What attention needs to know besides its tensors: how tokens split into documents, and how heads look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from studio_kernels.shared_beginnings import SharedBeginnings


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Documents:
    """How T tokens split into documents."""

    lengths: tuple[int, ...]
    """Tokens of each document, none of them empty."""
    starts: Tensor
    """(D + 1,) int32 on the device: where each document starts, and T."""
    positions: Tensor
    """(T,) int32 on the device: each token's place in its document, from 0."""
    uniform: int | None
    """The length that all documents have, or None."""
    longest: int
    """Tokens of the longest document."""
    shared: SharedBeginnings | None = None
    """Where beginnings that documents share stand in the stream once: all else here is of whole documents."""
    beside: Documents | None = None
    """Documents that may begin with rows of these, and go on with rows behind them: their results alone are wanted. It
    has `shared`, whose rows are all the stream's and whose own are those behind."""

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str) -> Documents:
        """Documents of these lengths (empty ones left out); made on the CPU and copied once, without waiting.

        Raises:
            ValueError: there are no tokens.
        """
        kept = tuple(int(length) for length in lengths if length)
        if not kept:
            raise ValueError("There are no tokens.")
        sizes = torch.tensor(kept, dtype=torch.int32)
        starts = torch.zeros(len(kept) + 1, dtype=torch.int32)
        torch.cumsum(sizes, 0, out=starts[1:])
        tokens = int(starts[-1])
        positions = torch.arange(tokens, dtype=torch.int32) - torch.repeat_interleave(starts[:-1], sizes)
        placed = torch.cat((starts, positions)).to(device, non_blocking=True)
        return cls(
            lengths=kept,
            starts=placed[: len(kept) + 1],
            # A copy: its address is a multiple of 16 whatever the number of documents, as kernels are compiled for.
            positions=placed[len(kept) + 1 :].clone(),
            uniform=kept[0] if min(kept) == max(kept) else None,
            longest=max(kept),
        )

    @property
    def longest_of_all(self) -> int:
        """Tokens of the longest document of these and those beside."""
        return self.longest if self.beside is None else max(self.longest, self.beside.longest)

    @property
    def row_positions(self) -> Tensor:
        """(T,) int32: the place in its document of each row of the stream, of those beside, too."""
        own = self.positions if self.shared is None else self.positions.index_select(0, self.shared.own)
        return own if self.beside is None else torch.cat((own, self.beside.row_positions))

    @property
    def rows(self) -> int:
        """How many rows of the stream these documents have."""
        return self.tokens if self.shared is None else self.shared.own.shape[0]

    @property
    def tokens(self) -> int:
        """T."""
        return self.positions.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Heads:
    """What stays the same from call to call."""

    head_dim: int
    query_heads: int
    key_heads: int
    scale: float
    window: int = 0
    """Tokens that a token sees, itself included; 0: all before it."""
    softcap: float = 0.0
    """Bound of the scores; 0: none."""

    sunk: bool = False
    """Whether each query head has a sink, so that the shares of its keys do not add up to 1."""

    def window_of(self, documents: Documents) -> int:
        """The window, or 0 where no document is long enough to feel it."""
        return self.window if self.window < documents.longest else 0
