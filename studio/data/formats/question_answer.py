"""A question and its answer in columns of their own, whatever they hold: words, lists, options, turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from studio.core.i18n import text
from studio.data.conversation import Message
from studio.data.formats.aliases import LABEL
from studio.data.formats.answer_lists import (
    ALTERNATIVES,
    WHOLE,
    find_place,
    holds_parts,
    join_parts,
    open_list,
    pick_best,
    sort_rated,
)
from studio.data.formats.cells import (
    BLANK,
    Values,
    holds_words,
    is_asking,
    is_blank,
    is_coded,
    is_empty,
    is_word,
    name_kind,
    read_cell,
    require,
    require_words,
    say_scalar,
    shorten,
)
from studio.data.formats.choices import choose, gives_place, read_flags, read_options, say_options
from studio.data.formats.column_names import part_name
from studio.data.formats.context import WORD_CHARACTERS, holds_material, is_cut, is_numbers, say_material
from studio.data.formats.message_parsing import find_turns, holds_turns, is_turn, read_turns
from studio.data.formats.prompt_answer import holds_side
from studio.data.formats.written_lists import WRITTEN, open_written
from studio.data.row import RowError
from studio.data.row_codes import RowCode

TEXT_KEYS = (
    "text",
    "texts",
    "spans",
    "human_readable",
    "input_text",
    "answer_text",
    "answer",
    "answers",
    "value",
    "body",
    "content",
    "response",
    "ground_truth",
)


SAID = (
    ALTERNATIVES | WHOLE | {*LABEL, "class", "category", "intent", "sentiment", "final", "correct", "result"}
)
"""Words in the keys of what is the answer, whatever else its object could hold."""
MARKS = frozenset(("label", "labels", "type", "entity", "entity_type", "entity_group", "tag"))
PLACES = frozenset(("start", "end", "offset", "offsets", "span", "start_offset", "end_offset"))
"""Keys of what stands where in a text."""
FINDINGS = frozenset(
    "entities spans labels annotations relations triples triplets events mentions slots aspects cues tags".split()
)
"""Words in the names of lists of what was found out about a text."""
STRETCH = frozenset(("text", "value", "word", "mention", "phrase", "score", "confidence", "id"))
"""Keys of its words, and of what was noted of them."""
VALUE_CHARACTERS, MOST_VALUES, MOST_LEVELS = 120, 60, 2
"""Of a value of an object that is an answer, of its values, and of the objects inside of each other."""
TALKS = frozenset("dialog dialogue dialogs utterances turns conversation history chat context talk".split())
"""Words in the name of a column whose list of texts is a talk."""
ROUNDS = TALKS | frozenset(
    "question questions query queries prompt prompts instruction instructions input inputs user human problem problems "
    "ask asked request requests 问题 提问 frage fragen pregunta preguntas".split()
)
"""Words in the name of a column whose texts are each answered by one of another list."""


def say_question(values: Values, column: str) -> str:
    """Return the words of a question's cell; a list, a table or an object as lines. Raises RowError."""
    cell = values.get(column)
    if not isinstance(cell, (list, tuple, Mapping)):
        return read_cell(values, column)
    short = isinstance(cell, (list, tuple)) and all(
        isinstance(one, str) and len(one) <= WORD_CHARACTERS for one in cell
    )
    if is_cut(cell):
        return require_words(" ".join(cell), column)
    return require_words(", ".join(cell) if short else say_material(cell), column)


def say_answer(cell: object, column: str) -> str:
    """Return the words of an answer's cell; of a list its parts, or one of them. Raises RowError."""
    if isinstance(cell, str):
        opened = open_answers(cell, column)
        return require_words(cell, column) if opened is None else say_answer(opened, column)
    if isinstance(cell, Mapping):
        inner = _find_inner(cell)
        if inner is None:
            return _say_object(cell, column)
        return say_answer(inner, column)
    if isinstance(cell, (list, tuple)):
        filled = [one for one in cell if not is_empty(one)]
        if not cell and FINDINGS & {*part_name(column)}:
            return "[]"  # nothing was found, which is an answer, too
        if not filled:
            raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
        words = [one for one in filled if isinstance(one, str)]
        if len(words) == 1 < len(filled) and is_numbers([one for one in filled if one is not words[0]]):
            return say_answer(words[0], column)  # beside the place where it stands in the text
        if holds_parts(filled, column):
            return join_parts(filled)
        if holds_findings(filled, column):
            return _say_object(filled, column)
        if find_place(filled, column):
            return _say_parts(filled, column)
        return say_answer(pick_best(filled), column)
    return say_scalar(cell, column)


def open_answers(cell: str, column: str) -> list[object] | dict[str, object] | None:
    """Return the list or object that an answer's text writes out; None for others, and for JSON that is the answer."""
    # JSON, which could be Python's as well, is learned as it stands where the name says so.
    return (None if cell.startswith('["') else open_written(cell)) or open_list(cell, column)


def _say_parts(entries: Sequence[Mapping[str, object]], column: str) -> str:
    """Return parts of a whole as its text, where each is a text at its place; with more of each, all of it."""
    place = find_place(entries, column)
    texts = [[cell for key, cell in one.items() if key != place and not is_empty(cell)] for one in entries]
    if all(len(found) == 1 and isinstance(found[0], str) for found in texts):
        return "\n".join(str(found[0]) for found in texts)
    return _say_object(entries, column)


def holds_findings(cells: Sequence[object], column: str) -> bool:
    """Return whether the entries of a list are things found in a text or told of it, and no wordings of one answer.

    Marked words with their places, as lists or objects; lists of as many words each; objects with fields of their own.
    """
    if all(isinstance(one, (list, tuple)) for one in cells):
        told = not ALTERNATIVES & {*part_name(column)} and len({len(one) for one in cells}) == 1 < len(
            cells[0]
        )
        return all(map(_is_placed, cells)) or (told and all(map(_are_texts, cells)))
    objects = [one for one in cells if isinstance(one, Mapping)]
    return len(objects) == len(cells) and 2 * sum(_find_inner(one) is None for one in objects) > len(cells)


def _is_placed(cell: Sequence[object]) -> bool:
    """Return whether a list is a place in a text, from a number to a higher one, and what it is."""
    if any(isinstance(one, (list, tuple)) for one in cell):
        leaves = list(_list_leaves(cell))
        return any(type(one) is int for one in leaves) and any(isinstance(one, str) for one in leaves)
    places = [one for one in cell if type(one) is int]
    return len(places) == 2 and places[0] <= places[1] and any(isinstance(one, str) for one in cell)


def _list_leaves(cell: object) -> Iterator[object]:
    if not isinstance(cell, (list, tuple)):
        yield cell
        return
    for one in cell:
        yield from _list_leaves(one)


def _say_object(cell: object, column: str) -> str:
    """Return an answer that has fields, and no words of its own, as JSON. Raises RowError where they are empty."""
    cells = cell.values() if isinstance(cell, Mapping) else cell
    if all(map(is_empty, cells)):
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column)))
    try:
        return json.dumps(cell, ensure_ascii=False)
    except (TypeError, ValueError):
        raise RowError(RowCode.EMPTY, text("data.row.blank", column=shorten(column))) from None


def _find_inner(cell: Mapping[str, object]) -> object:
    """Return what an object holds of words: a field that is called so, or its only text; None for neither."""
    if MARKS & {*cell} and (PLACES & {*cell} or _is_stretch(cell)):
        return None  # a stretch of a text and what it is
    inner = next((cell[key] for key in TEXT_KEYS if not is_empty(cell.get(key))), None)
    if inner is not None:
        return sort_rated(cell, inner) if isinstance(inner, (list, tuple)) else inner
    texts = [one for one in cell.values() if isinstance(one, str) and not is_blank(one)]
    if len(texts) == 1:
        facts = sum(isinstance(one, (bool, int, float)) for one in cell.values())
        told = any(isinstance(one, (list, tuple, Mapping)) and holds_material(one) for one in cell.values())
        # A word among numbers, or above lists of words, is one fact of several; of one alone the key tells what it is.
        lone = len(cell) == 1 and is_word(texts[0]) and not SAID & {*part_name(str(next(iter(cell))))}
        return None if told or lone or (facts > 1 and is_word(texts[0])) else texts[0]
    if any(
        isinstance(one, (list, tuple)) and one and isinstance(one[0], (list, tuple)) for one in cell.values()
    ):
        return None  # a table, whose header is no answer
    lists = [
        one for one in cell.values() if isinstance(one, (list, tuple)) and one and isinstance(one[0], str)
    ]
    objects = any(
        isinstance(part, Mapping) and holds_material(part)
        for one in cell.values()
        for part in (one if isinstance(one, (list, tuple)) else [one])
    )
    if objects or len(texts) > 1 or sum(any(map(_is_told, one)) for one in lists) > 1:
        return None  # the facts of a text, each under its name
    longest = max(lists, key=lambda one: len(str(one[0])), default=None)
    return longest and sort_rated(cell, longest)


def _is_told(cell: object) -> bool:
    """Return whether an entry of a list says something in words, and is no id, date or address."""
    return isinstance(cell, str) and not is_blank(cell) and not is_coded(cell)


def _is_stretch(cell: Mapping[str, object]) -> bool:
    """Return whether an object holds nothing but words of a text and what they are called."""
    called = any(isinstance(cell.get(key), str) for key in MARKS)
    return called and len(cell) > 1 and {*cell} <= MARKS | PLACES | STRETCH


def holds_answer(cell: object) -> bool:
    """Return whether a cell is an answer, or a list or object of answers."""
    if holds_words(cell):
        return True
    if isinstance(cell, Mapping):
        inner = _find_inner(cell)
        return is_turn(cell) or (inner is not None and holds_answer(inner)) or _is_record(cell)
    if isinstance(cell, (list, tuple)):
        return holds_turns(cell) or any(holds_answer(one) for one in cell if one is not None)
    return False


def _is_record(cell: Mapping[str, object]) -> bool:
    """Return whether an object is short values under their names, such as a call, or the facts of a text."""
    values = list(_list_values(cell))
    told = [one for one in values if one is not None]
    short = all(isinstance(one, (str, int, float)) and len(str(one)) <= VALUE_CHARACTERS for one in told)
    worded = any(isinstance(one, str) and not is_blank(one) for one in told)
    return short and worded and len(values) <= MOST_VALUES and _count_levels(cell) <= MOST_LEVELS


def _count_levels(cell: object) -> int:
    """Return how many objects lie inside of each other at most; lists do not count."""
    parts = cell.values() if isinstance(cell, Mapping) else cell if isinstance(cell, (list, tuple)) else ()
    return isinstance(cell, Mapping) + max(map(_count_levels, parts), default=0)


def _list_values(cell: object) -> Iterator[object]:
    """Yield what stands in lists and objects at any depth."""
    parts = cell.values() if isinstance(cell, Mapping) else cell if isinstance(cell, (list, tuple)) else None
    if parts is None:
        yield cell
    else:
        for part in parts:
            yield from _list_values(part)


def holds_asked(cell: object) -> bool:
    """Return whether a cell is a question, turns, or what can be said as a question: lists, objects."""
    return holds_side(cell) or (holds_material(cell) and not is_numbers(cell))


def list_words(cell: object) -> list[str]:
    """Return the texts of a list that holds nothing else, also one in an object beside numbers; [] for another cell."""
    if isinstance(cell, Mapping):
        lists = [one for one in cell.values() if isinstance(one, (list, tuple)) and _are_texts(one)]
        only = lists[0] if len(lists) == 1 else None
        cell = next((cell[key] for key in TEXT_KEYS if isinstance(cell.get(key), (list, tuple))), only)
        if isinstance(cell, (list, tuple)) and all(isinstance(one, (list, tuple)) and one for one in cell):
            cell = [one[0] for one in cell]  # wordings of each answer, of which the first is learned
    if not isinstance(cell, (list, tuple)) or not all(isinstance(one, str) for one in cell):
        return []
    return list(cell)


def _are_texts(cell: Sequence[object]) -> bool:
    return bool(cell) and all(isinstance(one, str) for one in cell)


def holds_history(cell: object) -> bool:
    """Return whether a cell holds earlier turns as a list; a history in words, or of another form, is material."""
    if isinstance(cell, (list, tuple)):
        return all(not isinstance(one, Mapping) or is_turn(one) for one in cell)
    return isinstance(cell, str) and find_turns(cell) is not None


def read_plain(values: Values, question: str, answer: str) -> list[Message] | None:
    """Return two columns of words as turns, the usual row; None where there is more to them."""
    asked, said = values.get(question), values.get(answer)
    if (
        type(asked) is str
        and type(said) is str
        and asked
        and said
        and asked[0] not in BLANK
        and said[0] not in BLANK
        and not said.startswith(WRITTEN)
    ):
        return [Message("user", asked), Message("assistant", said)]
    return None


def read_asked(values: Values, mapping: Mapping[str, str], question: str, answer: str) -> list[Message]:
    """Return question and answer as turns: roles `question` and `answer` of `mapping`, with `choices` and `history`.

    Lists of as many questions as answers are a talk; options stand below the question, and the answer is the words of
    one. Raises RowError.
    """
    asked, said = mapping[question], mapping.get(answer) or mapping[f"{answer}_from_1"]
    if "choices" not in mapping and "history" not in mapping:
        plain = read_plain(values, asked, said)
        if plain is not None:
            return plain
    turns = _read_history(values, mapping["history"]) if "history" in mapping else []
    questions, answers = list_words(values.get(asked)), list_words(values.get(said))
    if len(questions) > 1 and len(questions) == len(answers) and _ask(questions, asked):
        for one, other in zip(questions, answers, strict=True):
            turns += [
                Message("user", require_words(one, asked)),
                Message("assistant", require_words(other, said)),
            ]
        return turns
    if len(questions) > 1 and TALKS & {*part_name(asked)}:
        turns += [Message("assistant" if (len(questions) - i) % 2 == 0 else "user", require_words(one, asked))
                  for i, one in enumerate(questions)]  # fmt: skip
        words = turns.pop().content
    else:
        words = say_question(values, asked)
    cell = require(values, said)
    if "choices" in mapping:
        words, answered = _read_choice(values, mapping, words, cell, said, first=int(answer not in mapping))
    else:
        answered = say_answer(cell, said)
    return [*turns, Message("user", words), Message("assistant", answered)]


def are_rounds(asking: str, said: str, rows: Sequence[Values]) -> bool:
    """Return whether rows hold lists of as many questions as answers, which are read as one talk each."""
    pairs = [(list_words(row.get(asking)), list_words(row.get(said))) for row in rows]
    told = [pair for pair in pairs if len(pair[0]) > 1]
    return bool(told) and all(len(one) == len(two) and _ask(one, asking) for one, two in told)


def _ask(questions: Sequence[str], column: str) -> bool:
    """Return whether the texts of a list are questions, by their name or their marks, and not parts of one."""
    marks = sum(is_asking(one) for one in questions)
    return 2 * marks >= len(questions) or bool({*part_name(column)} & ROUNDS)


def _read_choice(
    values: Values, mapping: Mapping[str, str], words: str, cell: object, said: str, first: int
) -> tuple[str, str]:
    """Return the question with its options below, and the words of the option that the answer means."""
    options = read_options(values, mapping["choices"])
    if not options:
        beside = values.get(mapping["choices"])
        return words if is_empty(beside) else f"{words}\n\n{beside}", say_answer(cell, said)
    flagged = isinstance(cell, (int, float)) or read_flags(cell, len(options))
    answer = cell if flagged else say_answer(cell, said)
    chosen = choose(options, answer, said, first, by_place=bool(first) or gives_place(said))
    if not all(one.strip() in words for _, one in options):
        words = f"{words}\n\n{say_options(options)}"
    return words, say_answer(answer, said) if chosen is None else chosen


def _read_history(values: Values, column: str) -> list[Message]:
    """Return earlier turns: pairs of question and answer, turns, or texts in turn. Raises RowError."""
    cell = values.get(column)
    if is_empty(cell):
        return []
    if isinstance(cell, str) and (found := find_turns(cell)) is not None:
        cell = found
    if isinstance(cell, (list, tuple)):
        if holds_turns(cell):
            return read_turns({column: cell}, column)
        if all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in cell) and all(
            isinstance(one, str) for pair in cell for one in pair
        ):
            return [
                Message(role, words)
                for pair in cell
                for role, words in zip(("user", "assistant"), pair, strict=True)
                if not is_blank(words)
            ]
        if all(isinstance(one, str) for one in cell) and len(cell) % 2 == 0:
            return [Message("assistant" if i % 2 else "user", words) for i, words in enumerate(cell)]
    raise RowError(
        RowCode.WRONG_SHAPE, text("data.row.history", column=shorten(column), found=name_kind(cell))
    )
