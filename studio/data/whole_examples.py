"""Columns that hold the example as a whole: its talk written out, a text that ends with its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from studio.data.columns import LOOKED_AT, Column, measure_columns, repeats
from studio.data.dataset_kinds import NUMBERED
from studio.data.formats.cells import Values, is_address, is_blank, is_empty
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import TECHNICAL, say_lines, say_material
from studio.data.formats.message_parsing import CONTENT_KEYS, find_turns, holds_turns
from studio.data.formats.text import holds_document
from studio.data.likelihood import NOTED
from studio.data.ranking import DATED, GRADED, JUDGED, MADE

ALIKE, COMPARED_ROWS, COMPARED_CHARACTERS = 0.8, 20, 400
"""So alike are two texts of which one is the other corrected, on average of so many rows and their first letters."""
SIGNS_CHARACTERS = 4
"""So many signs stand behind the result of a worked solution: a full stop, brackets."""
PART = 0.3
"""An answer with more than this share of the letters it was found in is a part of the example, and no finding of it."""
END_CHARACTERS = 60
"""So far from the end of a text its last words stand."""
MOST_TEXTS = 12
"""A table of more texts is not searched for two that make up a third."""
FEW = 3
FEW_ASKING = 0.3
SHORTER, RICH = 4, 2
HEADINGS = frozenset("title titel título titulo titre headline heading name subject 标题".split())
WORKS = frozenset("code function program".split())
"""Words in the names of what is written for something else, and as often stands for itself."""
ORIGINS = frozenset(
    "author artist singer album poet writer translator publisher genre repo repository filename licence license "
    "domain journal year country city region place publication edition chapter volume section stars lang platform "
    "autor verfasser auteur автор 作者 出版社 来源 朝代".split()
)
"""Words in the names of what tells where a text is from."""
KINDS = frozenset("category kind type tag tags level difficulty topic field".split())
"""Names of what sorts entries of a glossary, and texts, and tells nothing of where they are from."""
OWN_TITLES = 0.6
"""Of the rows, so many have a title of their own; the messages of a thread share one."""
DOCUMENT_WORDS = 50
"""More words than a message of a talk has on average."""


def writes_out(name: str, talk: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column hold every turn of the column `talk`: the talk, written out."""
    seen = whole = 0
    for row in rows[:LOOKED_AT]:
        cell, turns = row.get(name), row.get(talk)
        turns = find_turns(turns) if isinstance(turns, str) else turns
        if isinstance(cell, str) and isinstance(turns, (list, tuple)) and holds_turns(turns):
            said = [words for turn in turns for words in _say(turn)]
            seen += bool(said)
            whole += bool(said) and all(words in cell for words in said)
    return bool(seen) and 2 * whole > seen


def says_again(name: str, talk: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column hold the turns of the column `talk` once more, in another spelling."""
    seen = same = 0
    for row in rows[:LOOKED_AT]:
        turns, others = (
            find_turns(cell) if isinstance(cell := row.get(one), str) else cell for one in (talk, name)
        )
        if isinstance(turns, (list, tuple)) and isinstance(others, (list, tuple)) and holds_turns(others):
            said = {words for turn in turns for words in _say(turn)}
            again = [words for turn in others for words in _say(turn)]
            seen += 1
            same += bool(again) and said.issuperset(again)
    return bool(seen) and 2 * same > seen


def _say(turn: object) -> list[str]:
    if not isinstance(turn, Mapping):
        return []
    said = [turn[key] for key in CONTENT_KEYS if isinstance(turn.get(key), str)]
    return [words.strip() for words in said if not is_blank(words)]


def is_part(answer: Column, asked: Column, rows: Sequence[Values]) -> bool:
    """Return whether what would be learned stands in what would be read, and is no short finding in a long text."""
    if _is_cut_short(asked.name, answer.name, rows):
        return True
    return answer.characters >= PART * asked.characters and repeats(answer.name, [asked.name], rows)


def _is_cut_short(name: str, whole: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of a column are the beginning of another one, cut off: `What is the best wa...`."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cells = [row.get(one) for one in (name, whole)]
        if all(isinstance(cell, str) and not is_blank(cell) for cell in cells):
            here, there = (cell.strip().rstrip(".… ") for cell in cells)
            seen += 1
            told += len(here) >= FEW and there.startswith(here)
    return seen >= FEW and 2 * told > seen


def ends_with(
    asked: str, answer: str, rows: Sequence[Values], behind_characters: int = END_CHARACTERS
) -> bool:
    """Return whether most texts end with their answers: the text is question and answer, written together.

    behind_characters: so much may stand behind the answer.
    """
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        if not is_empty(row.get(asked)) and not is_empty(row.get(answer)):
            read, said = (say_material(row[name]).strip() for name in (asked, answer))
            seen += 1
            told += bool(said) and said in read[-(len(said) + behind_characters) :]
    return seen >= FEW and told > 0.8 * seen


def is_linked(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are objects around an address, such as a picture with its caption."""
    cells = [row[one.name] for row in rows[:LOOKED_AT] if not is_empty(row.get(one.name))]
    return bool(cells) and all(isinstance(cell, Mapping) and _has_address(cell) for cell in cells)


def _has_address(cell: Mapping[str, object]) -> bool:
    values = [value for value in cell.values() if isinstance(value, str)]
    return len(values) <= FEW and any(is_address(line) for value in values for line in say_lines(value))


def find_halves(columns: Sequence[Column], rows: Sequence[Values]) -> tuple[str, str] | None:
    """Return two columns that make up a third, one behind the other: what was cut off, and what follows it."""
    texts = [one.name for one in columns if one.plain and (one.is_prose or one.coded) and one.distinct > 1]
    if len(texts) > MOST_TEXTS:
        return None
    for whole in texts:
        fronts = [name for name in texts if name != whole and _begins(name, whole, "", rows)]
        for front in fronts:
            behind = [
                name for name in texts if name not in (whole, front) and _begins(name, whole, front, rows)
            ]
            if len(behind) == 1:
                return front, behind[0]
    return None


def find_corrected(columns: Sequence[Column], rows: Sequence[Values]) -> tuple[str, str] | None:
    """Return the two texts of a table without a header that say almost the same: before a correction, and after."""
    texts = [
        one.name
        for one in columns
        if one.plain and one.spoken and not one.coded and one.characters >= SIGNS_CHARACTERS
    ]
    rest = [one for one in columns if one.name not in texts]
    named = not all(NUMBERED.fullmatch(one.name) for one in columns)
    if named or len(texts) != 2 or any(one.spoken for one in rest):
        return None
    pairs = [tuple(row.get(name) for name in texts) for row in rows[:COMPARED_ROWS]]
    pairs = [cells for cells in pairs if all(isinstance(cell, str) and not is_blank(cell) for cell in cells)]
    alike = [SequenceMatcher(None, *(cell[:COMPARED_CHARACTERS] for cell in pair)).ratio() for pair in pairs]
    changed = any(here != there for here, there in pairs)
    near = len(alike) >= FEW and sum(alike) >= ALIKE * len(alike) and changed
    return (texts[0], texts[1]) if near else None


def find_heads(asked: str, columns: Sequence[str], rows: Sequence[Values]) -> list[str]:
    """Return the titles, each another one, before the column `asked` where it holds lists of texts, also as JSON."""
    cells = [row[asked] for row in rows[:LOOKED_AT] if not is_empty(row.get(asked))]
    listed = [isinstance(cell, (list, tuple)) or str(cell).lstrip()[:2] in ("['", '["') for cell in cells]
    if 2 * sum(listed) <= len(cells):
        return []
    front = [name for name in columns[: columns.index(asked)] if {*part_name(name)[-1:]} & HEADINGS]
    known = measure_columns(front, rows)
    return [
        name
        for name, one in known.items()
        if one.spoken and one.plain and one.distinct > OWN_TITLES * one.rows > 1
    ]


def _begins(name: str, whole: str, front: str, rows: Sequence[Values]) -> bool:
    """Return whether most cells of `whole` go on with the one of `name` where the one of `front` ends."""
    seen = told = 0
    for row in rows[:LOOKED_AT]:
        cells = [row.get(one) for one in (whole, front, name) if one]
        if all(isinstance(cell, str) and not is_blank(cell) for cell in cells):
            seen += 1
            rest = cells[0].strip()
            rest = rest.removeprefix(cells[1].strip()).lstrip() if front else rest
            told += rest.startswith(cells[-1].strip()) and rest != cells[-1].strip()
            told += bool(front) and rest == cells[-1].strip()
    return seen >= FEW and told > 0.8 * seen


REVIEWED = frozenset("review reviews comment comments feedback".split())
"""Words in the names of texts whose ratings were given together with them."""


def find_alone(columns: Sequence[Column], rows: Sequence[Values]) -> Column | None:
    """Return the only text, or code, of a table whose other columns tell where it is from; None for any other table.

    A title alone beside a text may be its beginning, or what was made of it; with an author, a year, it heads it.
    """
    texts = [
        one
        for one in columns
        if (one.is_prose or one.coded) and one.distinct > 1 and not _heads(one, columns)
    ]
    # The text once more, in its blocks or sentences.
    plain = [one.name for one in texts if one.plain]
    texts = [one for one in texts if one.plain or not any(repeats(name, [one.name], rows) for name in plain)]
    if len(texts) != 1 or texts[0].asks > FEW_ASKING:
        return None
    if not all(holds_document(row[texts[0].name]) for row in rows[:LOOKED_AT] if row.get(texts[0].name)):
        return None
    long = texts[0].coded or texts[0].words >= DOCUMENT_WORDS / 2
    rest = [one for one in columns if one is not texts[0] and one.distinct > 1]
    rest = [one for one in rest if not repeats(texts[0].name, [one.name], rows)]
    origins = [one for one in rest if _tells_of(one) and not HEADINGS & {*part_name(one.name)}]
    # A rating of a document whose origin is told only sorts it.
    reviewed = bool({*part_name(texts[0].name)} & REVIEWED)
    judged = JUDGED if len(origins) > RICH and not reviewed else JUDGED | GRADED
    rest = [one for one in rest if one.spoken or {*part_name(one.name)} & judged]
    read = {*part_name(texts[0].name)} & MADE and not {*part_name(texts[0].name)} & WORKS
    found = JUDGED | GRADED if reviewed else JUDGED
    others = any(not _tells_of(one) or {*part_name(one.name)} & found for one in rest)
    headed = any(HEADINGS & {*part_name(one.name)} for one in columns if one is not texts[0])
    placed = [one for one in origins if not {*part_name(one.name)} <= KINDS]
    varied = [one for one in columns if one is not texts[0] and one.distinct > 1]
    bare = bool(origins) and all(map(_tells_of, varied)) and not any(one.spoken for one in varied)
    told = len(placed) >= 2 or (placed and headed) or len(origins) > 2 or bare
    return texts[0] if long and told and not read and not others else None


def _heads(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether a column of sentences is a heading or a note of a much longer text beside it."""
    longest = max(two.characters for two in columns)
    return _tells_of(one) and (not one.plain or one.characters * SHORTER < longest)


def _tells_of(one: Column) -> bool:
    words = {*part_name(one.name)}
    return bool(words & (NOTED | TECHNICAL | DATED | ORIGINS | HEADINGS | (BLOCKING - JUDGED)))


def are_documents(words: str, columns: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether texts have titles, each another one, or are long besides: nobody answers what has a title."""
    titled = [name for name in columns if {*part_name(name)} & {"title", "headline"}]
    known = measure_columns([words, *titled], rows)
    own = any(known[name].rows and known[name].distinct > OWN_TITLES * known[name].rows for name in titled)
    return bool(titled) and (own or known[words].words >= DOCUMENT_WORDS)
