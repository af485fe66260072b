"""Kinds of data sets that are known as a whole: terms and definitions, remarks on code or work, classes, documents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.data.columns import Column
from studio.data.formats.aliases import ANSWERS, INPUT, INSTRUCTION, LABEL, PRODUCTS, QUESTIONS
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import TECHNICAL
from studio.data.related_names import RENEWED, hints, is_renewed

ASKING = 0.5
"""Share of cells that end in a question mark in a column that asks."""
REMARKS = frozenset(
    "comment comments review reviews msg message remark remarks feedback critique commentary note notes kommentar "
    "anmerkung comentario commentaire commento комментарий 评论 评审 注释 意见".split()
)
"""Words in the names of what somebody said of a change, or of a piece of work."""
CHANGES = frozenset("patch diff hunk mods change changes code snippet oldf old function method func".split())
"""Words in the names of code that somebody says something of."""
DIFFS = frozenset("patch diff hunk mods changes".split())
WORKERS = frozenset(
    "student learner pupil candidate submission essay provided submitted attempted schüler estudiante élève "
    "学生".split()
)
"""Words in the names of a piece of work that is judged."""
ENTRIES = frozenset(
    "term word phrase terme mot begriff wort palabra término termino termine parola termo слово термин 术语 词语 "
    "词 単語 用語 용어 features feature attributes attribute keywords keyword specs specifications bullets".split()
)
"""Words in the names of what is explained or spelled out ..."""
ENTRY_TEXTS = frozenset(
    "definition definitions meaning description definición definicion définition definizione definição bedeutung "
    "beschreibung significado signification descripción descripcion описание определение 定义 释义 描述 意味 定義 "
    "정의 설명 story".split()
)
"""... and in the names of the texts that do it."""
NOTES = frozenset("description keywords keyword synopsis blurb tagline tags".split())
"""Words in the names of what is said of a document in a sentence."""
TITLES = (("name",), ("title",), ("headword",), ("entry",), ("lemma",))
"""Last words in the names of what heads a text."""
VERDICT = frozenset("label labels verdict decision stance".split())
CLAIMS = frozenset("claim statement hypothesis assertion".split())
"""Words in the names of what is judged ..."""
AROUND = frozenset("context contexts evidence evidences passage document documents article".split())
"""... and of what it is judged by."""
DOCUMENT = 50
"""Words of an average document."""
BRIEF = 0.8
"""Of the cards, so many have a front of their own."""
NOTED_OF = 4
"""So many times longer is a text than its description."""
NUMBERED = re.compile(r"column_\d+")
"""Names that a table without a header gets."""


def find_remark(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    """Return the code, or the learner's work, that a column of sentences is about, and that column; None for none.

    Where new code stands beside the old, the sentences say what to change, and are no remark.
    """
    said = [one for one in columns if one.is_prose and not one.coded and {*part_name(one.name)} & REMARKS]
    said = [one for one in said if not {*part_name(one.name)} & WORKERS]
    code = [
        one for one in columns if one.coded and one.rows and (one.plain or DIFFS & {*part_name(one.name)})
    ]
    if code and not any({*part_name(one.name)} & RENEWED for one in code):
        code = [one for one in code if {*part_name(one.name)} & CHANGES]
        code.sort(key=lambda one: not {*part_name(one.name)} & DIFFS)
        if code and said:
            return code[0], said[0]
    work = [one for one in columns if one.is_prose and {*part_name(one.name)} & WORKERS and not one.coded]
    judged = [one for one in said if {*part_name(one.name)} & {"feedback", "critique", "comment", "comments"}]
    return (work[0], judged[0]) if work and judged else None


def find_class(columns: Sequence[Column]) -> Column | None:
    """Return the only column of classes, at an end or behind a text, of a table without a header that asks nothing."""
    if not all(NUMBERED.fullmatch(one.name) for one in columns) or any(one.asks > 0.3 for one in columns):
        return None
    ends = [one for one in columns if one.is_labels and 1 < one.distinct <= one.rows / 2 and one.words < 2]
    ends = [one for one in ends if one in (columns[0], columns[-1]) or columns[0].is_prose]
    return ends[0] if len(ends) == 1 else None


def find_entry(columns: Sequence[Column], *, alone: bool = False) -> tuple[Column, Column] | None:
    """Return the term and its definition, the keywords and the text made of them; `alone`: where no text is beside."""
    prose = [one for one in columns if one.is_prose]
    if card := _find_card(columns):
        return card
    entries = [one for one in columns if one.spoken and {*part_name(one.name)} & ENTRIES]
    texts = [one for one in prose if {*part_name(one.name)} & ENTRY_TEXTS]
    if len(entries) != 1 or len(texts) != 1 or texts == entries or entries[0].distinct < 2:
        return None
    rest = [one for one in prose if one not in (*entries, *texts)]
    longer = texts[0].characters > entries[0].characters
    if any(one.plain and one.characters > NOTED_OF * texts[0].characters for one in rest):
        return None  # both are notes on a much longer text
    return (entries[0], texts[0]) if longer and not (alone and rest) else None


def find_named(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    """Return a prompt that is the only text of a row, and the short name in front of it, which it is written for."""
    texts = [one for one in columns if (one.is_prose or one.coded) and one.words >= DOCUMENT / 2]
    rest = [one for one in columns if one not in texts and one.spoken and one.plain]
    if len(texts) != 1 or len(rest) != 1 or not texts[0].plain:
        return None
    brief = rest[0].characters * NOTED_OF < texts[0].characters and rest[0].distinct > BRIEF * rest[0].rows
    early = columns.index(rest[0]) < columns.index(texts[0])
    told = {*part_name(rest[0].name)} & (BLOCKING | TECHNICAL) or hints(
        rest[0], (*ANSWERS, *PRODUCTS, *LABEL)
    )
    return (rest[0], texts[0]) if brief and early and rest[0].rows > 1 and not told else None


def _find_card(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    """Return the front and the back of flash cards in a table of two columns without a header; None for others."""
    if len(columns) != 2 or not all(NUMBERED.fullmatch(one.name) for one in columns):
        return None
    front, back = columns
    brief = front.spoken and front.plain and not front.is_prose and front.distinct > BRIEF * front.rows
    return (front, back) if brief and back.is_prose and back.plain and front.rows > 1 else None


def find_titled(columns: Sequence[Column]) -> tuple[Column, Column] | None:
    """Return the name in front of the only text of a table, where the other columns only sort its rows."""
    texts = [one for one in columns if one.is_prose and one.plain and not one.coded]
    rest = [one for one in columns if one not in texts and one.spoken and one.plain]
    heads = [one for one in rest if one.distinct > BRIEF * one.rows and part_name(one.name)[-1:] in TITLES]
    sorting = all(
        one.is_labels or one.distinct < 2 or bool({*part_name(one.name)} & NOTES)
        for one in rest
        if one not in heads
    )
    return (heads[0], texts[0]) if len(texts) == len(heads) == 1 and sorting and heads[0].rows > 1 else None


def find_document(columns: Sequence[Column]) -> Column | None:
    """Return the long text of which the other sentences are notes, by their names; None where there is none."""
    prose = [one for one in columns if one.is_prose and one.plain and not one.coded]
    if len(prose) < 2:
        return None
    longest = max(prose, key=lambda one: one.characters)
    notes = [one for one in prose if one is not longest]
    noted = any({*part_name(one.name)} & NOTES for one in notes)
    short = all(one.characters * NOTED_OF < longest.characters for one in notes)
    named = any(
        hints(one, (*QUESTIONS, *INSTRUCTION, "prompt", *INPUT)) or one.asks > ASKING for one in prose
    )
    return longest if noted and short and not named and longest.words >= DOCUMENT else None


def find_kind(columns: Sequence[Column]) -> bool:
    """Return whether the columns are of a kind that is known as a whole: entries, remarks, classes at an end."""
    return bool(find_entry(columns) or find_remark(columns) or find_class(columns))


def find_faulty(columns: Sequence[Column]) -> Column | None:
    """Return the sentences with faults beside the same without; None where something is asked, or answered."""
    prose = [one for one in columns if one.is_prose and one.plain]
    if any(hints(one, (*QUESTIONS, *INSTRUCTION, *INPUT, "prompt")) or one.asks > ASKING for one in prose):
        return None
    faulty = [one for one in prose if any(is_renewed(two.name, one.name) for two in prose)]
    faulty = [one for one in faulty if not one.coded and not {*part_name(one.name)} & {*ANSWERS}]
    return faulty[0] if len(faulty) == 1 else None


def find_judged(columns: Sequence[Column], order: Sequence[Column]) -> Column | None:
    """Return the claim that a label is found for, which goes before the texts that it is compared with."""
    if not any(one.is_labels and {*part_name(one.name)} & VERDICT for one in columns):
        return None
    claims = [one for one in order if one.is_prose and {*part_name(one.name)} & CLAIMS]
    first = order[0] if order else None
    return claims[0] if len(claims) == 1 and first is not None and {*part_name(first.name)} & AROUND else None


def explains(name: str, answer: str, asked: str) -> bool:
    """Return whether a column without a name stands behind an answer that stands behind its question: why it is so."""
    places = [NUMBERED.fullmatch(one) and int(one.rpartition("_")[2]) for one in (asked, answer, name)]
    return all(places) and places == sorted(places)
