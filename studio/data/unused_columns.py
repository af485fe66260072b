"""What becomes of columns that are left over and hold much of a row's words: read before the question, or left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studio.core.i18n import text
from studio.data.annexes import (
    ORDERS,
    TASKS,
    cites,
    holds_objects,
    is_annex,
    is_another,
    is_behind,
    is_read,
    lists_key_words,
    tell_apart,
)
from studio.data.column_questions import ANSWERING, ask_choice, ask_format, ask_role
from studio.data.columns import LOOKED_AT, WORDY, Column, joins, measure_columns, repeats, resembles
from studio.data.dataset_kinds import ASKING, NUMBERED, explains, find_entry
from studio.data.formats.aliases import (
    ANSWERS,
    EXPECTED,
    INSTRUCTION,
    LABEL,
    MATERIAL,
    PRODUCTS,
    QUESTIONS,
)
from studio.data.formats.cells import Values, show_names
from studio.data.formats.checkers import find_checkers
from studio.data.formats.column_names import BLOCKING, find_core, is_guessed, part_name, simplify
from studio.data.formats.column_relations import are_rivals, judges
from studio.data.formats.context import MATERIALS, TECHNICAL, is_remark, say_material
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import holds_turns
from studio.data.labels import SORTING, points_into
from studio.data.likelihood import ASIDE, NOTED, THOUGHTS, TRACES
from studio.data.open_question import Question
from studio.data.ranking import DATED, JUDGED, MADE, THINKING, are_drafts, is_drafted, is_wrong
from studio.data.related_names import (
    are_twins,
    are_versions,
    extends,
    hints,
    is_half,
    is_in_language,
    is_language,
    is_renewed,
)
from studio.data.whole_examples import (
    SIGNS_CHARACTERS,
    ends_with,
    find_heads,
    is_linked,
    says_again,
    writes_out,
)

VARIED = 0.8
"""Of the rows, so many different cells are no kinds of them."""
SHARE = 0.15
"""A column with less of a row's letters, and ..."""
CHARACTERS = 200
"""... fewer of them than this is left out with a note and no question."""
SORTED = 0.7
"""Of the rows, so many different cells at most has what sorts them."""
FORMS = frozenset(
    "transliteration transliterated romanization romanized romaji pinyin phonetic phonemes ipa".split()
)
"""Words in the names of what stands beside it in another script."""
LONGER = 3
"""So many times longer than the answer is what was found for it, and no other answer."""
TALKS = ("messages", "conversations")
"""Roles of lists of turns."""
COMPARED = ("chosen", "rejected", "first", "second", "rated")
"""Roles of answers of which one is better."""
ASKED = ("prompt", "instruction", "text")
"""Roles of what is read."""


def find_rest(
    format: Format, mapping: Mapped, spared: Sequence[str], columns: Sequence[str], rows: Sequence[Values]
) -> list[Column]:
    """Return the columns that carry a good part of a row's words, and which neither `mapping` nor `spared` names.

    What only repeats the columns in use does not count.
    """
    used = [name for name in columns if name in {*mapping.values(), *spared}]
    known = measure_columns(columns, rows)
    # Of two columns for the same role the person, or a format's own order, has chosen one.
    # A label rivals no text that is called an answer: it was found for both texts.
    told = [
        role
        for role, name in mapping.items()
        if role in ANSWERING and name in known and not known[name].is_prose and known[name].is_labels
    ]
    rivals = {
        name for role in mapping if role not in (*MATERIALS, *told) for name in format.roles.get(role, ())
    }
    rest = [one for name, one in known.items() if name not in used and one.is_prose]
    asked = [mapping[role] for role in ASKED if role in mapping]
    rest = [
        one
        for one in rest
        if not {simplify(one.name), find_core(one.name)} & rivals
        or any(are_twins(one.name, name) for name in asked)
        # A `query` of a database is no other wording of a question.
        or (one.coded and one.plain and not any(known[name].coded for name in asked))
    ]
    if format.name == "rl":
        checkers = find_checkers(columns, rows)
        rest = [one for one in rest if one.name not in checkers]
    # A licence or a source that is the same in every row is no part of it.
    rest = [one for one in rest if one.distinct > 1 or not {*part_name(one.name)} & ASIDE]
    rest = [one for one in rest if not is_linked(one, rows)]
    answers = [known[mapping[role]] for role in ANSWERING if mapping.get(role) in known]
    read = [name for role, name in mapping.items() if name and role not in ANSWERING]
    rest = [one for one in rest if not any(is_behind(one, answer, read, columns, rows) for answer in answers)]
    if format.name == "text":
        rest = [one for one in rest if not (one.structured and is_annex(one, rows))]
    rest = [one for one in rest if not _sorts_rows(one)]
    if not {"first", "rated"}.isdisjoint(mapping):
        rest = [one for one in rest if not judges(one.name)]  # which may tell the better answer
    talks = [mapping[role] for role in TALKS if role in mapping]
    rest = [
        one
        for one in rest
        if not any(writes_out(one.name, talk, rows) or says_again(one.name, talk, rows) for talk in talks)
    ]
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
        # What a list was made for stands in the title above it: the dish whose ingredients are read.
        heads = find_heads(asked[0], columns, rows)
        heavy += [known[name] for name in heads if name not in used and known[name] not in heavy]
    if asked and answers and not tell_apart(read, answers[0].name, rows):
        others = [one for name, one in known.items() if name not in used and one not in heavy]
        heavy += [one for one in others if one.distinct > 1 and cites(one, answers[0], rows)]
    if asked and learned:
        # Its twin is no smaller for all the other forms in which both are written out.
        heavy += [
            one for one in rest if one not in heavy and any(are_twins(one.name, name) for name in asked)
        ]
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
            and (
                is_half(one.name, [*used, *(other.name for other in heavy)])
                or (
                    one.plain
                    and one.is_prose
                    and one.distinct > 1
                    and (unnamed or _sets_task(one, known[asked[0]]))
                )
            )
        ]
    # What became of a text holds most of it, which is to be read all the same.
    old = [one for one in rest if any(is_renewed(name, one.name) for name in learned)]
    if asked and learned:
        # A wrong answer became no right one.
        old = [one for one in old if not is_wrong(one, known[asked[0]], known[learned[0]], rows)]
    if asked and learned and _says_whether(known[learned[0]], rows):
        # What is said with yes or no of a text is said of it together with what stands beside it.
        old += [one for name, one in known.items() if name not in used and _is_varied(one, rows)]
    if asked and learned and (known[learned[0]].is_labels or _says_whether(known[learned[0]], rows)):
        # What is found out about words in a text is found out about these words.
        old += [one for name, one in known.items() if name not in used and points_into(one, used, rows)]
    if asked and learned and hints(known[learned[0]], LABEL) and known[learned[0]].is_labels:
        # A label beside two texts was found for both, however short one of them is.
        old += [one for one in rest if one not in old and one.plain and _is_varied(one, rows)]
    old += [
        one for one in rest if one not in old and any(is_another(one, answer, rows) for answer in answers)
    ]
    heavy += [one for one in old if one not in heavy]
    if asked and learned:
        heavy = [one for one in heavy if one in old or not joins(one.name, [asked[0], learned[0]], rows)]
    return [
        one
        for one in heavy
        if one in old or not (repeats(one.name, used, rows) or joins(one.name, used, rows))
    ]


def _sorts_rows(one: Column) -> bool:
    """Return whether a column's name and its cells, which come again and again, say that it only sorts the rows."""
    return (
        bool({*part_name(one.name)} & SORTING) and one.distinct <= SORTED * one.rows and one.words < 2 * WORDY
    )


def _says_whether(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column holds nothing but 0 and 1, and is called a label."""
    cells = {str(row.get(one.name)) for row in rows[:LOOKED_AT]}
    return hints(one, LABEL) and cells == {"0", "1"}


def _is_varied(one: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column's words differ from row to row, and it is no fact of the row: no numbers, no objects."""
    words = {*part_name(one.name)}
    told = words & (NOTED | TECHNICAL | DATED | BLOCKING) or not any(map(str.isalpha, one.sample))
    told = told or holds_objects(one.name, rows)
    return one.spoken and not told and one.distinct > VARIED * one.rows and one.rows > 1


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
        words = mapping.get("text", "")
        sums = measure_columns([words, *(one.name for one in rest)], rows)[words].sums
        asking = any({*part_name(one.name)} & TASKS or words in one.sums or one.name in sums for one in rest)
        asking = asking or any(
            (one.asks > 0.5 and one.plain) or {*part_name(one.name)} & (MADE | THOUGHTS | JUDGED)
            for one in rest
        )
        formats = ("text", "prompt_completion")
        return (ask_format(what, formats[::-1] if asking else formats),)
    thoughts = [one for one in rest if {*part_name(one.name)} & (THOUGHTS | THINKING | TRACES)]
    # What explains a score belongs to the score.
    thoughts = [one for one in thoughts if not {*part_name(one.name)} & BLOCKING]
    # `Explanation` goes before `Pre-Revision Explanation`.
    thoughts.sort(key=lambda one: len(part_name(one.name)))
    if thoughts and "reasoning" in format.roles and "reasoning" not in mapping and "reasoning" not in chosen:
        return (ask_choice("reasoning", "data.ask.thoughts", thoughts[:1], none=True),)
    rest = [one for one in rest if one not in thoughts or "reasoning" not in chosen]
    free = [role for role in MATERIALS if role in format.roles and role not in mapping]
    answer = next((mapping[role] for role in ANSWERING if role in mapping), "")
    if any(
        chosen.get(role) for role in ANSWERING
    ):  # who has chosen among several answers knows of the others
        rest = [one for one in rest if not are_rivals(one.name, answer)]
    if not rest or not free or any(chosen.get(role) == "" for role in MATERIALS):
        return ()
    asked = next((mapping[role] for role in ASKED if role in mapping), "")
    used = measure_columns([name for name in mapping.values() if name], rows)
    wrong = [
        one for one in rest if {asked, answer} <= {*used} and is_wrong(one, used[asked], used[answer], rows)
    ]
    told = [one.name for one in rest if one.plain and one not in wrong and _answers_too(one, answer, rows)]
    role = next((role for role in ANSWERING if role in mapping and role not in chosen), "")
    if told and role:
        return (ask_role(role, [answer, *told], rows),)
    compared = [mapping[role] for role in COMPARED if role in mapping]
    aside = [
        one
        for one in rest
        if one in thoughts
        or one in wrong
        or (answer and hints(used[answer], EXPECTED) and hints(one, ANSWERS))
        or is_remark(one.name, rows)
        or (_tells(one, answer, rows) and not is_renewed(answer, one.name))
        or any(extends(one.name, name) or is_in_language(one.name, name) for name in mapping.values())
        or are_versions(one.name, asked)
        or is_drafted(one.name, answer)
        or (_is_variant(one, [*used], rows) and not is_renewed(answer, one.name))
        or (answer and ends_with(one.name, answer, rows, SIGNS_CHARACTERS))
        or ("choices" in mapping and {*part_name(one.name)} & {"option", "options", "choice", "choices"})
        or (
            one.coded
            and not is_renewed(answer, one.name)
            and _is_form(one, [known for known in (answer, asked) if known], rows)
        )
        or any(repeats(name, [one.name], rows) for name in compared)
        or (asked and _wraps(one.name, asked, rows))
        or is_annex(one, rows)
        or (lists_key_words(one, rows) and not (answer and used[answer].is_labels))
        or are_drafts(one.name, answer)
        or (_asks_again(one, used) and not are_twins(one.name, asked))
        or (hints(one, EXPECTED) and (not answer or (one.plain and not hints(one, ("reference",)))))
        or (simplify(asked) == "prompt" and not is_read(one))
        or {*part_name(one.name)} & FORMS
        or is_guessed(one.name, [answer])
        or explains(one.name, answer, asked)
        or (asked and _is_question_again(one, used[asked], rows))
    ]
    extracted = [one for one in rest if asked and points_into(one, [asked], rows)]
    if len(extracted) > 1 and not hints(used[asked], QUESTIONS):
        aside += [
            one for one in extracted if one not in aside
        ]  # what was found in a text is not read with it
    entry = find_entry([*used.values()])
    # An example of a word shows what is asked for.
    aside = rest if entry and (entry[0].name, entry[1].name) == (asked, answer) else aside
    if answer in used and used[answer].is_labels:
        # What a label says of two texts is found out about both, however much they are alike.
        read = [one for one in aside if are_twins(one.name, asked) or _is_judged(one, answer)]
        read += [one for one in aside if one.structured and points_into(one, [asked], rows)]
        aside = [one for one in aside if one not in read]
    if answer in used and not tell_apart([name for name in used if name != answer], answer, rows):
        aside = [one for one in aside if not cites(one, used[answer], rows)]
    order = [one for one in rest if one not in aside]
    order.sort(key=lambda one: not are_twins(one.name, asked))
    return (ask_choice(free[0], "data.ask.material", [*order, *aside], none=True, none_first=not order),)


def _answers_too(one: Column, answer: str, rows: Sequence[Values]) -> bool:
    """Return whether a text beside an answer may be what is learned instead: the true answer, or feedback on this one.

    Feedback on a piece of work is itself an answer to it, and what a program said is checked against what is true.
    """
    if {*part_name(one.name)} & {"feedback", "critique"}:
        return True
    learned = measure_columns([answer], rows).get(answer) if answer else None
    if learned is not None and is_another(one, learned, rows):
        return True
    true = hints(
        one, ("ground_truth", "gt", "gold_answer", "reference_answer", "expected_answer", "key", "answer_key")
    )
    return true and learned is not None and learned.is_prose and not hints(learned, EXPECTED)


def _is_variant(one: Column, used: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether a column is one in use before it was revised, by its words, or by its name: `question_ori`."""
    words = part_name(one.name)
    named = any(
        len(part_name(name)) == len(words) - 1 and words[:-1] == part_name(name) and not MADE & {words[-1]}
        for name in used
    )
    return (named and not is_read(one)) or any(resembles(one.name, name, rows) for name in used)


def _is_form(one: Column, names: Sequence[str], rows: Sequence[Values]) -> bool:
    """Return whether code is another form of code in use, by the last word of their names: `ast_function`."""
    last = part_name(one.name)[-1:]
    coded = [other for other in measure_columns(names, rows).values() if other.coded]
    return any(part_name(other.name)[-1:] == last for other in coded)


def _is_judged(one: Column, answer: str) -> bool:
    """Return whether a text is called an answer beside a label: it is what the label was found for."""
    words = {*part_name(answer)}
    known = words & {"expected", "truth", "gold", "reference"}  # beside which it is held against it
    return one.is_prose and bool({*part_name(one.name)} & {*ANSWERS}) and not (words & TASKS or known)


def _is_question_again(one: Column, asked: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column is what is asked once more: with a little around it, or as a list of questions."""
    asking = hints(one, QUESTIONS) or bool({*part_name(one.name)} & {"queries", "questions"})
    listed = asking and not one.plain and not hints(asked, QUESTIONS)
    around = one.plain and one.characters < 2 * asked.characters and repeats(asked.name, [one.name], rows)
    return listed or around


def _asks_again(one: Column, used: Mapping[str, Column]) -> bool:
    """Return whether a column is another question beside the one that is answered."""
    return one.asks > ASKING and any(other.asks > ASKING for other in used.values())


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
