"""What a person is asked about columns: which holds the question, which the answer, what becomes of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.errors import StudioError
from studio.core.text import Text, text
from studio.data.columns import LOOKED_AT, Column, holds_several, joins, measure_columns, repeats
from studio.data.formats.aliases import (
    CHOSEN,
    IMAGES,
    INSTRUCTION,
    LABEL,
    LISTS,
    MATERIAL,
    PRODUCTS,
    REJECTED,
)
from studio.data.formats.cells import Values, shorten, show_names
from studio.data.formats.choices import counts_from, read_options
from studio.data.formats.format import Format, Mapped
from studio.data.formats.material import MATERIALS, say_material
from studio.data.formats.names import find_core, part_name, simplify
from studio.data.formats.turns import holds_turns
from studio.data.likelihood import ASIDE, THINKING, THOUGHTS, TRACES, order_answers, order_questions
from studio.data.question import Question
from studio.data.ranking import (
    GRADED,
    MADE,
    NUMBERED,
    are_twins,
    extends,
    find_entry,
    hints,
    is_answer,
    is_half,
    is_language,
    is_renewed,
    rank_answers,
)

SHARE = 0.15
"""A column with less of a row's letters, and ..."""
CHARACTERS = 200
"""... fewer of them than this is left out with a note and no question."""
LONGER = 3
"""So many times longer than the answer is what was found for it, and no other answer."""
ANSWERING = ("completion", "output")
"""Roles of what is learned."""
MOST_GRADES = 10
VERDICTS = frozenset(
    "safe correct good helpful accepted valid success successful passed approved acceptable harmless".split()
)
"""Words in the names of columns that say yes or no to an answer."""
FITTING = (
    "label",
    "labels",
    "relevance",
    "relevant",
    "match",
    "is_match",
    "is_relevant",
    "is_answer",
    "is_correct",
)
"""Names of what says with 0 and 1 whether an answer fits."""
COMPARED = ("chosen", "rejected", "first", "second", "rated")
"""Roles of answers of which one is better."""
ASKED = ("prompt", "instruction", "text")
"""Roles of what is read."""
ORDERS = frozenset(
    "message subject instruction instructions description intent issue request comment task prompt msg".split()
)
"""Words in the names of what says how code is to be changed."""
TASKS = frozenset(
    "assignment question prompt task instruction topic aufgabe frage pregunta 题目 问题".split()
)
"""Words in the names of what a piece of work was written for: it is read with it, however short."""


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
    question = chosen.get("prompt") or (questions[0].name if questions else "")
    others = [one for one in known if one.name != question]
    if question and not chosen and _only_asks(question, rows) and not any(one.is_prose for one in others):
        raise StudioError(
            text("data.sniff.unanswered"),
            text("data.sniff.unanswered.why", column=shorten(question)),
            text("data.sniff.unanswered.fix"),
        )
    # What is read helps to tell what is written for it, also where the person has named it.
    beside = [name for name in columns if name == question or name not in chosen.values()]
    answers = order_answers([*measure_columns(beside, rows).values()], question)
    # What stands in the question already is not to be learned as its answer.
    answers.sort(key=lambda one: one.name in wholes or (one.is_prose and repeats(one.name, [question], rows)))
    if not chosen and len(questions) == 1 and len(spoken) == 1 and not any(map(is_answer, answers)):
        if _holds_lists(spoken[0].name, rows):
            what = text("data.ask.turns", column=shorten(spoken[0].name))
            return (ask_format(what, ("messages",)),)
        if not answers:
            return (_ask("text", "data.ask.text", spoken),)
    asked = []
    if "prompt" not in chosen:
        asked.append(_ask("prompt", "data.ask.prompt", questions))
        answers += [one for one in questions if one.name == question]
    if "completion" not in chosen:
        asked.append(_ask("completion", "data.ask.completion", answers))
    return tuple(one for one in asked if one.choices)


def _only_asks(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of texts that are questions throughout."""
    said = [one for row in rows for one in (row.get(name) or ()) if isinstance(row.get(name), (list, tuple))]
    asking = [isinstance(one, str) and one.rstrip().endswith(("?", "？")) for one in said]
    return bool(said) and sum(asking) > 0.6 * len(said)


def _holds_lists(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are lists of several texts."""
    cells = [row[name] for row in rows if row.get(name)]
    return all(isinstance(cell, (list, tuple)) for cell in cells) and any(len(cell) > 1 for cell in cells)


def find_rest(
    format: Format, mapping: Mapped, spared: Sequence[str], columns: Sequence[str], rows: Sequence[Values]
) -> list[Column]:
    """Return the columns that carry a good part of a row's words, and which neither `mapping` nor `spared` names.

    What only repeats the columns in use does not count.
    """
    used = [name for name in columns if name in {*mapping.values(), *spared}]
    known = measure_columns(columns, rows)
    # Of two columns for the same role the person, or a format's own order, has chosen one.
    rivals = {name for role in mapping for name in format.roles.get(role, ()) if role not in MATERIALS}
    rest = [one for name, one in known.items() if name not in used and one.is_prose]
    asked = [mapping[role] for role in ASKED if role in mapping]
    rest = [
        one
        for one in rest
        if not {simplify(one.name), find_core(one.name)} & rivals
        or any(are_twins(one.name, name) for name in asked)
    ]
    # A licence or a source that is the same in every row is no part of it.
    rest = [one for one in rest if one.distinct > 1 or not {*part_name(one.name)} & ASIDE]
    whole = sum(known[name].characters for name in used) + sum(one.characters for one in rest)
    heavy = [one for one in rest if one.characters >= min(SHARE * whole, CHARACTERS)]
    if "instruction" not in format.roles and "prompt" not in format.roles:
        # Beside a talk, the task is a part of it, however short it is, and also where it is the same in all rows.
        tasks = [one for name, one in known.items() if name not in used and one not in heavy]
        heavy += [
            one
            for one in tasks
            if one.spoken
            and one.plain
            and one.words > 2
            and (hints(one, INSTRUCTION) or (format.name == "text" and {*part_name(one.name)} & TASKS))
        ]
    learned = [mapping[role] for role in ANSWERING if role in mapping]
    if asked and learned:
        others = [one for name, one in known.items() if name not in used and one not in heavy]
        if known[asked[0]].coded and known[learned[0]].coded:
            # What is to be changed in code, in however few words.
            words = [one for one in others if one.spoken and one.plain and {*part_name(one.name)} & ORDERS]
            heavy += [
                one
                for n, one in enumerate(words)
                if one.distinct > 1 and not any(repeats(one.name, [other.name], rows) for other in words[:n])
            ]
        unnamed = all(NUMBERED.fullmatch(name) for name in columns)
        heavy += [
            one
            for one in others
            if one not in heavy
            and one.plain
            and (
                is_half(one.name, [*used, *(other.name for other in heavy)])
                or (one.is_prose and one.distinct > 1 and (unnamed or _sets_task(one, known[asked[0]])))
            )
        ]
    return [one for one in heavy if not repeats(one.name, used, rows) and not joins(one.name, used, rows)]


def _sets_task(one: Column, asked: Column) -> bool:
    """Return whether a column says what a text was written for; the topic of a question only sorts it."""
    words = TASKS & {*part_name(one.name)}
    return bool(words - {"topic"}) or (bool(words) and asked.asks < 0.5)


def ask_rest(
    format: Format, mapping: Mapped, chosen: Mapped, rest: Sequence[Column], rows: Sequence[Values]
) -> tuple[Question, ...]:
    """Return what to ask about the columns `rest`, which hold much text that would not be learned from."""
    if not rest:
        return ()
    if format.name == "text":
        names = show_names([one.name for one in rest])
        what = text("data.ask.beside_text", columns=names)
        asking = any({*part_name(one.name)} & TASKS or mapping.get("text") in one.sums for one in rest)
        formats = ("text", "prompt_completion")
        return (ask_format(what, formats[::-1] if asking else formats),)
    thoughts = [one for one in rest if {*part_name(one.name)} & (THOUGHTS | THINKING)]
    if thoughts and "reasoning" in format.roles and "reasoning" not in mapping and "reasoning" not in chosen:
        return (_ask("reasoning", "data.ask.thoughts", thoughts[:1], none=True),)
    rest = [one for one in rest if one not in thoughts or "reasoning" not in chosen]
    free = [role for role in MATERIALS if role in format.roles and role not in mapping]
    if not rest or not free or any(chosen.get(role) == "" for role in MATERIALS):
        return ()
    answer = next((mapping[role] for role in ANSWERING if role in mapping), "")
    compared = [mapping[role] for role in COMPARED if role in mapping]
    asked = next((mapping[role] for role in ASKED if role in mapping), "")
    aside = [
        one
        for one in rest
        if one in thoughts
        or (_tells(one, answer, rows) and not is_renewed(answer, one.name))
        or any(extends(one.name, name) for name in mapping.values())
        or any(repeats(name, [one.name], rows) for name in compared)
        or (asked and _wraps(one.name, asked, rows))
    ]
    used = measure_columns([name for name in mapping.values() if name], rows)
    entry = find_entry([*used.values()])
    # An example of a word shows what is asked for.
    aside = rest if entry and (entry[0].name, entry[1].name) == (asked, answer) else aside
    order = [one for one in rest if one not in aside]
    order.sort(key=lambda one: not are_twins(one.name, asked))
    return (_ask(free[0], "data.ask.material", [*order, *aside], none=True, none_first=not order),)


def _wraps(name: str, asked: str, rows: Sequence[Values]) -> bool:
    """Return whether a column is a prompt, written out, around what is asked."""
    return "prompt" in part_name(name) and repeats(asked, [name], rows)


def _tells(one: Column, answer: str, rows: Sequence[Values]) -> bool:
    """Return whether a column may tell the answer that is to be learned: it is another one, or holds it."""
    words = part_name(one.name)
    words = {*words} if words[-1:] == ("source",) else {*words} - {"source"}
    said = sum(len(say_material(row.get(answer))) for row in rows[:LOOKED_AT]) if answer else 0
    read = sum(len(say_material(row.get(one.name))) for row in rows[:LOOKED_AT])
    other = words & MADE and not read >= LONGER * said > 0
    if words & (ASIDE | TRACES) or other or (is_language(answer) and is_language(one.name)):
        return True
    if hints(one, PRODUCTS) and simplify(one.name) not in MATERIAL:
        return True
    if any(holds_turns(row.get(one.name)) for row in rows[:LOOKED_AT]):
        return True
    told = seen = 0
    for row in rows[:LOOKED_AT] if answer else ():
        said, read = (say_material(row.get(name)).strip() for name in (answer, one.name))
        if said and read:
            seen += 1
            told += 2 * len(said) > len(read) and said in read
    return bool(seen) and 2 * told > seen


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
    known = measure_columns([name for name in columns if name not in mapping.values()], rows)
    named = [one for one in known.values() if hints(one, LABEL) and one.rows and one.distinct > 1]
    named += [one for one in rank_answers([*known.values()], "") if is_answer(one) and one not in named]
    named += [
        one for one in known.values() if simplify(one.name) in GRADED and _grades(one) and one not in named
    ]
    flags = [one for one in known.values() if _is_flag(one.name, rows) and one.distinct == 2]
    named += [one for one in flags if len(flags) > 1 and one not in named]
    labels = named or [one for one in known.values() if not sure and one.spoken and one.is_labels]
    if not labels:
        return ()
    what = text("data.ask.labels", column=shorten(labels[0].name), sample=labels[0].sample)
    return (ask_format(what, ("prompt_completion", "text")),)


def _is_flag(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds nothing but 0 and 1, as what is found out about a text is written."""
    cells = [row.get(name) for row in rows[:LOOKED_AT]]
    return bool(cells) and all(str(cell) in ("0", "1") for cell in cells)


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
        # A label of 0 and 1 beside a question and its answer says whether they belong together.
        judged = judged or (simplify(name) in FITTING and {*map(str, told)} == {"0", "1"})
        if name not in used and judged and len({*told}) == 2:
            bad = sum(str(cell) in ("0", "False") for cell in told)
            what = text("data.ask.verdict", column=shorten(name), bad=bad, all=len(told))
            return (ask_format(what, (format.name, "kto")),)
    return ()


def _grades(one: Column) -> bool:
    """Return whether a column holds a few grades that come again and again."""
    return 1 < one.distinct <= min(MOST_GRADES, one.rows / 2)


def _ask(
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
    role: str, names: Sequence[str], rows: Sequence[Values], *, question: str = "", ranked: bool = False
) -> Question:
    """Return the question which of the columns `names` plays a role; `ranked`: put the likeliest first.

    question: the column of the question, where it is known.
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
