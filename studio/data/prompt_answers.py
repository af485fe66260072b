"""What beside a prompt may be its answer, or only what its answers are checked against."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.columns import LOOKED_AT, Column, measure_columns
from studio.data.context_evidence import are_answered, is_noted
from studio.data.formats.cells import Values, is_empty
from studio.data.formats.checkers import find_checkers
from studio.data.formats.column_names import BLOCKING, part_name, simplify
from studio.data.formats.format import Mapped
from studio.data.formats.prompt_answer import has_turns
from studio.data.formats.rl import POSED, SURE, is_checkable
from studio.data.ranking import MOSTLY, is_answer, may_answer

SENTENCE = 6
"""Words from which on an answer is no value to be checked."""
CHECKED = 0.9
"""Of the answers that a program checks, so many are numbers, options or formulas."""


def has_answer(columns: Sequence[str], rows: Sequence[Values], chosen: Mapped) -> bool:
    """Return whether a column beside the question may be its answer: words of any kind, or short ones and none named.

    Whoever names the question alone is asked for the answer; whoever wants rewards names the format.
    """
    checkers = find_checkers(columns, rows)
    rest = [name for name in columns if name not in chosen.values() and name not in checkers]
    rest = measure_columns(rest, rows).values()
    named = "prompt" in chosen
    return any(
        one.is_prose
        or (named and bool(checkers) and is_answer(one))
        or (
            named
            and not checkers  # beside which a label only sorts
            and may_answer(one)
            and ((one.spoken and (one.plain or one.is_labels)) or is_answer(one) or one.counted or one.tagged)
        )
        or (named and not checkers and _lists_words(one, rows))
        for one in rest
    )


def _lists_words(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of texts, however short: names, addresses, ideas."""
    cells = [row[one.name] for row in rows[:LOOKED_AT] if row.get(one.name)]
    noted = {*part_name(one.name)} & (BLOCKING - {"title", "titles", "name", "names"}) or is_noted(one)
    lists = all(isinstance(cell, (list, tuple)) for cell in cells)
    return (
        bool(cells) and lists and not noted and all(isinstance(part, str) for cell in cells for part in cell)
    )


def is_sentence(mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether what answers are checked against is sentences beside a question in words."""
    known = measure_columns(columns, rows)
    answer, prompt = (known.get(mapping.get(role, "")) for role in ("answer", "prompt"))
    texts = answer is not None and prompt is not None and answer.plain and prompt.plain
    return texts and answer.is_prose and answer.words >= SENTENCE and answer.filled >= MOSTLY


def holds_prompts(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds turns whose last one waits for an answer."""
    cells = [row[name] for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    return bool(cells) and all(map(has_turns, cells)) and not are_answered(name, rows)


def list_worded(mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]) -> tuple[str, ...]:
    """Return what a prompt and a known answer in words may be, the likelier format first; () for any other.

    Words are learned as often as they are held against the model's own, and no program holds them exactly.
    """
    answer = measure_columns(columns, rows).get(mapping.get("answer", ""))
    turned = holds_prompts(mapping.get("prompt", ""), rows)
    if answer is None or not answer.plain or not (turned or simplify(mapping.get("prompt", "")) in POSED):
        return ()
    if simplify(answer.name) not in SURE and not (turned and answer.words >= SENTENCE):
        return ()
    cells = [row[answer.name] for row in rows[:LOOKED_AT] if not is_empty(row.get(answer.name))]
    if answer.coded or sum(map(is_checkable, cells)) >= CHECKED * len(cells):
        return ()
    formats = ("prompt_completion", "rl")
    return formats if answer.words >= SENTENCE else formats[::-1]


def is_judged(columns: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether a column holds labels that somebody gave."""
    known = measure_columns(columns, rows).values()
    return any(is_answer(one) and 1 < one.distinct <= one.rows / 2 for one in known)
