"""Data for other trainings than the studio's, which no choice of columns would turn into questions and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.formats.aliases import ANSWERS
from studio.data.formats.cells import Values, count_words, is_empty, shorten
from studio.data.formats.column_names import find_core, part_name, simplify
from studio.data.formats.message_parsing import holds_turns, is_turn
from studio.data.formats.roles import read_role

LOOKED_AT = 100
FITTING = frozenset("pos positive positives".split())
UNFITTING = frozenset("neg negative negatives".split())
SOUGHT = frozenset("query anchor question sentence premise claim q".split())
ATTEMPTS = frozenset(
    "generation generations attempt attempts sample samples candidate candidates rollouts".split()
)
"""Words in the names of whole answers of which some are right: they are no steps of one answer."""
JUDGEMENTS = frozenset("label labels rating ratings reward rewards correctness is_correct scores".split())
STEPS = frozenset(("step", "steps"))
RATED = frozenset("label labels rating ratings score correct correctness".split())
STEP_WORDS = 3
"""Words of an average step at least: shorter entries are labels or single words."""


def refuse_foreign(columns: Sequence[str], rows: Sequence[Values]) -> None:
    """Raise StudioError for texts to be found, judged steps, and questions that nobody answers."""
    rows = rows[:LOOKED_AT]
    found = _find_search(columns, rows) or _find_steps(columns, rows) or _find_unanswered(columns, rows)
    if found:
        kind, names = found
        raise StudioError(
            text(f"data.foreign.{kind}", columns=", ".join(map(shorten, names))),
            text(f"data.foreign.{kind}.why"),
            text("data.foreign.fix"),
        )


def _find_search(columns: Sequence[str], rows: Sequence[Values]) -> tuple[str, list[str]] | None:
    """Return the columns of texts that fit a query and that do not: what searching is learned from."""
    if any(simplify(name) in ANSWERS or find_core(name) in ANSWERS for name in columns):
        return None
    sides = [
        [name for name in columns if words & {*part_name(name)} and _holds_texts(name, rows)]
        for words in (FITTING, UNFITTING)
    ]
    asked = [name for name in columns if SOUGHT & {*part_name(name)}]
    return ("search", [*asked[:1], *sides[0], *sides[1]]) if all(sides) and asked else None


def _holds_texts(name: str, rows: Sequence[Values]) -> bool:
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    texts = [one for cell in cells for one in (cell if isinstance(cell, (list, tuple)) else (cell,))]
    texts = [one.get("text") if isinstance(one, Mapping) else one for one in texts]
    return bool(texts) and all(isinstance(one, str) for one in texts)


def _find_steps(columns: Sequence[str], rows: Sequence[Values]) -> tuple[str, list[str]] | None:
    """Return the columns of steps and of what somebody found of each."""
    if any(_all(name, rows, _answers) for name in columns):
        return None  # attempts that were checked, of which the talk holds the one to learn
    judged = [name for name in columns if {simplify(name), *part_name(name)} & JUDGEMENTS]
    for name in columns:
        cells = [row[name] for row in rows if not is_empty(row.get(name))]
        if cells and all(isinstance(cell, Mapping) and _rates_steps(cell) for cell in cells):
            return "steps", [name]
        if cells and all(_holds_judged_steps(cell) for cell in cells):
            return "steps", [name]
        if not cells or not all(_is_steps(cell) for cell in cells) or all(len(cell) < 2 for cell in cells):
            continue
        if ATTEMPTS & {*part_name(name)}:
            continue
        for other in judged:
            if other != name and all(_judges(row.get(other), row[name]) for row in rows if row.get(name)):
                return "steps", [name, other]
    return None


def _is_steps(cell: object) -> bool:
    if not isinstance(cell, (list, tuple)) or not all(isinstance(one, str) for one in cell):
        return False
    return bool(cell) and sum(map(count_words, cell)) >= STEP_WORDS * len(cell)


def _holds_judged_steps(cell: object) -> bool:
    """Return whether a cell lists objects that are called steps, each with what somebody found of it."""
    if not isinstance(cell, (list, tuple)) or not cell or not all(isinstance(one, Mapping) for one in cell):
        return False
    keys = [{word for key in one for word in part_name(key)} for one in cell]
    return all(words & STEPS and words & RATED for words in keys)


def _judges(cell: object, steps: Sequence[object]) -> bool:
    return (
        isinstance(cell, (list, tuple))
        and len(cell) == len(steps)
        and all(isinstance(one, (bool, int)) and one in (-1, 0, 1) for one in cell)
    )


def _rates_steps(cell: Mapping[str, object]) -> bool:
    """Return whether an object holds a list of steps with ratings inside."""
    steps = cell.get("steps")
    if not isinstance(steps, (list, tuple)) or not steps:
        return False
    return any({simplify(str(key)) for key in one} & {"rating", "label"} for one in _list_objects(steps))


def _list_objects(cell: object) -> Iterator[Mapping[str, object]]:
    if isinstance(cell, Mapping):
        yield cell
        for value in cell.values():
            yield from _list_objects(value)
    elif isinstance(cell, (list, tuple)):
        for one in cell:
            yield from _list_objects(one)


def _find_unanswered(columns: Sequence[str], rows: Sequence[Values]) -> tuple[str, list[str]] | None:
    """Return the columns of turns and of functions where nothing else could be an answer."""
    tools = [name for name in columns if _all(name, rows, _describes_functions)]
    asked = [name for name in columns if name not in tools and _all(name, rows, _asks_only)]
    rest = [name for name in columns if name not in (*tools, *asked) and not _names_row(name)]
    return ("unanswered", [*asked, *tools]) if tools and asked and not rest else None


def _all(name: str, rows: Sequence[Values], holds: Callable[[object], bool]) -> bool:
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    return bool(cells) and all(map(holds, cells))


def _describes_functions(cell: object) -> bool:
    return isinstance(cell, (list, tuple)) and all(
        isinstance(one, Mapping) and "name" in one and ("parameters" in one or "description" in one)
        for one in cell
    )


def _answers(cell: object) -> bool:
    """Return whether a cell is a list of turns with an answer."""
    return isinstance(cell, (list, tuple)) and holds_turns(cell) and not _asks_only(cell)


def _asks_only(cell: object) -> bool:
    """Return whether a cell holds turns, and none of them is an answer."""
    turns = [one for one in _list_objects(cell) if is_turn(one)]
    return bool(turns) and all(
        read_role(one.get("role", one.get("from"))) in ("user", "system") for one in turns
    )


def _names_row(name: str) -> bool:
    return bool({*part_name(name)} & {"id", "ids", "idx", "index", "source", "category", "type", "split"})
