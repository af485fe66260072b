"""Columns that say how an answer is checked, and hold none: tests, verifiers, constraints with their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.json_file import parse_json
from studio.data.formats.cells import Values, is_empty
from studio.data.formats.column_names import part_name

LOOKED_AT = 50
CHECKS = frozenset(
    "test tests testcase testcases unittest unittests case cases check checks checker checkers verify verifier "
    "verifiers verification validator validators validation grader graders grading rubric rubrics criteria criterion "
    "constraint constraints assertion assertions assert asserts reward rewards scorer scorers eval evaluation "
    "evaluator expectation expectations expect".split()
)
"""Words in the names of what answers are held against, and not of the answers."""
HOW = frozenset(
    "type kind method mode check checker matcher comparator operator op fn function func name tool metric strategy "
    "style".split()
)
"""Keys under which a checker says how it checks."""
AGAINST = frozenset(
    "value values pattern patterns regex regexp contains contain keyword keywords forbidden required must tolerance "
    "threshold min max minimum maximum expected expect target ground truth weight points input inputs output "
    "outputs stdin stdout args arguments params parameters relation language".split()
)
"""Words in the keys under which it says against what."""
SPOKEN_WORDS = 12
"""A text with more words under each key is an answer, or something to read, and no pattern to be checked against."""


def is_checker(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds objects, lists of them, or programs, that check answers.

    Its name and its keys say so together, or it lists as many arguments as a column beside it lists rules.
    """
    cells = [row[name] for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    parts = [part for cell in cells for part in _open(cell)]
    if not cells or not parts:
        return False
    named = bool({*part_name(name)} & CHECKS)
    if named and all(isinstance(part, str) and part.lstrip().startswith("assert") for part in parts):
        return True
    if not all(isinstance(part, Mapping) for part in parts):
        return False
    if _takes_arguments(name, rows):
        return True
    keys = {word for part in parts for key in part if isinstance(key, str) for word in part_name(key)}
    if named and keys & HOW and keys & AGAINST:
        return True
    speech = any(_is_speech(cell) for part in parts for cell in part.values())
    return named and bool(keys & (HOW | AGAINST)) and not speech


def find_checkers(columns: Sequence[str], rows: Sequence[Values]) -> list[str]:
    """Return the columns by which answers are checked, the names of rules beside their arguments included."""
    found = [name for name in columns if is_checker(name, rows)]
    rules = [
        other for name in found for other in columns if other not in found and _lists_rules(other, name, rows)
    ]
    return [*found, *dict.fromkeys(rules)]


def _open(cell: object) -> list[object]:
    """Return the entries of a cell, also of one that is written as JSON."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("{", "["):
        try:
            cell = parse_json(cell)
        except ValueError:
            return [cell]
    return list(cell) if isinstance(cell, (list, tuple)) else [cell]


def _is_speech(cell: object) -> bool:
    """Return whether a value is a text that somebody says, and no line of a program."""
    return isinstance(cell, str) and len(cell.split()) > SPOKEN_WORDS and "\n" not in cell.strip()


def _takes_arguments(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column lists the arguments of rules that another one names."""
    return any(
        _lists_rules(other, name, rows) for other in {key for row in rows[:LOOKED_AT] for key in row} - {name}
    )


def _lists_rules(name: str, arguments: str, rows: Sequence[Values]) -> bool:
    """Return whether a column lists names without blanks, in each row as many as `arguments` lists objects."""
    pairs = [(row.get(name), row.get(arguments)) for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    return bool(pairs) and all(_are_rules(*pair) for pair in pairs)


def _are_rules(rules: object, arguments: object) -> bool:
    both = isinstance(rules, (list, tuple)) and isinstance(arguments, (list, tuple))
    return (
        both
        and 0 < len(rules) == len(arguments)
        and all(isinstance(one, str) and len(one.split()) == 1 for one in rules)
        and all(isinstance(one, Mapping) for one in arguments)
    )
