"""What a person is asked about grades, labels and verdicts beside a text or an answer, and about numbers of options."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.core.i18n import text
from studio.data.column_questions import ask_format
from studio.data.columns import LOOKED_AT, Column, measure_columns
from studio.data.formats.aliases import ANSWERS, LABEL
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.choices import counts_from, read_options
from studio.data.formats.column_names import is_guessed, part_name, simplify
from studio.data.formats.format import Format, Mapped
from studio.data.formats.kto import find_label, names_fault
from studio.data.labels import finds_words, marks_places
from studio.data.open_question import Question
from studio.data.ranking import GRADED, JUDGED, is_answer, rank_answers
from studio.data.related_names import hints

MOST_GRADES = 10
RATED, SCALE, HALVES = re.compile(r"\d{1,2}(?:\.[05]0?)?"), 10, 0.1
"""Numbers of a scale that ends with SCALE; so many of them are halves."""
ORIGINS = frozenset(
    "url link href author authors published publisher date pubdate timestamp license licence title doi source repo "
    "path website domain journal crawl dump warc snapshot language lang token tokens perplexity".split()
)
"""Words in the names of what tells where a document is from, or what was measured when it was collected."""
MEASURED = frozenset("token tokens perplexity published pubdate date timestamp".split())
"""Those of them that numbers may stand under; a rater's number for a domain is none."""
DOCUMENT, FEWEST_ORIGINS, RICH = 40, 2, 3
"""Words of a text, and columns of its provenance, from which on it is a document, and one that nobody labelled."""
VERDICTS = frozenset(
    "safe correct good helpful accepted valid success successful passed approved acceptable harmless".split()
)
"""Words in the names of columns that say yes or no to an answer."""
CLASSES = frozenset("category class intent sentiment emotion label topic 类别 标签 分类".split())
"""Words in the names of columns that sort short texts."""
FITTING = (
    "label",
    "labels",
    "target",
    "relevance",
    "relevant",
    "match",
    "is_match",
    "is_relevant",
    "is_answer",
    "is_correct",
)
"""Names of what says with 0 and 1 whether an answer fits."""


def ask_counting(mapping: Mapped, chosen: Mapped, rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question from which number an answer counts its options; () where the rows tell."""
    column, choices = mapping.get("completion", ""), mapping.get("choices", "")
    if (
        not (column and choices)
        or "completion_from_1" in chosen
        or counts_from(column, choices, rows) is not None
    ):
        return ()
    row = next(
        row for row in rows if len(read_options(row, choices)) > 1 and str(row.get(column)).strip().isdigit()
    )
    words = [one for _, one in read_options(row, choices)]
    number = int(str(row[column]))
    names = (
        text("data.ask.counting.0", option=shorten(words[min(number, len(words) - 1)]), number=number),
        text("data.ask.counting.1", option=shorten(words[max(number - 1, 0)]), number=number),
    )
    what = text("data.ask.counting", column=shorten(column))
    return (
        Question(
            id="mapping.completion_from_1",
            question=what,
            choices=("", column),
            names=names,
            field="data.mapping.completion_from_1",
        ),
    )


def ask_labels(
    mapping: Mapped, columns: Sequence[str], rows: Sequence[Values], *, sure: bool = False
) -> tuple[Question, ...]:
    """Return the question whether labels beside a text are to be learned; () where there are none.

    sure: only those whose names say that they belong to the text.
    """
    labels = list_labels(mapping, columns, rows, sure=sure)
    if not labels:
        return ()
    known = measure_columns([name for name in columns if name not in mapping.values()], rows)
    what = text("data.ask.labels", column=shorten(labels[0].name), sample=labels[0].sample)
    formats = ("prompt_completion", "text")
    asked = any(one.asks > 0.5 and one.plain for one in known.values())
    origins = 0 if asked or any(map(_is_found, labels)) else _count_origins(mapping, columns, rows)
    if origins >= RICH:
        return ()
    if origins >= FEWEST_ORIGINS:
        # Documents with their provenance are read for themselves; a category only sorts them.
        formats = formats[::-1]
    return (ask_format(what, formats),)


def list_labels(
    mapping: Mapped, columns: Sequence[str], rows: Sequence[Values], *, sure: bool = False
) -> list[Column]:
    """Return the columns that label the `text` of `mapping`, the likeliest first; as ask_labels."""
    known = measure_columns([name for name in columns if name not in mapping.values()], rows)
    named = [one for one in known.values() if hints(one, LABEL) and one.rows and one.distinct > 1]
    named += [one for one in rank_answers([*known.values()], "") if is_answer(one) and one not in named]
    named += [
        one for one in known.values() if GRADED & {*part_name(one.name)} and _grades(one) and one not in named
    ]
    rated = [one for one in known.values() if one.counted and _is_rated(one.name, rows)]
    named += [one for one in rated if one not in named and not {*part_name(one.name)} & ORIGINS]
    flags = [one for one in known.values() if _is_flag(one.name, rows) and one.distinct == 2]
    named += [one for one in flags if (len(flags) > 1 or len(columns) == 2) and one not in named]
    named += [one for one in known.values() if one.tagged and one not in named]
    marked = [
        one
        for one in known.values()
        if marks_places(one.name, mapping["text"], rows) or finds_words(one.name, mapping["text"], rows)
    ]
    named += [one for one in marked if one not in named]
    if len(columns) == 2 and known and not named:
        # The first rows of a file that is sorted by its labels have one and the same.
        same = [one for one in known.values() if one.spoken and one.distinct == 1 and _is_class(one)]
        named += same if measure_columns(columns, rows)[mapping["text"]].words < DOCUMENT else []
    named.sort(key=lambda one: is_guessed(one.name, columns))
    return named or [one for one in known.values() if not sure and one.spoken and one.is_labels]


def _is_class(one: Column) -> bool:
    """Return whether a column's name says that it sorts texts into classes."""
    return hints(one, LABEL) or bool({*part_name(one.name)} & CLASSES)


def _is_found(one: Column) -> bool:
    """Return whether a column's name says that somebody found it out about a text."""
    return hints(one, (*LABEL, *ANSWERS)) or bool({*part_name(one.name)} & JUDGED)


def _count_origins(mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]) -> int:
    """Return how many columns tell where a long text is from; 0 for a short one."""
    known = measure_columns(columns, rows)
    told = [one for one in known.values() if {*part_name(one.name)} & (MEASURED if one.counted else ORIGINS)]
    return len(told) if known[mapping["text"]].words >= DOCUMENT else 0


def _is_rated(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds numbers of a small scale, halves among them: what raters gave on average.

    What is counted has no halves; what is computed has more digits.
    """
    cells = [str(row.get(name)) for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    numbers = [float(cell) for cell in cells if RATED.fullmatch(cell)]
    halves = [one for one in numbers if one % 1]
    return len(numbers) == len(cells) > 1 and len(halves) >= HALVES * len(cells) and max(numbers) <= SCALE


def _is_flag(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds nothing but 0 and 1, as what is found out about a text is written."""
    cells = [row.get(name) for row in rows[:LOOKED_AT]]
    return bool(cells) and all(str(cell) in ("0", "1", "0.0", "1.0") for cell in cells)


def ask_verdicts(
    format: Format, mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]
) -> tuple[Question, ...]:
    """Return the question what becomes of answers that a column calls bad; () where none does."""
    used = {*mapping.values()}
    for name in columns:
        cells = [row.get(name) for row in rows[:LOOKED_AT]]
        told = [cell for cell in cells if cell is not None]
        judged = {*part_name(name)} & VERDICTS and not {*part_name(name)} & {"prompt", "question"}
        judged = judged and {*map(type, told)} == {bool}
        # A label of yes and no beside a question and its answer says whether they belong together.
        judged = judged or (simplify(name) in FITTING and None not in {*map(find_label, told)})
        faulty = names_fault(name) and None not in {*map(find_label, told)}
        if name not in used and (judged or faulty) and len({*told}) == 2:
            bad = sum(find_label(cell) is faulty for cell in told)
            what = text("data.ask.verdict", column=shorten(name), bad=bad, all=len(told))
            return (ask_format(what, (format.name, "kto")),)
    return ()


def _grades(one: Column) -> bool:
    """Return whether a column holds a few grades that come again and again."""
    return 1 < one.distinct <= min(MOST_GRADES, one.rows / 2)
