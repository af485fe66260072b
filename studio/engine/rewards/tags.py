"""The answer has its parts in tags, each once, closed, in order: <think>...</think><answer>...</answer>."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from studio.core.knob import knob
from studio.engine.rewards.reward import Answered, RowReward


@dataclass(frozen=True, kw_only=True, slots=True)
class Tags(RowReward):
    """1 or 0."""

    name: ClassVar[str] = "tags"

    tags: tuple[str, ...] = knob(("think", "answer"))
    opened_before: bool = knob(False)

    def judge(self, answered: Answered) -> float:
        """See RowReward."""
        said, place = answered.answer, 0
        for number, tag in enumerate(self.tags):
            opening, closing = f"<{tag}>", f"</{tag}>"
            if said.count(closing) != 1:
                return 0.0
            if not (number == 0 and self.opened_before and opening not in said):
                if (
                    said.count(opening) != 1
                    or said[place : said.index(opening)].strip()
                    or said.index(opening) < place
                ):
                    return 0.0
                place = said.index(opening) + len(opening)
            if said.index(closing) < place:
                return 0.0
            place = said.index(closing) + len(closing)
        return float(not said[place:].strip())
