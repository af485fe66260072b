"""Whether a reading that asks nothing is sure: what it leaves out is looked at once more, for what speaks against it.

A reading is found by names and cells that fit. Here the columns that it does not use are asked what they are: one that
is called an answer, where the one that is learned is not; a label of an answer; signs that nobody reads, of the kind
in which the answers are written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from studio.core.i18n import text
from studio.data.annexes import cites, is_another
from studio.data.column_questions import ANSWERING, ask_choice, ask_format, ask_role
from studio.data.columns import LOOKED_AT, Column, measure_columns, repeats
from studio.data.context_evidence import is_noted
from studio.data.dataset_kinds import TITLES
from studio.data.formats.cells import Values, is_address, is_asking, is_empty, is_hash, shorten
from studio.data.formats.choices import find_series
from studio.data.formats.column_names import part_name, simplify
from studio.data.formats.context import MATERIALS, TECHNICAL
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import find_turns
from studio.data.formats.roles import read_role
from studio.data.grading import ORIGINS, ask_labels
from studio.data.open_question import Question
from studio.data.ranking import DATED, GRADED, MOSTLY, TOLD, is_answer, is_wrong
from studio.data.related_names import hints, is_renewed
from studio.data.unused_columns import ASKED, VARIED

ASIDE = (
    ORIGINS
    | DATED
    | TECHNICAL
    | {"type", "difficulty", "level", "topic", "genre", "tag", "tags", "locale", "style"}
)
"""Words in the names of labels that only say where a row is from, or of what kind it is."""
KNOWN = (
    "reference",
    "ground_truth",
    "gt",
    "gold",
    "gold_answer",
    "reference_answer",
    "expected_answer",
    "标准答案",
    "key",
    "answer_key",
)
"""Names of what an answer is known to be; beside them stands what somebody, or a program, answered."""
TALKED = ("messages", "sharegpt")
SUBJECT = ("subject",)
"""What heads a mail, as a title heads an entry."""
MARK = re.compile(
    r"[ \t]*[-*]{0,2}[ \t]*(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?[ \t]+)?"
    r"(?:([^\W\d_][^\n:：=]{0,24}?)[ \t]*[:：][ \t]+\S|([a-z_]{3,12})[ \t]+\")"
)
QUOTED = re.compile(r'"[^"\n]*"')
MOST_FILES = 3
"""Rows of texts that are read as whole files; in a table each text is an example already."""
LINES, FEWEST_MARKS, MARKED = 500, 4, 0.5
QUOTING = 0.8
"""Of the lines, so many hold several quoted cells where they are a table, or ask where none of them answers."""
QUESTION_WORDS = 40
"""A text with more of them that ends with a question mark is an article, or a talk."""
HEADED = 3
"""So many times longer is a text than its title."""
FEWEST_ASKED = 8
"""Of so many lines at the beginning this share begins with a mark that stands there so many times: they are records."""
NO_TALK = 0.2
"""Of the rows, so many without a talk are no few that were broken."""
MISSED, ENDING_CHARACTERS = 0.2, 100
"""Of the answers, so many do not come to what is known to be right, in so many letters at their end."""
SIGNS_CHARACTERS = 12
"""Letters of an average cell from which on signs without words are more than a name or a number."""


def look_again(
    format: Format, mapping: Mapped, columns: Sequence[str], rows: Sequence[Values], chosen: Mapped
) -> tuple[Question, ...]:
    """Return what is to be asked after all of a reading without questions; () where nothing speaks against it.

    chosen: what the person said, which is not asked again.
    """
    if format.name in TALKED:
        missing = _ask_missing(format, mapping, rows) if format.required[0] not in chosen else ()
        return missing or _ask_thoughts(format, mapping, columns, rows, chosen)
    if format.name == "text":
        if "text" in chosen:
            return ()
        asked = _ask_grades(mapping, columns, rows) or _ask_records(mapping["text"], rows)
        return (
            asked or _ask_title(mapping["text"], columns, rows) or _ask_open(mapping["text"], columns, rows)
        )
    role = next((role for role in ANSWERING if role in mapping), "")
    asked = next((mapping[role] for role in ASKED if role in mapping), "")
    known = measure_columns(columns, rows)
    if not rows or not role or not {asked, mapping[role]} <= {*known}:
        return ()
    answer = known[mapping[role]]
    rest = [one for name, one in known.items() if name not in mapping.values()]
    rest = [one for one in rest if one.filled >= MOSTLY and one.distinct > 1 and not cites(one, answer, rows)]
    rest = [one for one in rest if not is_wrong(one, known[asked], answer, rows)]
    # What became of a text is learned, whatever somebody found out about it.
    renewed = is_renewed(answer.name, asked)
    if role not in chosen and not renewed and (told := find_told(answer, rest, rows)):
        names = [one.name for one in told]
        named = any(hints(one, KNOWN) or _is_missed(one, answer, rows) for one in told) or (
            not hints(answer, TOLD) and any(hints(one, TOLD) for one in told)
        )
        names = [*names, answer.name] if named else [answer.name, *names]
        return (ask_role(role, names, rows),)
    free = [one for one in MATERIALS if one in format.roles and one not in mapping]
    if free and not any(chosen.get(one) == "" for one in MATERIALS):
        options = find_series(columns) if "choices" in mapping else ()
        unread = [one for one in rest if one.name not in options and _is_unread(one, answer, rows)]
        if unread:
            return (ask_choice(free[0], "data.ask.material", unread, none=True),)
    return ()


def _ask_grades(mapping: Mapped, columns: Sequence[str], rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question whether grades, or labels, of texts are learned; a tag in words only sorts the texts."""
    known = measure_columns(columns, rows)
    sorting = [one.name for one in known.values() if one.spoken and GRADED & {*part_name(one.name)}]
    return ask_labels(mapping, [name for name in columns if name not in sorting], rows, sure=True)


def _ask_open(name: str, columns: Sequence[str], rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question whether questions that nothing answers are prompts, whose answers are rewarded."""
    asking = measure_columns([name], rows)[name]
    if asking.rows < FEWEST_ASKED or asking.asks < QUOTING or asking.words > QUESTION_WORDS:
        return ()
    return (ask_format(text("data.ask.open", column=shorten(name)), ("rl", "text")),)


def _ask_title(name: str, columns: Sequence[str], rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question whether entries, each under a title of its own that they do not repeat, are learned alone.

    Documents tell where they are from, and a column that is called a text is whole.
    """
    known = measure_columns(columns, rows)
    rest = [one for one in known.values() if one.name != name]
    heads = [
        one for one in rest if one.spoken and one.plain and part_name(one.name)[-1:] in (*TITLES, SUBJECT)
    ]
    told = (ORIGINS | DATED) - {"title"}
    if len(heads) != 1 or simplify(name) == "text" or any({*part_name(one.name)} & told for one in rest):
        return ()
    own = (
        heads[0].distinct > VARIED * heads[0].rows > 1
        and heads[0].characters * HEADED < known[name].characters
    )
    if not own or repeats(heads[0].name, [name], rows):
        return ()
    what = text("data.ask.titled", title=shorten(heads[0].name), text=shorten(name))
    return (ask_format(what, ("text", "prompt_completion")),)


def _ask_records(name: str, rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question whether a text is learned as it stands whose lines are records: `Name: ...`, `".." ".."`."""
    if len(rows) > MOST_FILES:
        return ()
    lines = [
        line for row in rows[:LOOKED_AT] for line in str(row.get(name) or "").splitlines() if line.strip()
    ]
    lines = lines[:LINES]
    marks = Counter((found[1] or found[2]).lower() for line in lines if (found := MARK.match(line)))
    often = {mark: count for mark, count in marks.items() if count >= FEWEST_MARKS}
    records = len(often) > 1 and sum(often.values()) >= MARKED * len(lines)
    quoted = Counter(len(QUOTED.findall(line)) for line in lines)
    cells = sum(count for cells, count in quoted.items() if cells > 1)
    asking = sum(is_asking(line) for line in lines) if len(lines) >= FEWEST_ASKED else 0
    records = (
        records
        or asking >= QUOTING * len(lines) > 0
        or cells >= QUOTING * len(lines) >= QUOTING * FEWEST_MARKS
    )
    if not records:
        return ()
    return (ask_choice("text", "data.ask.text", [*measure_columns([name], rows).values()]),)


def _ask_missing(format: Format, mapping: Mapped, rows: Sequence[Values]) -> tuple[Question, ...]:
    """Return the question whether a file is learned from of which many rows hold no talk: a log, most likely."""
    talk = mapping[format.required[0]]
    missing = sum(is_empty(row.get(talk)) for row in rows)
    if len(rows) < FEWEST_ASKED or missing < NO_TALK * len(rows):
        return ()
    what = text("data.ask.no_talk", column=shorten(talk), missing=missing, all=len(rows))
    return (ask_format(what, (format.name, "text")),)


def _ask_thoughts(
    format: Format, mapping: Mapped, columns: Sequence[str], rows: Sequence[Values], chosen: Mapped
) -> tuple[Question, ...]:
    """Return the question whether thoughts beside a talk are those of its last answer, where it has several answers."""
    column, talk = mapping.get("reasoning", ""), mapping[format.required[0]]
    if not column or "reasoning" in chosen:
        return ()
    several = seen = 0
    for row in rows[:LOOKED_AT]:
        turns = [turn for turn in find_turns(row.get(talk)) or () if isinstance(turn, Mapping)]
        roles = [read_role(turn.get("role", turn.get("from"))) for turn in turns]
        seen += bool(roles)
        several += roles.count("assistant") > 1 or roles[-1:] == ["user"]
    if 2 * several <= seen:
        return ()
    thoughts = [*measure_columns([column], rows).values()]
    return (ask_choice("reasoning", "data.ask.thoughts", thoughts, none=True, none_first=True),)


def find_told(answer: Column, rest: Sequence[Column], rows: Sequence[Values]) -> list[Column]:
    """Return the columns that are called an answer, or a label, where `answer` is not, or is what they judge."""
    told = [one for one in rest if (one.spoken or one.counted or one.is_labels) and not one.structured]
    if hints(answer, TOLD):
        # What people found of an answer is a lesson of its own; with a yes or no it is asked about as a verdict.
        known = [] if hints(answer, KNOWN) else [one for one in told if hints(one, KNOWN) and one.is_prose]
        # What a program answered is held against what is known to be right.
        known = [one for one in known if one.plain and one.filled >= MOSTLY and not answer.is_labels]
        known += [one for one in told if one not in known and _is_missed(one, answer, rows)]
        known = known or [one for one in told if is_another(one, answer, rows)]
        return known or [
            one
            for one in told
            if one.spoken and ((hints(one, ("label", "标签")) and one.is_labels) or _names_labels(one))
        ]
    sorting = [one for one in told if one.is_labels and one.spoken and not {*part_name(one.name)} & ASIDE]
    named = [one for one in told if hints(one, TOLD) and not is_noted(one)]
    # One kind sorts the rows; several were found out about each of them.
    told = named or (sorting if len(sorting) > 1 else [])
    return [one for one in told if not repeats(one.name, [answer.name], rows) or one.is_labels]


def _names_labels(one: Column) -> bool:
    """Return whether a column holds the names of labels: a few that come again and again, called `label_name`."""
    return part_name(one.name)[:1] == ("label",) and 1 < one.distinct <= one.rows / 2 and one.words <= 4


def _is_missed(one: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether what is known to be the answer, in a word or two, is not what long answers come to.

    A worked answer ends with its result; what a program said, and was held against the truth, often does not.
    """
    if not (hints(one, (*KNOWN, "expected")) and one.plain and answer.is_prose and one.filled >= MOSTLY):
        return False
    pairs = [(str(row.get(one.name) or ""), str(row.get(answer.name) or "")) for row in rows[:LOOKED_AT]]
    pairs = [(known.strip().lower(), said.strip().lower()) for known, said in pairs if known and said]
    missed = sum(known not in said[-len(known) - ENDING_CHARACTERS :] for known, said in pairs)
    return bool(pairs) and missed >= MISSED * len(pairs)


def _is_unread(one: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column holds signs without words, other ones in each row, as the answers are such signs."""
    if not one.plain or one.counted or one.is_prose or one.characters < SIGNS_CHARACTERS:
        return False
    if is_noted(one) or is_answer(one):
        return False
    if one.distinct < VARIED * one.rows or answer.is_prose or not answer.plain:
        return False
    cells = [str(row.get(one.name) or "") for row in rows[:LOOKED_AT]]
    return not all(is_address(cell) or is_hash(cell) for cell in cells if cell)
