"""Which questions about columns answer themselves: names, cells and how columns hang together say the same.

What is decided here is told as a reason. All questions of a data set answer themselves, or all are asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from studio.core.i18n import Text, text
from studio.data.annexes import ORDERS, lists_key_words, takes
from studio.data.columns import LOOKED_AT, Column, measure_columns, repeats
from studio.data.context_evidence import NO_ANSWER, are_answered, is_noted, is_second, weigh_material
from studio.data.dataset_kinds import find_entry, find_remark
from studio.data.formats.aliases import (
    ANSWERS,
    EXPECTED,
    INPUT,
    INSTRUCTION,
    LABEL,
    MATERIAL,
    PRODUCTS,
    QUESTIONS,
    SOURCES,
)
from studio.data.formats.cells import Values, is_empty, shorten, show_names
from studio.data.formats.checkers import are_sure, find_checkers
from studio.data.formats.column_names import BLOCKING, part_name, simplify
from studio.data.formats.format import Mapped
from studio.data.formats.message_parsing import holds_turns
from studio.data.labels import find_label
from studio.data.likelihood import (
    ASIDE,
    BESIDE,
    NOTED,
    READ,
    THOUGHTS,
    TRACES,
    WRITTEN,
    rank_pairs,
)
from studio.data.open_question import Question
from studio.data.prompt_answers import SENTENCE, list_worded
from studio.data.ranking import (
    DECISIONS,
    GRADED,
    JUDGED,
    MADE,
    MOSTLY,
    OWN,
    THINKING,
    describes_code,
    find_right,
    heads_document,
    is_answer,
    is_one_of_several,
    is_test,
)
from studio.data.related_names import (
    OLD,
    RENEWED,
    are_sides,
    are_twins,
    hints,
    is_half,
    is_language,
    is_renewed,
)
from studio.data.whole_examples import REVIEWED, is_part

HEADS = frozenset("title headline heading name".split())
"""Names of what heads a text."""
LIKELY = 0.75
"""So likely is a pair that needs no asking, where the names of one side say the same and no column competes."""
DOCUMENT = 25
"""Words from which on the only text of a row is a document."""
HEADING = 4
"""So many times shorter than the answer is a title, which is no other answer."""
SHORT = 0.5
"""Of the rows, so many different short answers are no labels."""
ASKING = 0.8
"""Share of cells that end in a question mark in a column of questions; a column of answers has few."""
TELLING = 0.2


def weigh(
    question: Question,
    columns: Sequence[str],
    rows: Sequence[Values],
    mapping: Mapped,
    also: Sequence[Question],
) -> Text | None:
    """Return why the first choice of `question` needs no asking; None where it does.

    mapping: role -> column as far as known; also: the questions that would be asked with it.
    """
    first = question.choices[0] if question.choices else ""
    if question.id == "format":
        return _weigh_format(question.choices, columns, rows, mapping)
    role = question.field.removeprefix("data.mapping.")
    if role == "text" and len(question.choices) == 1:
        one = measure_columns([first], rows)[first]
        plain = one.is_prose and one.plain and one.words >= DOCUMENT and one.asks < TELLING
        plain = plain or (one.coded and one.plain)
        return text("data.evidence.document", column=shorten(first)) if plain else None
    if role in ("prompt", "completion", "output", "instruction"):
        others = {one.field.removeprefix("data.mapping."): one.choices[0] for one in also if one.choices}
        said = {**others, **mapping, role: first}
        asked = said.get("prompt") or said.get("instruction") or ""
        learned = said.get("completion") or said.get("output") or ""
        used = [name for name in mapping.values() if name not in (asked, learned)]
        if role == "prompt" and len(question.choices) == 1 and "completion" in mapping:
            named = {*part_name(first)} & READ
            return _tell(asked, learned) if named else None
        return _weigh_pair(asked, learned, used, columns, rows)
    if role == "reasoning" and ({*part_name(first)} & THINKING or _leads_to(first, columns, rows, mapping)):
        return text("data.evidence.thoughts", column=shorten(first))
    if role.startswith("material"):
        return weigh_material(first, [one for one in question.choices if one], columns, rows, mapping)
    return None


def _leads_to(first: str, columns: Sequence[str], rows: Sequence[Values], mapping: Mapped) -> bool:
    """Return whether a rationale, of sentences, leads to an answer of a few words; other explanations follow one."""
    known = measure_columns(columns, rows)
    answer = known.get(mapping.get("completion") or mapping.get("output") or "")
    short = answer is not None and not answer.is_prose and not answer.coded
    return short and known[first].is_prose and bool({*part_name(first)} & {"rationale", "rationales"})


def _weigh_format(
    choices: Sequence[str], columns: Sequence[str], rows: Sequence[Values], mapping: Mapped
) -> Text | None:
    """Return why talks are talks beside a text, and answers and labels such; None where two forms are there."""
    known = [*measure_columns(columns, rows).values()]
    known_answer = measure_columns(columns, rows).get(mapping.get("answer", ""))
    counted = known_answer is None or not known_answer.is_prose
    checkers = find_checkers(columns, rows) if choices[0] == "rl" and counted else ()
    if checkers and ("answer" in mapping or are_sure(checkers, mapping.get("prompt", ""), rows)):
        return text("data.evidence.checked", columns=show_names(checkers))
    if choices[0] == "messages":
        talks = [one for one in known if any(holds_turns(row.get(one.name)) for row in rows[:LOOKED_AT])]
        if len(talks) != 1:
            return None
        asked = [one for one in known if hints(one, (*QUESTIONS, *INSTRUCTION, "prompt"))]
        if {*choices[1:]} <= {"rl", "prompt_completion"} and not asked and are_answered(talks[0].name, rows):
            return text("data.evidence.talk", column=shorten(talks[0].name))
        others = [
            one
            for one in known
            if one not in talks and (hints(one, QUESTIONS) or simplify(one.name) == "prompt")
        ]
        if {*choices[1:]} <= {"text"} or (
            others and all(repeats(one.name, [talks[0].name], rows) for one in others)
        ):
            return text("data.evidence.talk", column=shorten(talks[0].name))
    if {*choices} == {"prompt_completion", "text"}:
        answers = [one for one in known if hints(one, ANSWERS) and _is_whole(one) and one.plain]
        if len(answers) == 1 and answers[0].is_prose and not answers[0].is_labels:
            return text("data.evidence.answers", column=shorten(answers[0].name))
        written = [one for one in known if hints(one, LABEL) or {*part_name(one.name)} & MADE]
        written = [
            one
            for one in written
            if _is_whole(one) and one.is_prose and not one.structured and one.name not in mapping.values()
        ]
        if choices[0] == "prompt_completion" and len(written) == 1 and not written[0].is_labels:
            return text("data.evidence.answers", column=shorten(written[0].name))
    if {*choices} == {"prompt_completion", "rl"} and not list_worded(mapping, columns, rows):
        answers = [one for one in known if hints(one, (*ANSWERS, *EXPECTED)) and _is_whole(one) and one.plain]
        answers += [
            one for one in known if one.coded and hints(one, PRODUCTS) and _is_whole(one) and one.plain
        ]
        # A result that stands at the end of its solution is no other answer.
        answers = [
            one for one in answers if not repeats(one.name, [o.name for o in answers if o is not one], rows)
        ]
        asked = [one for one in known if hints(one, (*QUESTIONS, "prompt", "input")) and _is_whole(one)]
        # No program checks a sentence against another one.
        written = len(answers) == len(asked) == 1 and (answers[0].is_prose or answers[0].coded)
        if written and answers[0].words >= SENTENCE:
            return text("data.evidence.answers", column=shorten(answers[0].name))
    return None


def _weigh_pair(
    asked: str, learned: str, used: Sequence[str], columns: Sequence[str], rows: Sequence[Values]
) -> Text | None:
    """Return why the answer `learned` belongs to `asked`; None where another column could be either."""
    known = measure_columns(columns, rows)
    if asked not in known or learned not in known:
        return None
    question, answer = known[asked], known[learned]
    if not _is_written(answer) and any(holds_turns(row.get(asked)) for row in rows[:LOOKED_AT]):
        return None  # who asks in turns says what answers them
    if right := find_right([*known.values()]):
        return (
            _tell(asked, learned)
            if right is answer and (_is_read(question) or question.asks >= SHORT)
            else None
        )
    if (not answer.plain and not _is_written(answer) and lists_key_words(answer, rows)) or _is_described(
        answer
    ):
        return None  # what an answer is to name, or to do, perhaps
    asking = hints(question, (*QUESTIONS, *INSTRUCTION, *INPUT, "prompt"))
    if len(known) == 2 and asking and answer.structured and takes(answer, question, rows):
        return _tell(asked, learned)
    texts = [one for name, one in known.items() if name not in (asked, learned) and one.distinct > 1]
    if are_sides(asked, learned):
        return None  # compared, perhaps
    if heads_document(learned, [one for one in known.values() if one.name != learned]):
        return None
    if question.structured and not _is_read(question):
        return None
    if is_test(question) or is_part(answer, question, rows) or is_one_of_several(question, texts):
        return None
    rest = [one for name, one in known.items() if name not in (asked, learned, *used)]
    rest = [one for one in rest if one.rows and not repeats(one.name, [asked, learned], rows)]
    names = [*known]
    rest = [one for one in rest if not is_half(one.name, names)]
    twins = [one for one in rest if are_twins(one.name, asked)]
    if not question.spoken or not _is_whole(question) or not _is_whole(answer) or not _is_text(learned, rows):
        return None
    brief = (
        answer.spoken
        and not answer.is_labels
        and answer.distinct > SHORT * answer.rows
        and _is_written(answer)
    )
    if answer.is_labels or not (answer.is_prose or answer.coded or brief):
        # A label beside one text is asked about: the text may be what is to be learned.
        several = any(one.is_prose for one in texts)
        if several and find_label(asked, [*known.values()], rows) == learned:
            return text("data.evidence.label", column=shorten(learned), text=shorten(asked))
        words = {*part_name(learned)} & JUDGED
        if not (words and len(twins) == 1 and answer.spoken and answer.is_labels):
            return None
        if any(one.spoken and one.distinct > 1 and not is_noted(one) for one in rest if one not in twins):
            return None
        return _tell(asked, learned)
    if {*part_name(asked)} <= HEADS and question.asks < TELLING and answer.is_prose and not answer.coded:
        return None  # what a title heads was rarely written for the title alone
    entry = find_entry([*known.values()], alone=True)
    if entry and (entry[0].name, entry[1].name) == (asked, learned):
        return _tell(asked, learned)
    remark = find_remark([*known.values()])
    if remark and (remark[0].name, remark[1].name) == (asked, learned):
        return _tell(asked, learned) if not any(map(is_answer, rest)) else None
    became = [one for one in known.values() if one is not question and is_renewed(learned, one.name)]
    if became and not {*part_name(asked)} & ORDERS and not {one.name for one in became} & {*used}:
        return None  # of the old one, and not of what stands between
    if any(_competes(one, answer, question) for one in rest):
        return None
    if answer.structured and any(hints(one, LABEL) and one.distinct > 1 for one in rest):
        return None  # what is judged, and not what it was found to be
    if {*part_name(learned)} & (THOUGHTS | TRACES) and any(map(is_answer, rest)):
        return None  # what it came to stands beside it
    if _is_known(answer, question, rest):
        return _tell(asked, learned)
    if (question.asks >= ASKING and answer.asks <= TELLING) or (hints(answer, LABEL) and answer.is_prose):
        return _tell(asked, learned)
    if is_renewed(learned, asked) and not question.coded:
        return _tell(asked, learned)
    if answer.coded and describes_code(question, [*known.values()]):
        return None  # code is written for words, and words for code
    if (is_language(asked) and is_language(learned)) or are_twins(asked, learned):
        return None  # a translation goes both ways
    if _is_written(answer) and not (_is_written(question) and not _is_read(question)):
        alone = not any(one.is_prose or one.coded for one in rest)
        if _is_read(question) or (alone and question.is_prose):
            return _tell(asked, learned)
    if _is_asked_for(question, answer, rest):
        return _tell(asked, learned)
    likely = rank_pairs([*known.values()])[0]
    sure = (likely.question, likely.answer) == (asked, learned) and likely.likelihood >= LIKELY
    asking = hints(question, (*QUESTIONS, "prompt", "instruction"))
    named = _is_written(answer) or (asking and not _is_aside(answer))
    return _tell(asked, learned) if sure and named and not repeats(asked, [learned], rows) else None


def _is_described(answer: Column) -> bool:
    """Return whether a column is called what is expected, and no answer: `expected_behavior`, `expected_tools`."""
    expected = {*part_name(answer.name)} & {"expected", "desired", "should"}
    return bool(expected) and not hints(answer, (*ANSWERS, *PRODUCTS, *EXPECTED, *LABEL))


def _is_known(answer: Column, question: Column, rest: Sequence[Column]) -> bool:
    """Return whether an answer is called the true one of a question beside which only what it was found in stands."""
    asking = question.asks >= SHORT or hints(question, (*QUESTIONS, *INPUT, "prompt"))
    texts = [one for one in rest if (one.is_prose or one.coded) and not is_noted(one)]
    found_in = all(hints(one, MATERIAL) or {*part_name(one.name)} & BESIDE for one in texts)
    return asking and hints(answer, EXPECTED) and answer.is_prose and answer.asks <= TELLING and found_in


def _is_asked_for(question: Column, answer: Column, rest: Sequence[Column]) -> bool:
    """Return whether a prompt stands beside the only text that could have been written for it: a story, an article."""
    return (
        hints(question, ("prompt", "instruction"))
        and question.is_prose
        and not any((one.is_prose or one.coded) and not is_noted(one) for one in rest)
        and hints(answer, (*OWN,))
        and not {*part_name(answer.name)} & (BESIDE - OWN)
    )


def _is_aside(one: Column) -> bool:
    """Return whether a column's name is of what is read, noted or thought, and not of what is written."""
    words = {*part_name(one.name)}
    return is_noted(one) or bool(words & (READ | BESIDE | ASIDE | THOUGHTS | TRACES))


def _is_text(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column holds texts, or lists of texts of which one is learned."""
    cells = [row[name] for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    lists = [cell if isinstance(cell, (list, tuple)) else [cell] for cell in cells]
    return all(isinstance(one, (str, int, float)) for cell in lists for one in cell) and all(map(len, lists))


def _tell(asked: str, learned: str) -> Text:
    return text("data.evidence.pair", question=shorten(asked), answer=shorten(learned))


def _is_whole(one: Column) -> bool:
    """Return whether a column is filled in almost every row, with more than one value."""
    return one.filled >= MOSTLY and one.distinct > 1


def _is_written(one: Column) -> bool:
    words = {*part_name(one.name)}
    odd = BLOCKING & words - {"code", "title"}
    return not odd and (hints(one, (*ANSWERS, *PRODUCTS)) or bool(words & WRITTEN))


def _is_read(one: Column) -> bool:
    words = {*part_name(one.name)}
    return hints(one, (*QUESTIONS, *SOURCES, *INSTRUCTION, *INPUT)) or bool(words & (READ | OLD))


def _holds_marks(one: Column) -> bool:
    """Return whether a column holds lists of what single words are, or of the words themselves."""
    return not (one.plain or one.is_prose) and bool(
        {*part_name(one.name)} & {"labels", "tags", "tokens", "toks"}
    )


def _competes(one: Column, answer: Column, question: Column) -> bool:
    """Return whether a column beside question and answer could be either of them, or belongs to them unseen."""
    if {*part_name(one.name)} & NO_ANSWER or (answer.plain and _holds_marks(one)):
        return False
    if one.cut or (answer.plain and one.structured and not hints(one, ANSWERS)):
        return False  # the answer once more, in its parts
    if one.structured and hints(one, ANSWERS):
        return True  # what a query gives, perhaps
    if one.is_labels and {*part_name(one.name)} & DECISIONS:
        return True
    if one.is_labels and {*part_name(one.name)} & GRADED and {*part_name(question.name)} & REVIEWED:
        return True  # of a review its rating may be learned as well as its headline
    if not (one.is_prose or one.coded):
        # Short words, numbers and flags beside sentences sort the rows; an answer to be checked would be named so.
        return not one.counted and one.spoken and is_answer(one) and not one.is_labels and not is_noted(one)
    if one.distinct < 2 or (is_noted(one) and one.characters * HEADING < answer.characters):
        return False
    words = {*part_name(one.name)}
    if words & NOTED and not words & WRITTEN:
        return False
    if one.coded and words & OLD and {*part_name(answer.name)} & RENEWED:
        return False
    if hints(one, MATERIAL) or words & BESIDE or are_twins(one.name, question.name):
        return is_second(one, answer) or (is_answer(one) and not words & BESIDE)
    return not (question.coded and answer.coded and words & ORDERS)
