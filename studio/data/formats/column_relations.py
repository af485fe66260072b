"""What columns are to the question and the answer beside them: headings, stand-ins, the same once more, row numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from studio.data.formats.aliases import ANSWERS, PRODUCTS
from studio.data.formats.cells import Values, count_words, is_empty, is_word
from studio.data.formats.column_names import BLOCKING, find_core, part_name, simplify

Mapped = Mapping[str, str]
LOOKED_AT = 50
CONSTANT_ROWS = 8
SPARSE = 0.05
COUNTED_ROWS = 4
"""So many whole numbers that go up by one are no accident."""
COPIED = 20
"""So many letters that stand in an answer as well are no accident."""
HEADS = ("subject", "title", "headline", "betreff", "asunto", "objet", "titel", "标题")
"""Columns that hold the heading of a text, ..."""
BODIES = (
    "text",
    "body",
    "content",
    "message",
    "email",
    "email_body",
    "description",
    "review",
    "正文",
    "内容",
)
"""... and what the text itself is called."""
POSTS = frozenset("body selftext content detail details description".split())
"""Last words in the names of the body of a post, below its title."""
NAMING = frozenset((*HEADS, "name", "nombre", "nom", "名称"))
"""Last words in the names of what says what a row is about."""
RENEWED = frozenset("corrected revised improved refined".split())
"""Names of what became of an answer."""
JUDGING = frozenset(
    "note notes comment comments review evidence report reason reasons rationale justification feedback "
    "critique".split()
)
"""Words in the names of what a rater wrote."""
EXPLAINING = frozenset(
    "explanation explanations rationale reason reasons reasoning analysis thought thoughts steps context".split()
)
"""Words in the names of what belongs to an answer and is no other one."""


def heads_text(name: str, mapping: Mapped, sample: Sequence[Values]) -> bool:
    """Return whether a column is the heading of the text that is read, and does not tell what is made of it."""
    asked, said = mapping.get("prompt", ""), mapping.get("completion", "")
    if not said:
        return False
    named = simplify(name) in HEADS and simplify(asked) in BODIES
    named = named or _heads_post(name, asked)
    if not named and not (_last(name) in NAMING and _holds_lists(asked, sample)):
        return False
    made = {simplify(said), find_core(said)} & {*PRODUCTS}
    cells = [row.get(name) for row in sample[:LOOKED_AT]]
    filled = [cell for cell in cells if isinstance(cell, str) and not is_empty(cell)]
    return not made and 2 * len(filled) > len(cells) and len({*filled}) > len(filled) / 2


def _heads_post(name: str, asked: str) -> bool:
    """Return whether a column is the title of a post whose body is read: `title`, `question_title`, `question_body`."""
    head, body = part_name(name), part_name(asked)
    return _last(name) in HEADS and _last(asked) in POSTS and {*head[:-1]} <= {*body[:-1]}


def judges(name: str) -> bool:
    """Return whether a column is called what somebody noted who compared two answers: it may tell the better one."""
    return bool({*part_name(name)} & JUDGING)


def find_stand_in(names: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> str:
    """Return the heading that asks where the question itself is empty in more than a few rows; "" for none."""
    asked = mapping.get("prompt", "")
    if not asked or not sample or not is_sparse(asked, sample):
        return ""
    for name in names:
        cells = [row.get(name) for row in sample[:LOOKED_AT]]
        texts = all(isinstance(cell, str) and not is_empty(cell) for cell in cells)
        if texts and _last(name) in HEADS and len({*cells}) > len(cells) / 2:
            return name
    return ""


def holds_all(name: str, mapping: Mapped, sample: Sequence[Values]) -> bool:
    """Return whether a column is the example once more, or its answer: what is read must not tell what is learned."""
    sides = [mapping.get("prompt", ""), mapping.get("completion") or mapping.get("output") or ""]
    rows = [
        row for row in sample[:LOOKED_AT] if all(isinstance(row.get(one), str) for one in (name, sides[1]))
    ]
    rows = [row for row in rows if not is_empty(row[name])]
    whole = [
        all(isinstance(row.get(side), str) and row[side].strip() in row[name] for side in sides)
        for row in rows
    ]
    copied = [len(row[name].strip()) >= COPIED and row[name].strip() in row[sides[1]] for row in rows]
    return bool(rows) and (2 * sum(whole) > len(rows) or 2 * sum(copied) > len(rows))


def is_quoted(name: str, mapping: Mapped, sample: Sequence[Values]) -> bool:
    """Return whether a column's texts stand in the prompt already."""
    asked = mapping.get("prompt") or mapping.get("instruction") or ""
    rows = [row for row in sample[:LOOKED_AT] if all(isinstance(row.get(one), str) for one in (name, asked))]
    rows = [row for row in rows if not is_empty(row[name])]
    return bool(rows) and 2 * sum(row[name].strip() in row[asked] for row in rows) > len(rows)


def find_siblings(found: Sequence[str], free: Sequence[str], sample: Sequence[Values]) -> list[str]:
    """Return the columns that hold an answer from elsewhere, or what became of it: `answer_human` of `answer_gpt`."""
    if not found or not sample:
        return []
    fronts = {
        words[0].rstrip("s") for name in found if len(words := part_name(name)) > 1 and words[0] in ANSWERS
    }
    others = []
    for name in free:
        parts = part_name(name)
        same = len(parts) > 1 and parts[0].rstrip("s") in fronts
        same = same or (bool(parts) and {*parts} <= RENEWED)
        if (
            name not in found
            and same
            and not {*parts} & (BLOCKING | EXPLAINING)
            and _holds_texts(name, sample)
        ):
            others.append(name)
    return others


def are_rivals(name: str, other: str) -> bool:
    """Return whether two columns are called answers of different kinds: `ideal_answer` and `acceptable_answer`."""
    words, others = part_name(name), part_name(other)
    ends = [(words[at].rstrip("s"), others[at].rstrip("s")) for at in (0, -1)] if words and others else []
    named = any(one == two and one in ANSWERS for one, two in ends)
    return named and name != other and not {*words, *others} & (BLOCKING | EXPLAINING)


def count_rows(cells: Sequence[object]) -> bool:
    """Return whether cells are whole numbers that go up by one: they number the rows."""
    said = [str(cell).strip() for cell in cells]
    if len(said) < COUNTED_ROWS or not all(one.isascii() and one.isdigit() for one in said):
        return False
    return all(int(here) + 1 == int(there) for here, there in zip(said, said[1:], strict=False))


def is_sparse(name: str, sample: Sequence[Values]) -> bool:
    """Return whether a column is empty in more than a few rows."""
    return sum(is_empty(row.get(name)) for row in sample) > SPARSE * len(sample)


def _last(name: str) -> str:
    return (part_name(name) or ("",))[-1]


def _holds_lists(name: str, sample: Sequence[Values]) -> bool:
    cells = [row.get(name) for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
    return bool(cells) and all(isinstance(cell, (list, tuple)) for cell in cells)


def _holds_texts(name: str, sample: Sequence[Values]) -> bool:
    """Return whether most cells of a column are texts of several words."""
    cells = [row.get(name) for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
    return 2 * sum(isinstance(cell, str) and count_words(cell) > 3 for cell in cells) > len(cells) > 0


def is_constant(name: str, sample: Sequence[Values]) -> bool:
    """Return whether many rows hold one and the same word: a state, such as "accept", and no answer to each."""
    cells = [row.get(name) for row in sample[:LOOKED_AT]]
    first = cells[0] if cells else None
    return (
        len(cells) >= CONSTANT_ROWS
        and isinstance(first, str)
        and is_word(first)
        and all(cell == first for cell in cells)
    )


def is_state(name: str, cells: Sequence[object]) -> bool:
    """Return whether a column is no answer to what its rows hold: a state in an annotation tool, or a flag.

    All rows were decided alike, or 0 and 1 say whether something was given: `code_given` is no code.
    """
    said = {*map(str, cells)}
    given = said == {"0", "1"} and find_core(name) in PRODUCTS and simplify(name) not in PRODUCTS
    return given or (len(cells) > 1 and said in ({"accept"}, {"reject"}, {"ignore"}))


def is_wordless(name: str, sample: Sequence[Values]) -> bool:
    """Return whether the cells of a column are empty brackets and the like, where others hold words."""
    cells = [str(row.get(name)) for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
    bare = len(cells) >= CONSTANT_ROWS and not any(sign.isalnum() for cell in cells for sign in cell[:COPIED])
    return bare and len({*cells}) == 1


def says_the_same(name: str, columns: Sequence[str], sample: Sequence[Values]) -> bool:
    """Return whether a column holds the same in many rows, which others tell apart: a template, and no question."""
    cells = [str(row.get(name)) for row in sample[:LOOKED_AT]]
    if len(cells) < CONSTANT_ROWS or len({*cells}) > 1:
        return False
    return hold_words([other for other in columns if other != name], sample)


def sorts(name: str, sample: Sequence[Values]) -> bool:
    """Return whether a column holds a few short values, or lists of them, that come again and again."""
    cells = [row.get(name) for row in sample[:LOOKED_AT] if not is_empty(row.get(name))]
    lists = [cell if isinstance(cell, (list, tuple)) else [cell] for cell in cells]
    short = all(
        len(cell) <= 3 and all(isinstance(one, str) and len(one) <= 40 for one in cell) for cell in lists
    )
    return short and 1 < len({str(cell) for cell in lists}) <= len(lists) / 2


def hold_words(names: Iterable[str], sample: Sequence[Values]) -> bool:
    """Return whether a column holds texts of several words."""
    return any(
        isinstance(cell := row.get(name), str) and " " in cell.strip()
        for name in names
        for row in sample[:LOOKED_AT]
    )
