"""What a person is asked about columns: which holds the question, and which the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.data.columns import Column, holds_several, measure_columns, repeats
from studio.data.formats.aliases import (
    CHOSEN,
    IMAGES,
    LABEL,
    LISTS,
    QUESTIONS,
    REJECTED,
)
from studio.data.formats.cells import Values, is_asking, shorten, show_names
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.context import REMARKS, TECHNICAL, is_material
from studio.data.formats.format import Mapped
from studio.data.likelihood import order_answers, order_questions
from studio.data.open_question import Question
from studio.data.ranking import DATED, GRADED, JUDGED, MOSTLY, TRUE, is_answer
from studio.data.related_names import hints
from studio.data.whole_examples import ends_with, find_alone, find_corrected, find_halves

CODE_CHARACTERS = 12
"""A longer code is an id, or a checksum."""
MOST_COLUMNS = 200
"""So many are held against each other: 2,430 took more than ten minutes."""
WHOLE_WORDS = 40
"""Words of an average text that could be a question with its answer."""
SAME_ROWS = 5
"""In so many rows at least one and the same cell says nothing of any of them."""
TAG_WORDS = 3
"""Words of a tag, which many rows may lack."""
ANSWERING = ("completion", "output")
"""Roles of what is learned."""


def ask_format(question: Text, formats: Sequence[str]) -> Question:
    """Return the question what the data is, with the meaning of each format."""
    names = tuple(text(f"knob.data.format.choice.{name}") for name in formats)
    return Question(id="format", question=question, choices=tuple(formats), names=names, field="data.format")


def ask_columns(
    columns: Sequence[str], rows: Sequence[Values], chosen: Mapped, formats: Sequence[str]
) -> tuple[Question, ...]:
    """Return what to ask of a data set none of whose names are known: its question and its answer, or its text.

    What was `chosen` is not asked again. formats: the likeliest first, to be asked for where a name is known and what
    it names is not there. Raises StudioError where no column holds words.
    """
    columns = [*columns[:MOST_COLUMNS], *(name for name in columns[MOST_COLUMNS:] if name in chosen.values())]
    known = [*measure_columns([name for name in columns if name not in chosen.values()], rows).values()]
    spoken = [one for one in known if one.spoken]
    questions = order_questions(known)
    named = {*LISTS, *CHOSEN, *REJECTED, *LABEL, *IMAGES, "input_ids"}
    if len(columns) == 1 and spoken and simplify(spoken[0].name) in named:
        what = text("data.sniff.unknown", columns=show_names(columns))
        return (ask_format(what, tuple(formats)),)
    if not questions and not chosen:
        raise StudioError(
            text("data.sniff.nothing"),
            text("data.sniff.nothing.why", columns=show_names(columns)),
            text("data.sniff.nothing.fix"),
        )
    wholes = [one.name for one in questions if holds_several(one, known, rows)]
    questions.sort(key=lambda one: one.name in wholes)
    halves = None
    if set(chosen) <= {"prompt"}:
        every = [*measure_columns(columns, rows).values()] if chosen else known
        halves = find_halves(every, rows) or find_corrected(every, rows)
        halves = halves if halves and chosen.get("prompt", halves[0]) == halves[0] else None
    if halves and not chosen:
        front = next(one for one in known if one.name == halves[0])
        questions = [front, *(one for one in questions if one is not front)]
    question = chosen.get("prompt") or (questions[0].name if questions else "")
    others = [one for one in known if one.name != question]
    if question and not chosen and _only_asks(question, rows) and not any(one.is_prose for one in others):
        raise _refuse_open(question)
    # What is read helps to tell what is written for it, also where the person has named it.
    beside = [name for name in columns if name == question or name not in chosen.values()]
    all_known = [*measure_columns(beside, rows).values()]
    answers = [one for one in order_answers(all_known, question) if not _says_one(one)]
    wholes += [one.name for one in answers if holds_several(one, all_known, rows)]
    # What stands in the question already is not to be learned as its answer.
    answers.sort(key=lambda one: one.name in wholes or (one.is_prose and repeats(one.name, [question], rows)))
    lone = len(questions) == 1 and len(spoken) == 1 and not _find_codes(known, questions)
    if not chosen and lone and not any(map(is_answer, answers)):
        if _holds_lists(spoken[0].name, rows):
            what = text("data.ask.turns", column=shorten(spoken[0].name))
            return (ask_format(what, ("messages",)),)
        if not answers and not spoken[0].structured and not _says_one(spoken[0]):
            return (ask_choice("text", "data.ask.text", spoken),)
        if not answers:
            raise StudioError(
                text("data.sniff.nothing"),
                text("data.sniff.nothing.why", columns=show_names(columns)),
                text("data.sniff.nothing.fix"),
            )
    if not chosen and (document := find_alone(known, rows)):
        return (ask_choice("text", "data.ask.text", [document]),)
    if not chosen and _is_alone(question, answers, rows):
        return (ask_choice("text", "data.ask.text", [one for one in questions if one.is_prose or one.coded]),)
    if not chosen and _is_whole(question, known, rows):
        return (ask_choice("text", "data.ask.text", [one for one in questions if one.is_prose]),)
    codes = _find_codes(known, questions) if not chosen else None
    if codes:
        question, questions, answers = codes.name, [codes, *questions], questions
    # What is a name, or a kind, is put last; only the person knows that it is none.
    questions += [one for one in spoken if one.distinct > 1 and one not in questions]
    if halves:
        answers.sort(key=lambda one: one.name != halves[1])
    asked = []
    if "prompt" not in chosen:
        asked.append(ask_choice("prompt", "data.ask.prompt", questions))
        answers += [one for one in questions if one.name == question]
    if "completion" not in chosen:
        asked.append(ask_choice("completion", "data.ask.completion", answers))
    asked = [one for one in asked if one.choices]
    read = [name for name in beside if is_material(name) and not REMARKS & {*part_name(name)}]
    if chosen.get("prompt") and len(asked) == 1 and {*asked[0].choices} <= {*read}:
        # What is read with a prompt does not answer it.
        return (ask_format(text("data.ask.open", column=shorten(question)), ("rl", "prompt_completion")),)
    if (
        chosen.get("prompt")
        and len(asked) == 1
        and (labels := _list_sorting(question, asked[0].choices, all_known))
    ):
        what = text("data.ask.sorted", column=shorten(question), labels=show_names(labels))
        return (ask_format(what, ("rl", "prompt_completion")),)
    if len(asked) == 2 and len({*asked[0].choices, *asked[1].choices}) == 1:
        raise _refuse_open(question)  # nothing answers what nothing asks
    if not asked and question:
        raise _refuse_open(question)
    return tuple(asked)


def _says_one(one: Column) -> bool:
    """Return whether a column holds one and the same in all rows, and is no label of a file sorted by its labels."""
    words = {*part_name(one.name)}
    found = words & (JUDGED | GRADED | TRUE) or is_answer(one)
    return one.distinct == 1 and one.rows >= SAME_ROWS and not found


def _find_codes(columns: Sequence[Column], questions: Sequence[Column]) -> Column | None:
    """Return the codes in front of the only text of a table, which they stand for, as `P0100`; None for others."""
    rest = [one for one in columns if one not in questions]
    if len(questions) != 1 or len(rest) != 1 or columns[0] is not rest[0] or not questions[0].plain:
        return None
    code, short = rest[0], CODE_CHARACTERS >= rest[0].characters
    named = {*part_name(code.name)} & (DATED | TECHNICAL | {"id"})
    own = code.rows > 1 and code.distinct == code.rows and code.plain and not code.counted
    return code if own and short and not named and any(map(str.isalpha, code.sample)) else None


def _list_sorting(question: str, choices: Sequence[str], known: Sequence[Column]) -> list[str]:
    """Return `choices` where each is a label that sorts what asks, and none that somebody found out; else []."""
    asking = next((one for one in known if one.name == question), None)
    asks = asking is not None and asking.is_prose and hints(asking, (*QUESTIONS, "prompt"))
    labels = [one for one in known if one.name in choices]
    sorting = all(
        not is_answer(one)
        and (one.is_labels or one.distinct == 1 or (one.filled < MOSTLY and one.words <= TAG_WORDS))
        and not {*part_name(one.name)} & (JUDGED | TRUE)
        for one in labels
    )
    return [one.name for one in labels] if asks and labels and sorting else []


def _refuse_open(question: str) -> StudioError:
    return StudioError(
        text("data.sniff.unanswered"),
        text("data.sniff.unanswered.why", column=shorten(question)),
        text("data.sniff.unanswered.fix"),
    )


def _is_alone(question: str, answers: Sequence[Column], rows: Sequence[Values]) -> bool:
    """Return whether all that could be learned beside a text is the text once more, or the same in all rows."""
    texts = [one for one in answers if one.is_prose or one.coded]
    others = [one for one in answers if one not in texts]
    return (
        bool(texts)
        and all(one.coded and repeats(one.name, [question], rows) for one in texts)
        and not any(one.distinct > 1 and (one.spoken or is_answer(one)) for one in others)
    )


def _is_whole(question: str, known: Sequence[Column], rows: Sequence[Values]) -> bool:
    """Return whether the only text of a row is an example already, at whose end its answer stands once more."""
    texts = [
        one for one in known if one.is_prose and one.plain and not one.is_labels and one.words >= WHOLE_WORDS
    ]
    if [one.name for one in texts] != [question]:
        return False
    return any(is_answer(one) and ends_with(question, one.name, rows) for one in known if one is not texts[0])


def _only_asks(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of texts that are questions throughout."""
    said = [one for row in rows for one in (row.get(name) or ()) if isinstance(row.get(name), (list, tuple))]
    asking = [isinstance(one, str) and is_asking(one) for one in said]
    return bool(said) and sum(asking) > 0.6 * len(said)


def _holds_lists(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of several texts."""
    cells = [row[name] for row in rows if row.get(name)]
    return all(isinstance(cell, (list, tuple)) for cell in cells) and any(len(cell) > 1 for cell in cells)


def ask_choice(
    role: str, id: str, columns: Sequence[Column], *, none: bool = False, none_first: bool = False
) -> Question:
    """Return the question which of `columns` plays a role; `none`: it may be none of them."""
    choices: list[tuple[str, Text]] = [(one.name, name_column(one)) for one in columns]
    if none:
        nothing = ("", text(f"{id}.none"))
        choices = [nothing, *choices] if none_first else [*choices, nothing]
    return Question(
        id=f"mapping.{role}",
        question=text(id, columns=show_names([one.name for one in columns])),
        choices=tuple(choice for choice, _ in choices),
        names=tuple(name for _, name in choices),
        field=f"data.mapping.{role}",
    )


def name_column(column: Column) -> Text:
    """Return a column with the beginning of its first cell."""
    return text("data.ask.column", column=shorten(column.name), sample=column.sample)


def ask_role(
    role: str,
    names: Sequence[str],
    rows: Sequence[Values],
    *,
    question: str = "",
    thoughts: str = "",
    ranked: bool = False,
) -> Question:
    """Return the question which of the columns `names` plays a role; `ranked`: put the likeliest first.

    question, thoughts: the columns of the question and of what was thought before the answer, where they are known.
    """
    known: Mapping[str, Column] = measure_columns(names, rows)
    if ranked:
        order = (
            order_answers([*known.values()], question)
            if role in ANSWERING
            else order_questions([*known.values()])
        )
        ranks = [one.name for one in order]
        names = [*ranks, *(name for name in names if name not in ranks)]
    if thoughts:
        # Who had the thoughts wrote the answer that follows from them: `deepseek_reasoning`, `deepseek_solution`.
        names = sorted(names, key=lambda name: part_name(name)[:1] != part_name(thoughts)[:1])
    asked = {"instruction": "prompt", "output": "completion"}.get(role, role)
    told = text(f"data.ask.{asked}" if asked in ("prompt", "completion", "text") else "data.ask.role",
                role=text(f"ui.dataset.role.{role}"))  # fmt: skip
    return Question(
        id=f"mapping.{role}",
        question=told,
        choices=tuple(names),
        names=tuple(name_column(known[name]) for name in names),
        field=f"data.mapping.{role}",
    )
