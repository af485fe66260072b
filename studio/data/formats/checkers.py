"""Columns that say how an answer is checked, and hold none: tests, verifiers, constraints with their arguments."""

from __future__ import annotations

import re
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
SURE = frozenset(
    "test tests testcase testcases unittest unittests check checks checker checkers verify verifier verifiers "
    "verification validator validators validation grader graders assertion assertions assert asserts reward rewards "
    "scorer scorers".split()
)
"""Those that name nothing else: an evaluation, a rubric or constraints may be what is to be written."""
FIRST = re.compile(r"[^.:?!\n。：？！]+")
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


def are_sure(checkers: Sequence[str], prompt: str, rows: Sequence[Values]) -> bool:
    """Return whether one of `checkers` is nothing but that: its name says so, and no prompt asks to write it.

    So are rules beside their arguments. `prompt`: its column, or "".
    """
    rules = [name for name in checkers if _takes_arguments(name, rows)]
    sure = [name for name in checkers if {*part_name(name)} & SURE and not _is_asked_for(name, prompt, rows)]
    return bool(rules or sure)


def order_formats(checkers: Sequence[str], prompt: str, rows: Sequence[Values]) -> tuple[str, ...]:
    """Return what a prompt and what may check its answers can be, the likelier format first."""
    told = any(_is_asked_for(name, prompt, rows) for name in checkers)
    return ("prompt_completion", "rl") if told else ("rl", "prompt_completion")


def _is_asked_for(name: str, prompt: str, rows: Sequence[Values]) -> bool:
    """Return whether most prompts speak of a checker at their beginning: `Write unit tests for f.`"""
    words = {word.rstrip("s") for word in part_name(name)} & {word.rstrip("s") for word in CHECKS}
    begun = [
        FIRST.match(cell.strip()) for row in rows[:LOOKED_AT] if isinstance(cell := row.get(prompt), str)
    ]
    said = [{word.rstrip("s") for word in part_name(found[0])} for found in begun if found]
    return 2 * sum(bool(words & one) for one in said) > len(said) > 0


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
