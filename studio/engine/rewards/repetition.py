"""How much of the answer is said again: minus the share of n-grams that stood before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.engine.rewards.reward import Answered, RowReward

WORD = re.compile(r"[぀-ヿ㐀-鿿가-힯]|[^\W぀-ヿ㐀-鿿가-힯]+")
"""A word; in writings without blanks, a sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition(RowReward):
    """0 where nothing is repeated, down to -1."""

    name: ClassVar[str] = "repetition"

    words: int = knob(4, minimum=1, maximum=100)

    def judge(self, answered: Answered) -> float:
        """See RowReward."""
        said = WORD.findall(answered.answer.casefold())
        grams = [tuple(said[i : i + self.words]) for i in range(len(said) - self.words + 1)]
        return len(set(grams)) / len(grams) - 1 if grams else 0.0
