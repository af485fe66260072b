"""Which writing the answer's letters are of: that of the question, or one by name."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from studio.core.knob import knob
from studio.engine.rewards.reward import Answered, RowReward

SCRIPTS: dict[str, tuple[str, ...]] = {
    "latin": ("LATIN",),
    "chinese": ("CJK",),
    "japanese": ("CJK", "HIRAGANA", "KATAKANA"),
    "korean": ("HANGUL",),
    "cyrillic": ("CYRILLIC",),
    "arabic": ("ARABIC",),
    "hebrew": ("HEBREW",),
    "greek": ("GREEK",),
    "devanagari": ("DEVANAGARI",),
    "thai": ("THAI",),
}
"""Writing -> first words of its letters' names in Unicode."""
QUESTION = "question"


@dataclass(frozen=True, kw_only=True, slots=True)
class Language(RowReward):
    """The share of letters in the wanted writing; an answer without letters says nothing."""

    name: ClassVar[str] = "language"

    script: str = knob(QUESTION, choices=(QUESTION, *SCRIPTS))

    def judge(self, answered: Answered) -> float | None:
        """See RowReward."""
        wanted = SCRIPTS.get(self.script) or find_script(
            str(answered.prompt[-1].get("content", "")) if answered.prompt else ""
        )
        letters = count_scripts(answered.answer)
        if wanted is None or not letters:
            return None
        return sum(letters[name] for name in wanted) / letters.total()


def find_script(words: str) -> tuple[str, ...] | None:
    """Return the names of the writing that most letters of `words` are of; None without letters.

    Japanese is known by its kana: one sign of them in ten is enough, since Chinese has none.
    """
    letters = count_scripts(words)
    if not letters:
        return None
    if letters["HIRAGANA"] + letters["KATAKANA"] >= 0.1 * letters.total():
        return SCRIPTS["japanese"]
    first = letters.most_common(1)[0][0]
    return next((names for names in SCRIPTS.values() if first in names), (first,))


def count_scripts(words: str) -> Counter[str]:
    """Return how many letters of `words` are of each writing."""
    return Counter(name_script(sign) for sign in words if sign.isalpha())


@lru_cache(maxsize=4096)
def name_script(letter: str) -> str:
    """Return the first word of a letter's name in Unicode."""
    return unicodedata.name(letter, "UNNAMED").split()[0].split("-")[0]
