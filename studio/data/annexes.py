"""What stands beside a question and its answer and is not read with them: notes, citations, key words, what follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.data.columns import LOOKED_AT, WORDY, Column
from studio.data.formats.aliases import ANSWERS, MATERIAL, SOURCES
from studio.data.formats.cells import Values, count_words
from studio.data.formats.column_names import part_name
from studio.data.formats.context import say_material, tells_answer
from studio.data.formats.message_parsing import holds_turns
from studio.data.formats.written_lists import open_written
from studio.data.likelihood import BESIDE, NOTED
from studio.data.ranking import JUDGED, MOSTLY
from studio.data.related_names import hints

ORDERS = frozenset(
    "message subject instruction instructions description intent issue request comment task prompt msg".split()
)
"""Words in the names of what says how code is to be changed."""
TASKS = frozenset(
    "assignment question prompt task instruction topic aufgabe frage pregunta 题目 问题".split()
)
"""Words in the names of what a piece of work was written for: it is read with it, however short."""
FOLLOWING = frozenset(
    "explanation explanations justification commentary 解释 解説 해설 explicación explicacion explication explicação "
    "explicacao erklärung spiegazione uitleg объяснение пояснение".split()
)
"""Words in the names of what is said behind an answer that is whole without it."""
CITED = frozenset(
    "reference references ref refs citation citations cite source sources quelle fuente".split()
)
"""Words in the names of what says where something stands."""
WHOLE_WORDS = 6
"""Words from which on an answer is a sentence, and whole."""
FULL_STOPS = tuple(".!?…。！？｡")
APART = 0.8
"""So many different questions to each different answer tell the rows apart."""
OTHERWISE = 0.2
"""Of the rows, more answers that differ are no slips of the pen."""
CITED_WORDS, DIGITS = 16, 0.5
"""A citation has fewer words, and so many of them name a page, a year or a paragraph."""


def annotates(name: str, talk: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds a list with an entry for each turn of a talk: what was noted of the turns."""
    pairs = [(row.get(name), row.get(talk)) for row in rows[:LOOKED_AT] if row.get(name)]
    lists = [pair for pair in pairs if all(isinstance(cell, (list, tuple)) for cell in pair)]
    noted = (
        bool(talk and pairs) and len(lists) == len(pairs) and not any(holds_turns(one) for one, _ in lists)
    )
    return noted and all(len(one) == len(two) for one, two in lists)


def is_annex(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column is called a note, or holds objects and is not called something to be read."""
    noted = bool({*part_name(one.name)} & (NOTED | JUDGED))
    return not is_read(one) and (noted or holds_objects(one.name, rows))


def is_read(one: Column) -> bool:
    """Return whether a column is called something that is read; a prompt holds already all that it needs."""
    return hints(one, (*MATERIAL, *SOURCES)) or bool({*part_name(one.name)} & (BESIDE | TASKS | ORDERS))


def lists_key_words(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of several words or two each: key words, tags, what is to be named."""
    cells = [row[one.name] for row in rows[:LOOKED_AT] if row.get(one.name)]
    if is_read(one) or not cells or not all(isinstance(cell, (list, tuple)) for cell in cells):
        return False
    parts = [part for cell in cells for part in cell]
    brief = all(isinstance(part, str) for part in parts) and len(parts) > len(cells)
    return brief and sum(map(count_words, parts)) < WORDY * len(parts)


def holds_objects(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are objects, or lists of them."""
    cells = [row[name] for row in rows[:LOOKED_AT] if row.get(name)]
    cells = [(isinstance(cell, str) and open_written(cell)) or cell for cell in cells]
    parts = [one for cell in cells for one in (cell if isinstance(cell, (list, tuple)) else (cell,))]
    return bool(parts) and all(isinstance(one, Mapping) for one in parts)


def is_behind(
    one: Column, answer: Column, read: Sequence[str], columns: Sequence[str], rows: Sequence[Values]
) -> bool:
    """Return whether a column only stands behind an answer: it explains it, says where it stands, or says it again.

    read: the columns of the question. Where they are the same in rows whose answers differ, only such a column tells
    the rows apart: a law's paragraph in each row under `What does it say?` is what is asked about.
    """
    if tells(one, answer, rows):
        return True
    return (follows(one, answer, columns) or cites(one, answer, rows)) and tell_apart(read, answer.name, rows)


def tell_apart(read: Sequence[str], answer: str, rows: Sequence[Values]) -> bool:
    """Return whether the columns `read` differ from row to row about as often as the answers."""
    rows = [row for row in rows[:LOOKED_AT] if row.get(answer)]
    asked = {tuple(say_material(row.get(name)) for name in read) for row in rows}
    return len(asked) >= APART * len({say_material(row.get(answer)) for row in rows})


def tells(one: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether a hint holds the short answer that it helps to."""
    return not answer.is_prose and tells_answer(one.name, answer.name, rows)


def follows(one: Column, answer: Column, columns: Sequence[str]) -> bool:
    """Return whether a column explains, behind it, an answer in sentences: nobody thought it before the answer."""
    named = {*part_name(one.name)} & FOLLOWING
    whole = answer.is_prose and not answer.coded and answer.words >= WHOLE_WORDS
    return bool(named) and whole and [*columns].index(one.name) > [*columns].index(answer.name)


def cites(one: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column only says where an answer in sentences stands: a book and a page, a law's paragraph."""
    named = {*part_name(one.name)} & CITED and answer.is_prose
    if not named or one.coded or not one.plain or one.words > CITED_WORDS:
        return False
    cells = [str(row[one.name]).strip() for row in rows[:LOOKED_AT] if row.get(one.name)]
    cited = [cell for cell in cells if any(map(str.isdigit, cell)) and not cell.endswith(FULL_STOPS)]
    return len(cited) >= DIGITS * len(cells) > 0


def takes(one: Column, asked: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's objects hold, for the most part, what the text `asked` says: its facts, taken out."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cell, words = row.get(one.name), say_material(row.get(asked.name)).lower()
        facts = [str(fact).strip().lower() for fact in cell.values()] if isinstance(cell, Mapping) else []
        facts = [fact for fact in facts if fact]
        seen += len(facts)
        told += sum(fact in words for fact in facts)
    return 2 * told > seen > 0


def is_another(one: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column is an answer of another kind by its name, in sentences of its own: `pruned_answer`."""
    words, mine = part_name(one.name), part_name(answer.name)
    kinds = len(words) == len(mine) == 2 and words[1] == mine[1] in ANSWERS and words[0] != mine[0]
    texts = one.plain and one.is_prose and answer.is_prose and one.filled >= MOSTLY
    return kinds and texts and not {*words} & NOTED and _differs(one.name, answer.name, rows)


def _differs(name: str, other: str, rows: Sequence[Values]) -> bool:
    """Return whether two columns say something else often enough that it matters which of them is learned."""
    pairs = [
        (say_material(row.get(name)).strip(), say_material(row.get(other)).strip())
        for row in rows[:LOOKED_AT]
    ]
    pairs = [pair for pair in pairs if all(pair)]
    return sum(one not in two and two not in one for one, two in pairs) > OTHERWISE * len(pairs)
