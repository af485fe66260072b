"""What stands beside a question and belongs to it: an article, a table, a schema, a context of any kind.

The rule, which the preview shows: material stands before the question, with an empty line between; where there are
several, each below the name of its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import ANSWERS, EXPECTED, LABEL, MATERIAL
from studio.data.formats.cells import Values, count_words, is_address, is_blank, is_empty, is_word, say_scalar
from studio.data.formats.column_names import drop_versions, find_core, part_name, simplify
from studio.data.formats.written_lists import WRITTEN, open_written

MATERIALS = ("material", "material_2", "material_3", "material_4")
"""Roles, in the order in which their columns are read."""
HINTS = frozenset("hint hints tip tips clue clues hinweis pista indice подсказка 提示".split())
"""Words in the names of what helps to an answer."""
TOLD_CHARACTERS, COPIED_SHARE = 3, 0.25
"""A shorter answer stands in many a line by chance; of the others so many make a hint the answer."""
LOOKED_AT = 50
PROSE_WORDS = 4
"""More of them make a sentence."""
TOKENS = 5
"""A list of as many single words is a text that was cut into its words."""
TECHNICAL = frozenset(
    "id ids uuid url urls uri link links href hash tokens token size bytes count counts offset offsets start end "
    "embedding timestamp checksum md sha mime encoding".split()
)
"""Words in the names of what only tells something of the words beside it."""
REMARKS, BRIEF_WORDS = frozenset(("note", "notes")), 8
"""Words in the names of what is read beside a question where it says much, and else was remarked on the row."""
SENTENCE_WORDS = 20
"""A remark behind an answer has fewer on average."""
ANSWERED = frozenset((*ANSWERS, *EXPECTED, *LABEL))
"""Names of what is learned."""
LABEL_WORDS = 3
"""A label has fewer words."""
WORD_CHARACTERS = 24
"""A longer line is more than a word, also in scripts without spaces."""


def find_material(
    columns: Sequence[str],
    chosen: Mapping[str, str],
    sample: Sequence[Values],
    heads: Sequence[str] = (),
    answer: str = "",
) -> dict[str, str]:
    """Return role -> column for those of `columns` whose names say that they are material, in their order.

    `heads` are headings of the text that is read, and stand first. What a person has `chosen` stands; after a role
    that was said to have no column, no other gets one.
    """
    mapping: dict[str, str] = {}
    found = [name for name in columns if is_material(name)]
    found = [name for name in found if not sample or _is_read(name, sample[:LOOKED_AT])]
    found = [name for name in found if not sample or not is_remark(name, sample)]
    found = [name for name in found if not tells_answer(name, answer, sample)]
    found = drop_versions([*heads, *(name for name in found if name not in heads)])
    for role in MATERIALS:
        if role in chosen:
            if not chosen[role]:
                break
            mapping[role] = chosen[role]
        elif found:
            mapping[role] = found.pop(0)
    return mapping


def is_material(name: str) -> bool:
    """Return whether a column is called something that is read beside a question."""
    return simplify(name) in MATERIAL or find_core(name) in MATERIAL


def tells_answer(name: str, answer: str, rows: Sequence[Values]) -> bool:
    """Return whether a column of hints holds, in most rows, what the column `answer` says: read, it would be copied."""
    if not answer or not {*part_name(name)} & HINTS:
        return False
    pairs = [(say_material(row.get(answer)).strip(), say_material(row.get(name))) for row in rows[:LOOKED_AT]]
    pairs = [(said, line) for said, line in pairs if len(said) >= TOLD_CHARACTERS]
    return sum(said in line for said, line in pairs) > COPIED_SHARE * len(pairs)


def is_remark(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column is a note of a sentence behind an answer or a label: what was remarked on it."""
    columns = [*rows[0]] if rows else []
    if not {*part_name(name)} & REMARKS or name not in columns:
        return False
    said = [count_words(say_material(row[name])) for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
    before = columns[: columns.index(name)]
    told = any(
        {simplify(one), find_core(one)} & ANSWERED or {*part_name(one)} & {"expected", "label", "gold"}
        for one in before
    )
    return told and sum(said) < SENTENCE_WORDS * len(said)


def _is_read(name: str, rows: Sequence[Values]) -> bool:
    """Return whether a column's cells are there to be read: most hold more than single words, marks and numbers."""
    cells = [row[name] for row in rows if not is_empty(row.get(name))]
    if any(map(is_numbers, cells)):  # ids of tokens, an embedding
        return False
    if {*part_name(name)} & {"table", "tables"} and cells and all(map(_is_table, cells)):
        return True
    if {*part_name(name)} & REMARKS and sum(map(count_words, map(say_material, cells))) < BRIEF_WORDS * len(
        cells
    ):
        return False
    said = [cell for cell in cells if isinstance(cell, str)]
    if len(said) == len(cells) > 2 * len({*said}) and sum(map(count_words, said)) < LABEL_WORDS * len(said):
        return False  # they come again and again, and sort the rows
    lines = [line for cell in cells for line in say_lines(cell)]
    read = sum((not is_word(line) or len(line) > WORD_CHARACTERS) and not is_address(line) for line in lines)
    return bool(lines) and 2 * read >= len(lines)


def _is_table(cell: object) -> bool:
    """Return whether a cell is a list of rows."""
    return isinstance(cell, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in cell)


def holds_material(cell: object) -> bool:
    """Return whether a cell holds words that a model could read, at any depth."""
    return not is_empty(cell) and any(not is_blank(line) for line in say_lines(cell))


def holds_thoughts(cell: object) -> bool:
    """Return whether a cell holds thoughts: words, at any depth; a flag or a number is a fact of the row."""
    return holds_material(cell) and not is_numbers(cell)


def is_numbers(cell: object) -> bool:
    """Return whether a list or an object holds nothing but numbers, such as an embedding."""
    if isinstance(cell, Mapping):
        return bool(cell) and all(map(is_numbers, cell.values()))
    if isinstance(cell, (list, tuple)):
        return bool(cell) and all(map(is_numbers, cell[:50]))
    return isinstance(cell, (bool, int, float))


def is_cut(cell: object) -> bool:
    """Return whether a list holds a text word by word."""
    if not isinstance(cell, (list, tuple)) or len(cell) < TOKENS:
        return False
    return (
        all(isinstance(one, str) for one in cell) and sum(not is_word(one) for one in cell) < len(cell) / 10
    )


def say_material(cell: object) -> str:
    """Return a cell of any shape as text: lists a line each, objects as "name: value", also those written as text."""
    if isinstance(cell, str):
        written = open_written(cell) if cell.startswith(WRITTEN) else None
        return cell if written is None else "\n".join(say_lines(written))
    return "\n".join(say_lines(cell))


def say_lines(cell: object, name: str = "") -> Iterator[str]:
    """Yield the lines of `say_material`; `name` stands before the first."""
    front = f"{name}: " if name else ""
    if isinstance(cell, str):
        if cell:
            yield front + cell
    elif isinstance(cell, Mapping):
        read = list_read(cell)
        if len(read) == 1 and len(cell) > 1:  # the words among facts about them
            yield from say_lines(cell[read[0]], name)
            return
        for key in read:
            yield from say_lines(cell[key], f"{front}{key}")
    elif isinstance(cell, (list, tuple)):
        cells = [one for one in cell if one is not None]
        if name or not all(isinstance(one, str) for one in cells):
            flat = all(isinstance(one, (str, int, float)) for one in cells)
            if flat and cells and all(len(str(one)) <= 40 for one in cells):
                yield front + " | ".join(map(str, cells))
                return
        for one in cells:
            yield from say_lines(one, name)
    elif isinstance(cell, (bool, int, float)):
        yield front + say_scalar(cell, name)


def list_read(cell: Mapping[str, object]) -> list[str]:
    """Return the keys of an object whose values are there to be read; all of them in a table or a record without prose.

    Beside sentences there are often facts about them: flags, ids, addresses, sizes, and the same words one by one.
    """
    if not any(map(_is_prose, cell.values())):
        return list(cell)
    return [key for key, value in cell.items() if not (TECHNICAL & {*part_name(key)} or _is_aside(value))]


def _is_prose(cell: object) -> bool:
    if isinstance(cell, str):
        return count_words(cell) > PROSE_WORDS or len(cell) > 2 * WORD_CHARACTERS
    if isinstance(cell, Mapping):
        return any(map(_is_prose, cell.values()))
    return isinstance(cell, (list, tuple)) and any(map(_is_prose, cell[:LOOKED_AT]))


def _is_aside(cell: object) -> bool:
    """Return whether a value beside sentences only tells something of them."""
    if isinstance(cell, str):
        return is_address(cell)
    if isinstance(cell, (list, tuple)):
        return all(not isinstance(one, Mapping) and not _is_phrase(one) for one in cell)
    return cell is None or isinstance(cell, bool)


def _is_phrase(cell: object) -> bool:
    if isinstance(cell, (list, tuple)):
        return any(map(_is_phrase, cell))
    return isinstance(cell, str) and (not is_word(cell) or len(cell) > WORD_CHARACTERS)


def read_thoughts(values: Values, mapping: Mapping[str, str]) -> str:
    """Return what an answer thought before it spoke: the words of the column `reasoning`; "" for none."""
    return say_material(values.get(mapping["reasoning"])) if "reasoning" in mapping else ""


def put_material(conversation: Conversation, values: Values, mapping: Mapping[str, str]) -> Conversation:
    """Return `conversation` with its material before the first question."""
    columns = [mapping[role] for role in MATERIALS if role in mapping]
    parts = [(column, say_material(values.get(column))) for column in columns]
    parts = [(column, words.strip()) for column, words in parts if not is_blank(words)]
    if not parts:
        return conversation
    named = len(columns) > 1
    read = "\n\n".join(f"{column}:\n{words}" if named else words for column, words in parts)
    messages = list(conversation.messages)
    place = next((i for i, message in enumerate(messages) if message.role == "user"), None)
    if place is None:
        place = sum(message.role == "system" for message in messages[:1])
        messages.insert(place, Message("user", read))
    elif read not in messages[place].content:
        messages[place] = messages[place]._replace(content=f"{read}\n\n{messages[place].content}")
    return conversation._replace(messages=tuple(messages))
