"""How long the rows of a run are: what a plan goes by once they have been read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLengths:
    """How long the rows of a data set are, cut as a run cuts them."""

    longest_tokens: int
    mean_tokens: float
    longest_shared_tokens: int = 0
    """The same where what a row's sequences begin with alike stands in it once; 0: not looked at."""
    mean_shared_tokens: float = 0.0
