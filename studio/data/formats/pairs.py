"""Two answers in columns of their own and a column that says which is the better one: a preference, not yet sorted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from studio.core.i18n import text
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name
from studio.data.row import RowError
from studio.data.row_codes import RowCode

SIDES = re.compile(r"^(.*?)[_ ]?([01ab12AB])$")
WORDED = {"left": "a", "right": "b"}
"""Words before or behind what is compared, for the first and the second: `left_answer`, `answer_right`."""
ANSWER_WORDS = frozenset(
    "response answer output completion text reply summary ref reference conversation message candidate".split()
)
BETTER_WORDS = frozenset(
    "better preferred preference winner chosen label labels choice best overall selected result verdict".split()
)
FIRST = frozenset(
    ("0", "a", "model_a", "response_a", "answer_a", "left", "first", "response_0", "assistant_a")
)
SECOND = frozenset(
    ("1", "b", "model_b", "response_b", "answer_b", "right", "second", "response_1", "assistant_b")
)
VERDICT = re.compile(
    r"(?:response|answer|completion|output|model|assistant|text|summary|option)[ _-]?([0-2ab])"
    r"|([0-2ab])(?:\W+is\W.*|\s*>+\s*[0-2ab])"
)
"""A verdict that names a column, or says which one beats the other: `response2`, `A-is-slightly-better`, `A>>B`."""
LOOKED_AT = 200


RANK_KEYS = ("rank", "ranking", "position")
"""Numbers of which the lowest is the best."""
SCORE_KEYS = (
    "overall_score",
    "score",
    "rating",
    "fine-grained_score",
    "reward",
    "overall",
    "pm_score",
    "elo",
)
"""Numbers of which the highest is the best."""
SCORE_WORDS = frozenset("score scores rating reward votes winner wins won".split())
"""Words in the names of numbers of two answers, the higher for the better."""
FOUND_KEYS = ("has_answer", "hasanswer", "title", "docid", "doc_id", "passage_id", "pid")
"""Keys of a text that was found for a question, with a score for how well it fits."""
RATED_KEYS = ("response", "answer", "text", "output", "completion", "content", "summary")


def find_pair(columns: Sequence[str], sample: Sequence[Values]) -> dict[str, str]:
    """Return the roles of two answers and what tells the better one; {} where there are none.

    `first`, `second` and `better`, a verdict; or with `leaning`, a number below zero where the first is better; or
    with `first_score` and `second_score`; or `rated`, a list of answers with scores or ranks.
    """
    for name in columns:
        cells = [row.get(name) for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
        if cells and all(isinstance(cell, (list, tuple)) and _rate(cell) is not None for cell in cells):
            return {"rated": name}
    fronts: dict[str, dict[str, str]] = {}
    for name in columns:
        front, mark = part_side(name)
        if mark and ANSWER_WORDS & {*part_name(front)}:
            fronts.setdefault(front, {})[mark] = name
    for sides in fronts.values():
        marks = sorted(sides)
        if marks not in (["0", "1"], ["1", "2"], ["a", "b"]):
            continue
        rows = [row for row in sample[:LOOKED_AT] if isinstance(row.get(sides[marks[0]]), (str, list))]
        scores = _find_scores(columns, marks, rows)
        if scores:
            return {"first": sides[marks[0]], "second": sides[marks[1]], **scores}
        named = [name for name in columns if name not in sides.values() and BETTER_WORDS & {*part_name(name)}]
        for name in named:
            cells = [row.get(name) for row in rows if not is_empty(row.get(name))]
            numbers = [_number(cell) for cell in cells]
            if numbers and None not in numbers and min(numbers) < 0 < max(numbers):
                return {"first": sides[marks[0]], "second": sides[marks[1]], "leaning": name}
            if marks == ["a", "b"] and all(str(cell) in ("0", "1") for cell in cells):
                continue  # 1 may mean the second answer, or that the first one is better
            if cells and all(find_side(cell, marks) is not None or _is_tie(cell) for cell in cells):
                return {"first": sides[marks[0]], "second": sides[marks[1]], "better": name}
    return {}


def part_side(name: object) -> tuple[str, str]:
    """Return what a column holds and which of two it is, by its name: ("answer", "a") of `answer_a`, `left_answer`.

    ("", "") where its name says neither.
    """
    if not isinstance(name, str):
        return "", ""
    words = part_name(name)
    for place in (0, -1):
        if len(words) > 1 and words[place] in WORDED:
            return " ".join(words[1:] if place == 0 else words[:-1]), WORDED[words[place]]
    found = SIDES.match(name)
    return (found[1].lower(), found[2].lower()) if found else ("", "")


def _find_scores(columns: Sequence[str], marks: Sequence[str], rows: Sequence[Values]) -> dict[str, str]:
    found: dict[str, dict[str, str]] = {}
    for name in columns:
        front, mark = part_side(name)
        if mark and SCORE_WORDS & {*part_name(front)}:
            found.setdefault(front, {})[mark] = name
    for sides in found.values():
        numbers = [row.get(name) for row in rows for name in sides.values()]
        if sorted(sides) == list(marks) and numbers and all(_number(cell) is not None for cell in numbers):
            return {"first_score": sides[marks[0]], "second_score": sides[marks[1]]}
    return {}


def _number(cell: object) -> float | None:
    if isinstance(cell, (list, tuple)) and len(cell) == 1:
        cell = cell[0]
    try:
        return None if cell is None or isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        return None


def _rate(cell: Sequence[object]) -> tuple[object, object] | None:
    """Return the best and the worst answer of a list with scores or ranks; None where it is no such list."""
    if len(cell) < 2 or not all(isinstance(one, Mapping) for one in cell):
        return None
    if any(key in one for one in cell for key in FOUND_KEYS):
        return None
    words = next((key for key in RATED_KEYS if all(not is_empty(one.get(key)) for one in cell)), None)
    for keys, best in ((RANK_KEYS, min), (SCORE_KEYS, max)):
        for key in keys:
            if words and all(_number(one.get(key)) is not None for one in cell):
                worst = max if best is min else min
                top, low = (find(cell, key=lambda one: _number(one[key])) for find in (best, worst))
                return (top[words], low[words]) if _number(top[key]) != _number(low[key]) else (None, None)
    return None


def find_side(cell: object, marks: Sequence[str] = ("0", "1")) -> int | None:
    """Return 0 or 1 for the side that a verdict names, `marks` being how the columns are marked; None for neither."""
    if isinstance(cell, (bool, float)) and cell in (0, 1):
        cell = int(cell)
    said = str(cell).strip().lower()
    if found := VERDICT.fullmatch(said):
        said = found[1] or found[2]
    if said in marks:
        return marks.index(said)
    if said == "2" and marks[0] == "a":
        return 1
    return 0 if said in FIRST else 1 if said in SECOND else None


def _is_tie(cell: object) -> bool:
    return isinstance(cell, str) and cell.strip().lower().startswith(
        ("tie", "both", "neither", "equal", "same")
    )


def sort_pair(values: Values, mapping: Mapping[str, str]) -> tuple[object, object]:
    """Return the better and the worse answer's cells. Raises RowError where a row does not tell them apart."""
    if "rated" in mapping:
        cell = values.get(mapping["rated"])
        found = _rate(cell) if isinstance(cell, (list, tuple)) else None
        if found is None or found[0] is None:
            raise _refuse(mapping["rated"], None, tie=found is not None)
        return found
    first, second = mapping["first"], mapping["second"]
    if "first_score" in mapping:
        scores = [_number(values.get(mapping[role])) for role in ("first_score", "second_score")]
        if None in scores or scores[0] == scores[1]:
            raise _refuse(mapping["first_score"], values.get(mapping["first_score"]), tie=None not in scores)
        side = int(scores[1] > scores[0])
    elif "leaning" in mapping:
        cell = values.get(mapping["leaning"])
        number = _number(cell)
        if not number:
            raise _refuse(mapping["leaning"], cell, tie=number == 0)
        side = int(number > 0)
    else:
        cell = values.get(mapping["better"])
        side = None if is_empty(cell) else find_side(cell, [part_side(name)[1] for name in (first, second)])
        if side is None:
            raise _refuse(mapping["better"], cell, tie=_is_tie(cell))
    cells = (values.get(first), values.get(second))
    return cells if side == 0 else cells[::-1]


def _refuse(column: str, found: object, *, tie: bool) -> RowError:
    reason = text("data.row.no_better", column=shorten(column), found=shorten(found, 40))
    return RowError(RowCode.UNDECIDED if tie else RowCode.BAD_LABEL, reason)
