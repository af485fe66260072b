"""Answers that are lists: one of several wordings is learned, the best rated or the first; parts are learned together.

The rule, which the preview shows: a column whose name says answers holds alternatives; in any other column a list is
one answer in parts, such as the steps of a recipe, the labels of a text, a sentence word by word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from studio.data.containers.json_text import parse_json
from studio.data.formats.aliases import ANSWERS
from studio.data.formats.cells import count_words, is_empty
from studio.data.formats.column_names import part_name
from studio.data.formats.context import is_cut, is_numbers

ALTERNATIVES = frozenset(
    "answer answers response responses output outputs completion completions solution solutions reply replies target "
    "targets correction corrections simplification simplifications reference references ref refs lex translation "
    "translations paraphrase paraphrases rewrite rewrites summary summaries caption captions headline headlines "
    "candidate candidates generation generations alias aliases alternative alternatives variant variants wording "
    "wordings gold truth query queries sql code program programs 答案 回答".split()
)
ALTERNATIVES |= {name for name in ANSWERS if "_" not in name} | {"a", "ans"}
"""Words in the names of columns that hold the same thing in several wordings."""
WHOLE = frozenset(
    "answer response output completion reply target label prediction assistant result json bot gpt".split()
)
"""Last words in the names of columns whose text is learned as it stands, also where it is a list in JSON."""
SCORES = (
    "is_selected",
    "is_accepted",
    "accepted",
    "selected",
    "score",
    "scores",
    "pm_score",
    "votes",
    "upvotes",
    "rating",
    "ratings",
    "rewards",
)
"""Keys of numbers of which the highest is the best."""
MARKS = "labels"
"""A list of the right answers' marks, where it holds nothing but 0 and 1."""
RANKS = ("rank", "ranks", "ranking", "position")
"""Keys of numbers of which the lowest is the best."""
ORDERED = frozenset(
    "number no nr num order step section article clause page part sequence seq chapter verse paragraph line "
    "序号 章 条".split()
)
"""Words in keys that say where in a whole an entry stands; `id` and `index` count alternatives as well."""
SHORT_WORDS = 4
JSON_CHARACTERS = 2**20


def open_list(cell: str, column: str) -> list[object] | None:
    """Return the list that a cell holds as JSON; None for other text, and where the JSON itself is to be learned."""
    words = part_name(column)
    if not cell.startswith('["') or len(cell) > JSON_CHARACTERS or (words and words[-1] in WHOLE):
        return None
    try:
        found = parse_json(cell.encode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def holds_parts(cells: Sequence[object], column: str) -> bool:
    """Return whether the entries of a list are one answer together."""
    if len(cells) < 2 or not all(isinstance(one, (str, int, float)) for one in cells):
        return False
    return is_numbers(cells) or not ALTERNATIVES & {*part_name(column)}


def find_place(entries: Sequence[object], column: str) -> str:
    """Return the key by which the entries of a list are parts of one whole, in order; "" where none says so.

    Such as the articles of a chapter by their `number`: in a row, each once.
    """
    if len(entries) < 2 or ALTERNATIVES & {*part_name(column)}:
        return ""
    keys = [*entries[0]] if isinstance(entries[0], Mapping) else []
    if not all(isinstance(one, Mapping) and [*one] == keys for one in entries):
        return ""
    for key in keys:
        found = [_read_place(one[key]) for one in entries] if ORDERED & {*part_name(key)} else [()]
        if all(found) and all(first < then for first, then in pairwise(found)):
            return key
    return ""


def _read_place(cell: object) -> tuple[int, ...]:
    """Return the numbers of a place such as 3, "1.2" or "§ 14"; () where it has none."""
    return tuple(map(int, re.findall(r"\d+", str(cell))[:4])) if isinstance(cell, (str, int)) else ()


def join_parts(cells: Sequence[object]) -> str:
    """Return the entries of a list as one text: single words in a row, names with commas, or lines."""
    words = [str(one) for one in cells if not is_empty(one)]
    if is_numbers(cells) or is_cut(cells):
        return " ".join(words)
    short = all(count_words(one) <= SHORT_WORDS and "," not in one for one in words)
    return (", " if short else "\n").join(words)


def pick_best(answers: Sequence[object]) -> object:
    """Return the answer that is marked as the best, else the first."""
    if all(isinstance(one, Mapping) for one in answers):
        for keys, best in ((SCORES, max), (RANKS, min)):
            for key in keys:
                if all(_is_number(one.get(key)) for one in answers):
                    return best(answers, key=lambda one: one[key])
    return answers[0]


def sort_rated(cell: Mapping[str, object], answers: Sequence[object]) -> Sequence[object]:
    """Return the lists `answers` of an object with the best first, where a list beside it holds as many scores."""
    for keys, turned in (((*SCORES, MARKS), True), (RANKS, False)):
        for key in keys:
            scores = cell.get(key)
            if key == MARKS and not _are_marks(scores):
                continue
            if isinstance(scores, (list, tuple)) and len(scores) == len(answers):
                if all(map(_is_number, scores)):
                    order = sorted(range(len(scores)), key=lambda i: scores[i], reverse=turned)
                    return [answers[i] for i in order]
    return answers


def _are_marks(cell: object) -> bool:
    """Return whether a list holds a 1 for each right answer and a 0 for each wrong one."""
    return isinstance(cell, (list, tuple)) and {*map(str, cell)} == {"0", "1"}


def _is_number(cell: object) -> bool:
    return isinstance(cell, (bool, int, float))
