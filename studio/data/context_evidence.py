"""Which columns beside a question are read with it, and which are left out, where no person needs to be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.i18n import Text, text
from studio.data.annexes import ORDERS, TASKS, annotates, is_behind, lists_key_words
from studio.data.columns import LOOKED_AT, Column, joins, measure_columns, repeats
from studio.data.dataset_kinds import find_remark
from studio.data.formats.aliases import (
    EXPECTED,
    MATERIAL,
    QUESTIONS,
)
from studio.data.formats.cells import Values, shorten, show_names
from studio.data.formats.checkers import CHECKS
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import TECHNICAL, say_material
from studio.data.formats.format import Mapped
from studio.data.formats.message_parsing import holds_turns
from studio.data.formats.roles import read_role
from studio.data.labels import points_into
from studio.data.likelihood import (
    BESIDE,
    NOTED,
    WRITTEN,
)
from studio.data.ranking import (
    DATED,
    JUDGED,
    MACHINES,
    MADE,
    WRONG,
    find_right,
    is_wrong,
)
from studio.data.related_names import (
    OLD,
    RENEWED,
    are_twins,
    are_versions,
    extends,
    hints,
    is_half,
    is_language,
    is_renewed,
)
from studio.data.unused_columns import COMPARED
from studio.data.whole_examples import SIGNS_CHARACTERS, ends_with

NO_ANSWER = WRONG | {"hallucinated", "hallucination"}
"""Words in the names of what is no answer."""
OPTIONS = frozenset("option options choice choices candidates alternatives".split())
"""Words in the names of what an answer could be chosen from."""
LONGER = 3
"""So many times longer is a text in which an answer was found."""


def are_answered(name: str, rows: Sequence[Values]) -> bool:
    """Return whether talks end with what a model says: they are learned, whatever answers are checked against."""
    last = [
        row[name][-1] for row in rows[:LOOKED_AT] if isinstance(row.get(name), (list, tuple)) and row[name]
    ]
    roles = [turn.get("role") or turn.get("from") for turn in last if isinstance(turn, Mapping)]
    return bool(roles) and all(isinstance(role, str) and read_role(role) == "assistant" for role in roles)


def _is_checked(one: Column) -> bool:
    """Return whether a column is called what the answers of a talk are checked against."""
    return hints(one, EXPECTED) or bool(
        {*part_name(one.name)} & {"solution", "solutions", "reference", "truth"}
    )


def _judges(one: Column) -> bool:
    """Return whether a column says how an answer is judged: lists of tests, or `evaluation_criteria` in words."""
    words = {*part_name(one.name)}
    return bool(words & CHECKS) and (not one.plain or (len(words) > 1 and words <= CHECKS))


def _is_drawn(one: Column) -> bool:
    """Return whether a column is called what a program said to a talk that is answered: `model_output`."""
    words = {*part_name(one.name)}
    return bool(words & MACHINES and words & MADE)


def leaves_words(columns: Sequence[str], rows: Sequence[Values], mapping: Mapped) -> bool:
    """Return whether sentences would be left out that are not called notes, and stand nowhere else."""
    used = [name for name in mapping.values() if name]
    measured = measure_columns(columns, rows)
    known = [one for name, one in measured.items() if name not in used]
    answers = [
        measured[name] for name in (mapping.get("completion"), mapping.get("output")) if name in measured
    ]
    read = [name for role, name in mapping.items() if name and role not in ("completion", "output")]
    known = [
        one for one in known if not any(is_behind(one, answer, read, columns, rows) for answer in answers)
    ]
    right = find_right([*measured.values()])
    if right is not None and right.name == mapping.get("completion"):
        known = [one for one in known if not {*part_name(one.name)} & NO_ANSWER]  # wrong answers are none
    known = [one for one in known if not (answers and _judges(one))]
    talk = mapping.get("messages") or mapping.get("conversations") or ""
    if talk and are_answered(talk, rows):
        known = [one for one in known if not (_is_checked(one) or _is_drawn(one))]
    return any(
        one.is_prose
        and one.plain
        and one.distinct > 1
        and not (is_noted(one) and not {*part_name(one.name)} & WRITTEN)
        and not any(extends(one.name, name) for name in used)
        and not repeats(one.name, used, rows)
        and not joins(one.name, read, rows)
        and not any(_writes_out(one.name, name, rows) for name in read)
        for one in known
    )


def _writes_out(name: str, asked: str, rows: Sequence[Values]) -> bool:
    """Return whether a column is what is read once more, with more around it: `full_prompt` of `prompt`."""
    return part_name(name)[-1:] == part_name(asked)[-1:] and repeats(asked, [name], rows)


def is_noted(one: Column) -> bool:
    """Return whether a column's name says that it only tells something of the row."""
    words = {*part_name(one.name)}
    return bool(words & (NOTED | TECHNICAL | DATED | (BLOCKING - JUDGED))) or is_language(one.name)


def is_second(one: Column, answer: Column | None) -> bool:
    """Return whether a column holds a second text of the answer's kind, such as another person's translation."""
    named = {*part_name(one.name)} & {"reference", "references"}
    return bool(named) and one.plain and answer is not None and one.characters < 2 * answer.characters


def weigh_material(
    first: str, choices: Sequence[str], columns: Sequence[str], rows: Sequence[Values], mapping: Mapped
) -> Text | None:
    """Return why a column is read before the question, or why those left are not; None where it is to be asked."""
    known = measure_columns(columns, rows)
    asked = mapping.get("prompt") or mapping.get("instruction") or mapping.get("text") or ""
    learned = mapping.get("completion") or mapping.get("output") or ""
    used = [name for name in mapping.values() if name and name != learned]
    rest = [known[name] for name in choices if name in known]
    talk = mapping.get("messages") or mapping.get("conversations") or ""
    if not first:
        left = [one for one in rest if annotates(one.name, talk, rows) or joins(one.name, used, rows)]
        if talk and are_answered(talk, rows):
            left += [one for one in rest if _is_checked(one) or _is_drawn(one)]
        if learned in known and known[learned].is_prose:
            left += [
                one for one in rest if lists_key_words(one, rows)
            ]  # found in the answer, or the question
        if learned:
            # What an answer is held against is no part of its question.
            left += [one for one in rest if _judges(one)]
        if {asked, learned} <= {*known}:
            left += [one for one in rest if is_wrong(one, known[asked], known[learned], rows)]
        if all(one in left or _is_left(one, learned, rows, mapping) for one in rest):
            return text("data.evidence.noted", columns=show_names([one.name for one in rest]))
        return None
    one = known.get(first)
    if one is None or any(holds_turns(row.get(first)) for row in rows[:LOOKED_AT]):
        return None
    others = [
        other for other in rest if other.name != first and not {*part_name(other.name)} & (NOTED | BESIDE)
    ]
    others = [other for other in others if not joins(other.name, [first, *used], rows)]
    others = [other for other in others if not is_half(other.name, [first])]
    if others and not are_twins(first, asked):
        return None
    if {asked, learned} <= {*known} and is_wrong(one, known[asked], known[learned], rows):
        return None
    words = {*part_name(first)}
    constant = asked in known and known[asked].distinct == 1 and hints(one, QUESTIONS)
    pointing = learned in known and known[learned].is_labels and points_into(one, used, rows)
    if is_half(first, columns) or constant or pointing:
        return text("data.evidence.material", column=shorten(first))
    if one.coded and {*part_name(first)} & OLD and {*part_name(learned)} & RENEWED:
        return text("data.evidence.material", column=shorten(first))
    remark = find_remark([*known.values()])
    if remark and remark[1].name == learned and one.coded and len(rest) == 1:
        return text("data.evidence.material", column=shorten(first))
    ordered = asked in known and known[asked].coded and bool(words & ORDERS)
    if ordered and learned in known and known[learned].coded:
        return text("data.evidence.material", column=shorten(first))
    if is_renewed(learned, first):
        return text("data.evidence.material", column=shorten(first))
    if is_second(one, known.get(learned)) or (learned and ends_with(first, learned, rows, SIGNS_CHARACTERS)):
        return None  # what ends with the answer tells it
    if are_versions(first, asked):
        return None  # the question once more, in another language
    beside = (
        bool(words & (BESIDE | TASKS if asked else BESIDE)) or hints(one, MATERIAL) or are_twins(first, asked)
    )
    found = bool(learned) and _holds(known, first, learned, rows)
    order = [name for name in columns if name in (first, learned)]
    early = order[:1] == [first] or not learned
    if found or (beside and (early or are_twins(first, asked))):
        return text("data.evidence.material", column=shorten(first))
    return None


def _is_left(one: Column, learned: str, rows: Sequence[Values], mapping: Mapped) -> bool:
    """Return whether a column is left out: a note, another form of one in use, or what holds the answer, or others."""
    words = {*part_name(one.name)}
    if words & NO_ANSWER or (words & NOTED and not words & WRITTEN):
        return True
    used = [name for name in mapping.values() if name]
    if "choices" in mapping and words & OPTIONS:
        return True
    if any(role in mapping for role in COMPARED):
        compared = [part_name(mapping[role]) for role in COMPARED if mapping.get(role)]
        noted = any(core and part_name(one.name)[: len(core)] == core for core in compared)
        return noted or bool(words & WRITTEN) or any(extends(one.name, name) for name in used)
    return any(extends(one.name, name) for name in used) or bool(
        learned and repeats(learned, [one.name], rows)
    )


def _holds(known: Mapping[str, Column], first: str, learned: str, rows: Sequence[Values]) -> bool:
    """Return whether the answers stand in a column of much longer texts."""
    if known[first].characters < LONGER * known[learned].characters:
        return False
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        read = say_material(row.get(first)).strip().lower()
        cell = row.get(learned)
        parts = (
            [one for one in cell.values() if isinstance(one, str)] if isinstance(cell, Mapping) else [cell]
        )
        said = [words.lower() for one in parts if (words := say_material(one).strip())]
        if said and read:
            seen += 1
            told += any(words in read for words in said)
    return bool(seen) and told > 0.8 * seen
