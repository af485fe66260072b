"""ROUGE-L: the longest common subsequence of words, as F of precision and recall (Lin, 2004).

Equal to rouge-score's rougeL without stemming wherever both texts are ASCII. That package drops every other letter;
here words of other scripts count, a word each, and a sign each in scripts that write no spaces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings

WORD = re.compile(r"[a-z0-9]+")
SIGN = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]"
ANY_WORD = re.compile(rf"{SIGN}|(?:(?!{SIGN})[^\W_])+")
PROSE_WORDS = 8
"""Expected answers of more words in the mean are prose, which is seldom met word by word."""


def split_words(words: str) -> list[str]:
    """Return the words that are compared."""
    folded = words.lower()
    return (WORD if folded.isascii() else ANY_WORD).findall(folded)


def measure_common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, row by row in the bits of one number (Hyyrö, 2004)."""
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    full = (1 << len(one)) - 1
    row = full
    for word in other:
        met = row & places.get(word, 0)
        row = ((row + met) | (row - met)) & full
    return len(one) - row.bit_count()


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    right, found = split_words(row.expected), split_words(row.given)
    common = measure_common(right, found) if right and found else 0
    return (2 * common / (len(right) + len(found)) if common else 0.0), 1.0


def is_prose(rows: Sequence[AnsweredRow]) -> bool:
    """Return whether expected answers are sentences rather than values or JSON."""
    looked = [row for row in rows[:200] if not row.expected.lstrip().startswith(("{", "["))]
    words = sum(len(split_words(row.expected)) for row in looked)
    return bool(looked) and words > PROSE_WORDS * len(looked)


METRIC = AnswerMetric(name="rouge_l", count=_count, decides=False, suits=is_prose)
