"""The answer is the expected one once both are normalised: case, width of letters, white space, signs at the ends."""

from __future__ import annotations

import unicodedata

from studio.core.metrics.metric import AnswerMetric, mark

EDGES = " \t\n.,;:!?\"'`*。，；：！？“”‘’"


def normalise(words: str) -> str:
    """Return `words` in the form NFKC, case folded, white space single, no punctuation at the ends."""
    folded = " ".join(unicodedata.normalize("NFKC", words).casefold().split())
    return folded.strip(EDGES)


def is_alike(given: str, wanted: str) -> bool:
    """Return whether both are the same once normalised."""
    return normalise(given) == normalise(wanted)


METRIC = AnswerMetric(
    name="normalised",
    count=lambda row, settings: mark(is_alike(row.given, row.expected)),
    suits=lambda rows: True,
)
