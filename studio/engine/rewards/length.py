"""How long the answer is, in tokens: near a length, at most so long, or DAPO's soft limit.

near: max(0, 1 - |n - L| / L)                    at_most: 1 up to L, then falling to 0 at 2 L
overlong: 0 up to L - C, falling to -1 at L, -1 beyond (Yu et al., 2025, arXiv:2503.14476, eq. 13)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.engine.rewards.reward import Answered, RowReward

USUAL_CACHE = 0.2
"""C as a share of L where nobody set it: DAPO's 4,096 of 20,480."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Length(RowReward):
    """By one of three shapes."""

    name: ClassVar[str] = "length"

    shape: str = knob("at_most", choices=("at_most", "near", "overlong"))
    tokens: int = knob(256, unit="tokens", minimum=1, maximum=1_048_576)
    cache_tokens: int = knob(0, unit="tokens", minimum=0, maximum=1_048_576)

    def judge(self, answered: Answered) -> float:
        """See RowReward."""
        found, wanted = answered.length_tokens, self.tokens
        if self.shape == "near":
            return max(0.0, 1 - abs(found - wanted) / wanted)
        if self.shape == "at_most":
            return min(1.0, max(0.0, 2 - found / wanted))
        cache = min(self.cache_tokens or max(1, round(USUAL_CACHE * wanted)), wanted)
        return max(-1.0, min(0.0, (wanted - cache - found) / cache))
