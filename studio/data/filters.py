"""The rules by which a person leaves rows out: one entry a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.data.conversation import Conversation
from studio.data.row_stats import RowTraits, read_answers, read_words
from studio.data.secrets import KEY_BITS, SECRET_BITS

SECRET_CHOICES = {"keys": KEY_BITS, "all": sum(SECRET_BITS.values())}


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """One rule. It looks at what is known of all rows, or at the words of each."""

    name: str
    """Its key in data.filters; texts data.filter.NAME and data.rule.NAME."""
    value: str
    """What is written for it: `number`, `words` (one search text a line), or `choice` (of SECRET_CHOICES)."""
    keeps_traits: Callable[[RowTraits, int], np.ndarray] | None = None
    """Returns bool [rows]: which rows stay."""
    keeps_row: Callable[[Conversation, tuple[str, ...]], bool] | None = None

    @property
    def label(self) -> Text:
        """What it does, in a few words."""
        return text(f"data.filter.{self.name}")


def _holds(words: str, wanted: Iterable[str]) -> bool:
    words = words.casefold()
    return any(one in words for one in wanted)


FILTERS: tuple[Filter, ...] = (
    Filter(name="min_characters", value="number", keeps_traits=lambda rows, n: rows.characters >= n),
    Filter(name="max_characters", value="number", keeps_traits=lambda rows, n: rows.characters <= n),
    Filter(
        name="min_answer_characters", value="number", keeps_traits=lambda rows, n: rows.answer_characters >= n
    ),
    Filter(
        name="max_answer_characters", value="number", keeps_traits=lambda rows, n: rows.answer_characters <= n
    ),
    Filter(name="min_turns", value="number", keeps_traits=lambda rows, n: rows.turns >= n),
    Filter(name="max_turns", value="number", keeps_traits=lambda rows, n: rows.turns <= n),
    Filter(
        name="without_secrets",
        value="choice",
        keeps_traits=lambda rows, bits: (rows.flags & np.uint32(bits)) == 0,
    ),
    Filter(name="contains", value="words", keeps_row=lambda row, wanted: _holds(read_words(row), wanted)),
    Filter(
        name="not_contains", value="words", keeps_row=lambda row, wanted: not _holds(read_words(row), wanted)
    ),
    Filter(
        name="answer_not_contains",
        value="words",
        keeps_row=lambda row, wanted: not any(_holds(answer, wanted) for answer in read_answers(row)),
    ),
)
"""In the order in which they are applied; a row is counted under the first rule that leaves it out."""


def read_filters(filters: Mapping[str, str]) -> tuple[tuple[Filter, int | tuple[str, ...]], ...]:
    """Return the rules of data.filters with their values, in the order of FILTERS.

    Raises StudioError for a rule that is not known or a value that is none.
    """
    names = [rule.name for rule in FILTERS]
    for name in filters:
        if name not in names:
            raise StudioError(
                text("data.filter.unknown", name=name),
                text("data.filter.unknown.why"),
                text("data.filter.unknown.fix", names=", ".join(names)),
            )
    return tuple(
        (rule, _read_value(rule, str(filters[rule.name]))) for rule in FILTERS if rule.name in filters
    )


def _read_value(rule: Filter, value: str) -> int | tuple[str, ...]:
    value = value.strip()
    if rule.value == "number" and value.isdecimal() and len(value) <= 15:
        return int(value)
    if rule.value == "choice" and value in SECRET_CHOICES:
        return SECRET_CHOICES[value]
    wanted = tuple(line.strip().casefold() for line in value.splitlines() if line.strip())
    if rule.value == "words" and wanted:
        return wanted
    raise StudioError(
        text("data.filter.value", name=rule.name, value=value[:40]),
        text(f"data.filter.value.{rule.value}"),
        text("data.filter.value.fix", name=rule.name),
    )
