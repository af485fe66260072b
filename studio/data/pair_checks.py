"""What is odd about answers that are compared: pairs that contradict each other, and answers that hardly differ."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from xxhash import xxh3_128_digest

from studio.core.i18n import text
from studio.data.convert import Converted
from studio.data.problems import Problems
from studio.data.row import RowProblem, name_place
from studio.data.row_codes import RowCode
from studio.data.tokens import Tokens

NEAR_SHARE, NEAR_TOKENS = 0.05, 20
"""Of the longer answer, from so many tokens on: what differs between two answers that hardly do."""


def check_answers(converted: Converted, tokens: Tokens, places: np.ndarray, split: str) -> Problems:
    """Return what is noted of the rows at `places` (int64, in `tokens`): CONTRADICTION and NEARLY_SAME."""
    found = Problems()

    def place_of(place: int) -> dict[str, int | str]:
        return converted.place(int(tokens.rows[place]), split)

    for place, earlier in _find_contradictions(tokens, places):
        where = place_of(earlier)
        unit, number = name_place(where["line"], where["row"])
        message = text(f"data.row.contradicts.{unit}", number=number)
        found.add(RowProblem(code=RowCode.CONTRADICTION, message=message, **place_of(place)))
    for place in places.tolist():
        differing = _count_differing(tokens, place)
        if differing:
            message = text("data.row.nearly_same", tokens=differing)
            found.add(RowProblem(code=RowCode.NEARLY_SAME, message=message, **place_of(place)))
    return found


def _find_contradictions(tokens: Tokens, places: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (place, the earlier one): the same pair the other way round, or the same answer with the other label."""
    seen: dict[bytes, int] = {}
    for place in places.tolist():
        sides = [xxh3_128_digest(np.ascontiguousarray(ids)) for ids, _, _ in tokens.sides_of(place)]
        label = tokens.label_of(place)
        own, opposite = sides, sides[::-1]
        if label is not None:
            own, opposite = [sides[0], bytes([label])], [sides[0], bytes([not label])]
        earlier = seen.get(b"".join(opposite))
        if earlier is not None and own != opposite:
            yield place, earlier
        seen.setdefault(b"".join(own), place)


def _count_differing(tokens: Tokens, place: int) -> int:
    """Return how many tokens of the longer answer the other has not, where these are few; else 0."""
    sides = tokens.sides_of(place)
    if len(sides) < 2:
        return 0
    good, bad = (ids[int(trained.argmax()) :] for ids, trained, _ in sides)
    longer, shorter = max(len(good), len(bad)), min(len(good), len(bad))
    if longer < NEAR_TOKENS or longer - shorter > NEAR_SHARE * longer:
        return 0
    ahead = good[:shorter] != bad[:shorter]
    first = int(ahead.argmax()) if ahead.any() else shorter
    behind = good[len(good) - shorter + first :][::-1] != bad[len(bad) - shorter + first :][::-1]
    last = int(behind.argmax()) if behind.any() else len(behind)
    differing = longer - first - last
    return differing if 0 < differing <= NEAR_SHARE * longer else 0
