"""How many fields of a JSON answer are those of the expected one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from studio.core.json_file import parse_json
from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings, most

FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.S | re.I)
Path = tuple[str | int, ...]


class _Nothing:
    """Stands where no JSON was."""


NOTHING = _Nothing()


def read_object(words: str) -> Any:
    """Return the JSON that an answer is, also inside a code fence; NOTHING where it is none."""
    fenced = FENCED.search(words)
    for part in (words, fenced[1] if fenced else None):
        if part is not None:
            try:
                return parse_json(part.strip())
            except (ValueError, RecursionError):
                continue
    return NOTHING


def list_fields(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every value that is neither object nor list with its path; of those the empty ones themselves."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from list_fields(inner, (*path, name))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from list_fields(inner, (*path, place))
    else:
        yield path, value


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON: 1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _count(row: AnsweredRow, settings: MetricSettings) -> Counts | None:
    """Fields that both have with the same value, as a share of all that either has; 1 where both are equal."""
    wanted, found = read_object(row.expected), read_object(row.given)
    if wanted is NOTHING or not isinstance(wanted, (dict, list)):
        return None
    if found is NOTHING:
        return 0.0, 1.0
    right, other = dict(list_fields(wanted)), dict(list_fields(found))
    same = sum(path in other and is_equal(value, other[path]) for path, value in right.items())
    return same / len(right.keys() | other.keys()), 1.0


METRIC = AnswerMetric(
    name="json",
    count=_count,
    suits=lambda rows: most(rows, lambda row: isinstance(read_object(row.expected), dict)),
)
