"""Where the rows of one JSON object lie: in columns, under ids, as pandas or the hub write them, deeper inside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from studio.data.containers.json_text import TALK, is_talk, part_cells
from studio.data.formats.aliases import (
    ANSWERS,
    CHOSEN,
    EXPECTED,
    INPUT,
    INSTRUCTION,
    LABEL,
    LISTS,
    MATERIAL,
    QUESTIONS,
    REJECTED,
    SOURCES,
    SYSTEM,
    TEXT,
)
from studio.data.formats.cells import count_words, is_asking
from studio.data.formats.column_names import simplify

LEAST_PARTS = 3
"""So many objects with the same keys are rows under their ids; two may be the two sides of one."""
LEAST_TEXTS = 12
"""So many texts with names of one kind are no columns of one row."""
LEVELS = 4
MANY = 6
"""Fewer lists of one length are rather the columns of a table than texts by their class."""
LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
"""How languages are named by their codes."""
NAMED = frozenset(
    (
        *QUESTIONS,
        *ANSWERS,
        *INSTRUCTION,
        *INPUT,
        *TEXT,
        *LABEL,
        *LISTS,
        *MATERIAL,
        *SOURCES,
        *EXPECTED,
        *CHOSEN,
        *REJECTED,
    )
)
"""What columns are called."""
SIDES = frozenset(
    ("messages", "conversations", "prompt", "chosen", "rejected", "completion", "input", "output")
)
"""Names of columns that hold turns; other names of several talks are their ids."""
KEY_WORDS = 3
"""Words of an average key from which on keys are questions, or texts, and no names."""
KEY = "key"
"""The column of such keys."""
MOST_OPTIONS = 10
"""Of more objects in a list each is a row."""
PIECE = 50
"""Words of an average piece of a document."""
FILE = re.compile(r"[^/\n]{1,200}\.[A-Za-z][A-Za-z0-9]{1,4}")
"""A key that is the name of a file."""
ID_CHARACTERS, ID = 8, re.compile(r"(?=.*[0-9])(?=.*[A-Za-z-])[A-Za-z0-9_:-]+")
"""A code has digits and letters, and is as long; `answer_1` names a column."""
ALONE = 0.8
"""Of the first sides of pairs, so many are questions where each pair stands for itself."""
WORDS = re.compile(r"[a-z]+")
TRAINING = frozenset(("train", "training"))
SPLITS = TRAINING | frozenset("test testing val valid validation dev development eval evaluation".split())
"""Words in the names of splits."""
TESTING = frozenset(("test", "testing"))
PATTERNS = ("patterns", "queries", "questions", "examples", "utterances", "phrases")
"""What the wordings of a question are called."""
Rows = list[dict[str, Any]]


def find_rows(value: Mapping[str, Any], level: int = 0) -> Rows | None:
    """Return the rows of an object that is a whole file; None where it is a row itself, or a list in it has them."""
    if not level and _is_row(value):
        return [dict(value)]
    if not level and (told := _find_told(value)):
        return told
    found = _find_notebook(value) or _find_table(value) or _find_splits(value) or _find_groups(value)
    found = found or (None if level else _find_texts(value))
    found = found or _find_columns(value) or _find_keyed(value)
    if found is not None or level >= LEVELS:
        return found
    if (cut := _find_cells(value)) is not None:
        return cut
    if level:
        lists = [part for part in value.values() if _holds_rows(part)]
        if len(lists) == 1:
            return lists[0]
    elif (main := _find_main(value)) is not None:
        return main
    inner = [part for part in value.values() if isinstance(part, dict) and part]
    others = [part for part in value.values() if isinstance(part, list) and part]
    deeper = [rows for part in inner if (rows := find_rows(part, level + 1))]
    return deeper[0] if len(deeper) == 1 and not others else None


def _find_told(value: Mapping[str, Any]) -> Rows | None:
    """Return the only list of rows of an object, each with the system prompt that stands beside the list for all."""
    lists = [part for part in value.values() if _holds_rows(part)]
    said = {key: part for key, part in value.items() if simplify(key) in SYSTEM and isinstance(part, str)}
    said = {key: part for key, part in said.items() if part.strip()}
    return [{**said, **row} for row in lists[0]] if len(lists) == 1 and said else None


def _holds_rows(part: object) -> bool:
    return (
        isinstance(part, list)
        and bool(part)
        and all(isinstance(one, dict) for one in part)
        and not {"role", "from"} & part[0].keys()
    )


def _is_row(value: Mapping[str, Any]) -> bool:
    """Return whether an object says more itself than in its only list, which is short: a question with its options."""
    lists = [part for part in value.values() if _holds_rows(part)]
    if len(lists) != 1 or len(lists[0]) > MOST_OPTIONS:
        return False
    own = [part for part in value.values() if isinstance(part, str) and len(part.split()) >= KEY_WORDS]
    return len(own) > 1 and sum(map(len, own)) > sum(map(len, _list_texts(lists[0])))


def _find_main(value: Mapping[str, Any]) -> Rows | None:
    """Return the list of objects that holds the file's words, where several are and the others hold names alone.

    An export names its participants, channels or labels before what was written.
    """
    lists = [part for part in value.values() if _holds_rows(part)]
    if len(lists) < 2:
        return None
    long, *others = sorted(lists, key=_count_words, reverse=True)
    if len(long) < LEAST_PARTS or any(
        _count_words(part) >= KEY_WORDS * _count_texts(part) for part in others
    ):
        return None
    return long if _count_words(long) >= KEY_WORDS * len(long) else None


def _list_texts(part: Rows) -> list[str]:
    return [cell for row in part for cell in row.values() if isinstance(cell, str)]


def _count_words(part: Rows) -> int:
    return sum(len(words.split()) for words in _list_texts(part))


def _count_texts(part: Rows) -> int:
    return max(1, len(_list_texts(part)))


def _find_notebook(value: Mapping[str, Any]) -> Rows | None:
    """Return what a notebook of Jupyter says, its texts and its code in order, as one text."""
    cells = value.get("cells")
    if "nbformat" not in value or not isinstance(cells, list):
        return None
    said = [one.get("source") for one in cells if isinstance(one, dict)]
    lines = ["".join(map(str, one)) if isinstance(one, list) else str(one or "") for one in said]
    return [{"text": "\n\n".join(one.strip() for one in lines if one.strip())}]


def _find_table(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of a table as pandas splits it into columns, index and data, or as the hub's viewer sends it."""
    columns, data, rows = value.get("columns"), value.get("data"), value.get("rows")
    if (
        isinstance(columns, list)
        and isinstance(data, list)
        and data
        and all(isinstance(n, str) for n in columns)
    ):
        if all(isinstance(row, list) and len(row) == len(columns) for row in data):
            return [dict(zip(columns, row, strict=True)) for row in data]
    if "features" in value and isinstance(rows, list) and rows:
        if all(isinstance(row, dict) and isinstance(row.get("row"), dict) for row in rows):
            return [row["row"] for row in rows]
    return None


def _find_splits(value: Mapping[str, Any]) -> list[Any] | None:
    """Return the rows of an object of splits whose rows are lists: those to train on, then each other split as it is.

    Rows that are objects are found as they are read.
    """
    names = {key: {*WORDS.findall(key.lower())} for key in value}
    parts = [part for part in value.values() if isinstance(part, list) and part]
    if len(value) < 2 or len(parts) < len(value) or not all(words & SPLITS for words in names.values()):
        return None
    if not all(is_talk(part[0]) and isinstance(part[0][0], str) for part in parts):
        return None
    training = min(value, key=lambda key: (not names[key] & TRAINING, len(key)))
    rows = [{TALK: row} if is_talk(row) else None for row in value[training]]
    return [*rows, *(part for key, part in value.items() if key != training)]


def name_splits(value: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys under which an object of splits has objects as rows, by split; {} for other objects."""
    names = {key: {*WORDS.findall(key.lower())} for key in value}
    if len(value) < 2 or not all(words & SPLITS for words in names.values()):
        return {}
    if not all(_holds_rows(part) for part in value.values()):
        return {}
    found: dict[str, str] = {}
    for key, words in names.items():
        split = "train" if words & TRAINING else "test" if words & TESTING else "validation"
        if split in found:
            return {}  # two of a kind are for the person to choose from
        found[split] = key
    if "train" not in found:
        first = next(iter(found))
        found = {"train": found.pop(first), **found}
    return found


def _find_groups(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of an object of lists of like objects, each with the name of its list: its class, its topic."""
    parts = dict(_list_parts(value, ()))
    if len(parts) < 2 or name_splits(value) or not all(map(_holds_rows, parts.values())):
        return None
    keys = [{*part[0]} for part in parts.values()]
    shared, every = keys[0].intersection(*keys), keys[0].union(*keys)
    if not shared or 2 * len(shared) < len(every):
        return None
    name = next(name for name in ("class", "group", "list", "found_under") if name not in every)
    return [{name: " / ".join(path), **row} for path, part in parts.items() for row in part]


def _list_parts(value: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield what is no object in an object of groups, with the names that lead to it."""
    for key, part in value.items():
        if isinstance(part, Mapping) and part and len(path) < LEVELS:
            yield from _list_parts(part, (*path, key))
        else:
            yield (*path, key), part


def _find_cells(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of the only list of an object that holds texts with what was found out about each."""
    lists = [part for part in value.values() if isinstance(part, list) and part and isinstance(part[0], list)]
    rows = [part_cells(row) for row in lists[0]] if len(lists) == 1 else []
    return rows if len(rows) >= LEAST_PARTS and all(row and "text" in row for row in rows) else None


def _find_texts(value: Mapping[str, Any]) -> Rows | None:
    """Return the texts of an object of lists of texts, each with the names that lead to it; None for columns.

    Columns of a table are called what columns are called, or languages, and are two, or as long as each other.
    """
    if any(simplify(key) in NAMED or LANGUAGE.fullmatch(key) for key in value):
        return None
    if _are_named(value):
        return None
    lengths = {len(part) if isinstance(part, list) else 0 for part in value.values()}
    if len(value) < MANY and len(lengths) == 1 and 0 not in lengths:
        return None
    found = list(_list_leaves(value, ()))
    if len({path for path, _ in found}) < LEAST_PARTS or not all(isinstance(one, str) for _, one in found):
        return None
    if sum(len(one.split()) for _, one in found) < KEY_WORDS * len(found):
        return None
    # Long texts are pieces of the documents that they stand under; short ones are examples of a class.
    long = sum(len(one.split()) for _, one in found) >= PIECE * len(found)
    return [{"source" if long else "class": " / ".join(path), "text": one} for path, one in found]


def _are_named(value: Mapping[str, Any]) -> bool:
    """Return whether an object holds objects, most of which have what is asked and what answers it under these names.

    Each of them is a row then, as an intent with its questions and its answers.
    """
    parts = [{*map(simplify, part)} for part in value.values() if isinstance(part, dict)]
    if len(parts) == 1 and len(value) == 1:
        return _are_named(next(iter(value.values())))
    asked, said = {*QUESTIONS, *INSTRUCTION, *INPUT, *PATTERNS}, {*ANSWERS, *EXPECTED}
    both = [bool(keys & asked and keys & said) for keys in parts]
    return len(parts) == len(value) >= LEAST_PARTS and 2 * sum(both) > len(parts)


def _list_leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield what lies in the lists of an object, with the names that lead to them; None for anything beside them."""
    if isinstance(value, Mapping) and len(path) < LEVELS:
        for key, part in value.items():
            yield from _list_leaves(part, (*path, key))
    elif isinstance(value, list) and value and path:
        yield from ((path, one) for one in value)
    else:
        yield path, None


def _find_columns(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of an object of columns: lists of one length, or objects with the same numbers as keys."""
    parts = list(value.values())
    if not parts:
        return None
    if all(isinstance(part, list) for part in parts) and len({len(part) for part in parts}) == 1:
        if all(part and all(isinstance(item, dict) for item in part) for part in parts):
            return None
        if len(parts) >= LEAST_PARTS and _are_talks([item for part in parts for item in part], value):
            return None
        if all(_is_pair(item) for part in parts for item in part):
            return [dict(value)]  # what was asked and answered, one after the other
        return [dict(zip(value, cells, strict=True)) for cells in zip(*parts, strict=True)]
    if all(isinstance(part, dict) and part for part in parts):
        if (deeper := _find_deeper(value)) is not None:
            return deeper
        if all(key.isdigit() for key in value):
            return parts
        keys = list(parts[0])
        if all(key.isdigit() for key in keys) and all(list(part) == keys for part in parts):
            return [{column: part[key] for column, part in value.items()} for key in keys]
    return None


def _find_deeper(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of an object of groups, in each of which rows lie under codes; each with its group's name."""
    inner = [(group, key, row) for group, part in value.items() for key, row in part.items()]
    coded = all(_is_id(key) and not key.isdigit() for _, key, _ in inner)
    if not coded or not all(isinstance(row, dict) and row for _, _, row in inner):
        return None
    keys = [{*row} for _, _, row in inner]
    if 2 * len(keys[0].intersection(*keys)) < len(keys[0].union(*keys)) or any(
        "group" in one for one in keys
    ):
        return None
    return [row if _is_id(group) else {"group": group, **row} for group, _, row in inner]


def _is_id(key: str) -> bool:
    """Return whether a key is a number or a code, and no name."""
    return key.isdigit() or (len(key) >= ID_CHARACTERS and ID.fullmatch(key) is not None)


def _list_pairs(parts: list[list[list[str]]]) -> Rows:
    """Return pairs under ids as rows where what is asked can be asked alone, else each list as one talk."""
    pairs = [pair for part in parts for pair in part]
    if sum(is_asking(asked) for asked, _ in pairs) >= ALONE * len(pairs):
        return [{"column_1": asked, "column_2": said} for asked, said in pairs]
    return [{TALK: part} for part in parts]


def _is_pair(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(isinstance(one, str) for one in item)


def _are_talks(parts: list[object], value: Mapping[str, Any]) -> bool:
    """Return whether all values are lists of turns, and their keys no columns of one row."""
    return all(is_talk(part) and isinstance(part[0], dict) for part in parts) and SIDES.isdisjoint(value)


def _unwrap(part: object) -> object:
    """Return the only list that a list holds: a talk as the one entry under its id; anything else as it is."""
    return part[0] if isinstance(part, list) and len(part) == 1 and isinstance(part[0], list) else part


def _find_keyed(value: Mapping[str, Any]) -> Rows | None:
    """Return the rows of an object whose keys are their ids, or questions."""
    parts = list(value.values())
    if len(parts) < (2 if all(map(_is_id, value)) else LEAST_PARTS):
        return None
    if all(isinstance(part, list) and part and all(map(_is_pair, part)) for part in parts) and all(
        map(_is_id, value)
    ):
        return _list_pairs(parts)
    if all(isinstance(part, dict) and part for part in parts):
        shared = {*parts[0]}.intersection(*parts)
        every = {*parts[0]}.union(*parts)
        if 2 * len(shared) < len(every):
            return None
        worded = sum(map(count_words, value)) >= KEY_WORDS * len(parts)
        # A key of several words is what is asked, and no number of the row.
        return [{KEY: key, **part} for key, part in value.items()] if worded and KEY not in every else parts
    parts = [_unwrap(part) for part in parts]
    if _are_talks(parts, value):
        return [{TALK: part} for part in parts]
    if all(isinstance(part, str) for part in parts) and all(map(FILE.fullmatch, value)):
        return [{"file": key, "text": part} for key, part in value.items()]
    if all(isinstance(part, str) for part in parts) and sum(map(count_words, value)) >= KEY_WORDS * len(
        parts
    ):
        return [{"column_1": key, "column_2": part} for key, part in value.items()]
    if len(parts) >= LEAST_TEXTS and all(isinstance(part, str) for part in parts):
        if all(
            "." in key or "_" in key or "-" in key for key in value
        ):  # the texts of a program, by their names
            return [{"key": key, "value": part} for key, part in value.items()]
    return None
