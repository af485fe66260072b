"""Lists of turns in any form as lists of turns with `role` and `content`, which the formats read."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from studio.data.containers.json_text import parse_json
from studio.data.formats.cells import count_words, is_blank, is_code
from studio.data.formats.column_names import part_name
from studio.data.formats.content_parts import CALL_TYPES, RESULT_TYPES
from studio.data.formats.flags import find_sense
from studio.data.formats.message_parsing import CONTENT_KEYS
from studio.data.formats.roles import read_role
from studio.data.speakers import guess_role
from studio.data.talks.sides import (
    BLOCK_KEYS,
    SPEAKER_KEYS,
    WORD_KEYS,
    choose_version,
    find_side,
    find_speaker,
    find_words,
)

Turn = dict[str, Any]
Turns = list[Turn]
NUMBERED = re.compile(r"\D{0,12}(\d{1,4})")
LEAD = re.compile(
    r"\s*[<\[*#]*\|?\s*([A-Za-z][A-Za-z _-]{0,24}?|[\u4e00-\u9fff]{1,4})\s*\|?[>\]*]*\s*[:：]\s*"
)
"""How words begin that name their speaker: `User: `, `<|Human|>: `, `**Bot**: `."""
SIGN = re.compile(r"<\|[A-Za-z_ -]+\|>")
END = re.compile(r"\s*<(?:eo[a-z]|\|end[a-z_]*\|)>\s*\Z")
HELPING = re.compile(
    r"\bhow (?:can|may) (?:i|we) (?:help|assist)|\bwhat can i do for you|有什么可以帮|需要什么帮助",
    re.I,
)
"""What the one who answers says before anybody has asked."""
NOTHING = frozenset(("none", "null", "n/a", "na", "nan", "-"))
PROSE_WORDS = 3
MOST_SPEAKERS, NAME_WORDS = 4, 2
"""So many people speak in a talk, each called by so many words."""
TIME_KEYS = ("timestamp_ms", "timestamp", "ts", "created_at", "created_utc", "time", "date", "sent_at")
SENTENCE_KEYS = ("utterance", "question", "text", "sentence", "nl")
SEGMENT = {"label", "text"}
"""Keys of a segment of a text that says itself whether it is learned."""
TEXT_CHARACTERS = 2**20
"""Longer cells in Python's own notation are not read: its parser needs a hundred times their memory."""


def to_turns(cell: object, named: bool) -> Turns | None:
    """Return the turns of a cell with `role` and `content`; None where it holds none.

    named: whether its column's name says that it is a talk, so that texts without speakers alternate.
    """
    if isinstance(cell, str):
        cell = parse_text(cell)
    if isinstance(cell, Mapping):
        return _from_object(cell, named)
    if not isinstance(cell, (list, tuple)) or not cell:
        return None
    if all(isinstance(one, (list, tuple)) and one and isinstance(one[0], Mapping) for one in cell):
        cell = [turn for one in cell for turn in one]  # what somebody wrote before the other answered
    if all(isinstance(one, Mapping) for one in cell):
        return _from_objects(cell, named)
    if all(isinstance(one, (list, tuple)) and len(one) == 2 for one in cell):
        return _from_pairs(cell, named)
    if all(isinstance(one, str) for one in cell):
        return _from_texts(cell, named)
    return None


def parse_text(words: str) -> object:
    """Return the list or object that is written in a text: as JSON, or in Python's notation; None for other words."""
    start = words.lstrip()[:1]
    if start not in ("[", "{") or len(words) < 8:
        return None
    try:
        return parse_json(words.encode("utf-8", "surrogatepass"))
    except ValueError:
        pass
    if len(words) > TEXT_CHARACTERS or words.strip()[-1:] not in ("]", "}"):
        return None
    for written in (words.strip(), re.sub(r"\}\s*\n\s*\{", "}, {", words.strip())):  # numpy writes no commas
        try:
            return ast.literal_eval(written)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return None


def is_plain(cell: object) -> bool:
    """Return whether the formats read a cell as it is: turns with a role and words, also written as text."""
    if isinstance(cell, str):
        return cell.lstrip().startswith(("[{", "[ {", "[\n")) and is_plain(_try_parse(cell))
    return (
        isinstance(cell, (list, tuple))
        and bool(cell)
        and all(
            isinstance(one, Mapping)
            and any(isinstance(one.get(key), str) for key in ("role", "from"))
            and any(key in one for key in (*CONTENT_KEYS, "tool_calls", "function_call"))
            for one in cell
        )
    )


def _try_parse(words: str) -> object:
    try:
        return parse_json(words.encode("utf-8", "surrogatepass"))
    except ValueError:
        try:
            return ast.literal_eval(words.strip()) if len(words) <= TEXT_CHARACTERS else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


def to_turn(value: object) -> Turn | None:
    """Return one object with a speaker and words as a turn, with its other keys; None for another object."""
    if not isinstance(value, Mapping):
        return None
    value = choose_version(value)
    kind = value.get("type")
    if kind in CALL_TYPES or kind in RESULT_TYPES:
        return {"role": "assistant" if kind in CALL_TYPES else "tool", "content": [dict(value)]}
    speaker, words = find_speaker(value), find_words(value)
    if speaker is None or words is None:
        return None
    rest = {
        key: cell
        for key, cell in value.items()
        if key not in (*SPEAKER_KEYS, *WORD_KEYS, *BLOCK_KEYS, "is_user")
        or key in ("tool_calls", "function_call")
    }
    name = value.get("name")
    if isinstance(name, str) and name != speaker:
        rest["name"] = name
    called = any(words is value.get(key) for key in ("tool_calls", "function_call"))
    return {"role": str(speaker), "content": None if called else words, **rest}


def _from_segments(cell: Sequence[Mapping[str, object]]) -> Turns | None:
    """Return segments of a text, each with whether it is learned, as turns; None for other objects."""
    if not all({*one} == SEGMENT and isinstance(one["label"], bool) for one in cell):
        return None
    found: Turns = []
    for one in cell:
        role = "assistant" if one["label"] else "user"
        words = re.sub(r"^<s>|</s>$", "", str(one["text"]))
        if found and found[-1]["role"] == role:
            found[-1]["content"] += words
        else:
            found.append({"role": role, "content": words})
    return found


def _from_marked(cell: Mapping[str, object]) -> Turns | None:
    """Return the turns of an object whose keys mark and number them: `{"HS01": .., "SS01": .., "HS02": ..}`.

    Two marks take turns, and the first one asks.
    """
    marks = [str(key).rstrip("0123456789") for key in cell]
    first = dict.fromkeys(marks)
    if (
        len(cell) < 4
        or len(first) != 2
        or "" in first
        or not all(isinstance(one, str) for one in cell.values())
    ):
        return None
    if any(one == other for one, other in pairwise(marks)):
        return None
    roles = dict(zip(first, ("user", "assistant"), strict=True))
    turns = [
        {"role": roles[mark], "content": words}
        for mark, words in zip(marks, cell.values(), strict=True)
        if not is_blank(words)
    ]
    said = sum(count_words(turn["content"]) for turn in turns)
    return turns if len(turns) > 1 and said >= PROSE_WORDS * len(turns) else None


def _from_objects(cell: Sequence[Mapping[str, object]], named: bool) -> Turns | None:
    if segments := _from_segments(cell):
        return segments
    if all(len(one) == 1 and isinstance(next(iter(one.values())), Mapping) for one in cell):
        cell = [next(iter(one.values())) for one in cell]
    cell = [_open_turn(one) for one in cell if not _is_event(one)]
    if _runs_back(cell):
        cell = cell[::-1]
    if named and (keyed := _from_keyed(cell)):
        return keyed
    found: Turns = []
    for one in cell:
        turn = to_turn(one)
        turns = [turn] if turn else _from_sides(one)
        if not turns:
            return _from_doubles(cell) if named else None
        found += turns
    roles = [read_role(turn["role"]) or guess_role(turn["role"]) for turn in found]
    known = all(roles) and all(to_turn(one) or _names_speakers(one) or _find_made(one, "") for one in cell)
    return found if named or known else None


def _open_turn(one: Mapping[str, object]) -> Mapping[str, object]:
    """Return the turn that an object of a log wraps beside facts about it; any other object as it is."""
    inner = [cell for cell in one.values() if isinstance(cell, Mapping) and to_turn(cell)]
    return inner[0] if len(inner) == 1 and not to_turn(one) and not _from_sides(one) else one


def _is_event(one: Mapping[str, object]) -> bool:
    """Return whether an object of a talk notes what somebody did, and holds no words: a click, a choice in a list."""
    kind = one.get("type")
    told = isinstance(kind, str) and kind not in CALL_TYPES and kind not in RESULT_TYPES
    return told and find_words(one) is None and any(key in one for key in SPEAKER_KEYS if key != "type")


def _runs_back(cell: Sequence[Mapping[str, object]]) -> bool:
    """Return whether messages were written down with the latest first: their times fall."""
    for key in TIME_KEYS:
        times = [one.get(key) for one in cell]
        if len(times) > 1 and all(
            isinstance(time, (int, float)) and not isinstance(time, bool) for time in times
        ):
            return all(one >= other for one, other in pairwise(times)) and times[0] > times[-1]
    return False


def _from_doubles(cell: Sequence[Mapping[str, object]]) -> Turns | None:
    """Return the turns of rounds that hold two sentences each, under the same two keys; None for other objects.

    Where each object holds one text and names nobody, people speak in turn.
    """
    keys = [
        [key for key, words in one.items() if isinstance(words, str) and count_words(words) >= PROSE_WORDS]
        for one in cell
    ]
    words = [find_words(one) for one in cell]
    if len(cell) > 1 and all(isinstance(one, str) for one in words) and {*map(len, keys)} <= {0, 1}:
        if not any(key in one for one in cell for key in SPEAKER_KEYS):
            return [{"role": ("user", "assistant")[i % 2], "content": one} for i, one in enumerate(words)]
    both = max(keys, key=len)
    if len(both) != 2 or any(not {*one} <= {*both} for one in keys):
        return None
    order = (("user", both[0]), ("assistant", both[1]))
    if keys[0] == both[1:] and is_blank(str(cell[0].get(both[0]) or "")):
        # Who answers is silent in the first round, and speaks first in all others.
        order = (("assistant", both[0]), ("user", both[1]))
    elif any(one != both for one in keys):
        return None
    said = [(role, one.get(key)) for one in cell for role, key in order]
    return [{"role": role, "content": words} for role, words in said if words and not is_blank(str(words))]


def _from_keyed(cell: Sequence[Mapping[str, object]]) -> Turns | None:
    """Return turns whose speaker's name stands under a key that says the side: `client` in some, `agent` in others."""
    found: Turns = []
    for one in cell:
        words = find_words(one)
        sides = [
            find_side(key)
            for key, name in one.items()
            if key not in WORD_KEYS and name is not words and isinstance(name, str) and find_side(key)
        ]
        if (
            not isinstance(words, str)
            or len(sides) != 1
            or any(key in one for key in ("role", "from", "speaker"))
        ):
            return None
        rest = {key: name for key, name in one.items() if key not in WORD_KEYS and not find_side(key)}
        found.append({"role": sides[0], "content": words, **rest})
    return found if {"user", "assistant"} <= {turn["role"] for turn in found} else None


def _names_speakers(one: Mapping[str, object]) -> bool:
    """Return whether keys name who speaks, and not only what is said: `human`, not `question`."""
    return any(read_role(word) for key in one for word in part_name(key))


def _from_sides(one: Mapping[str, object]) -> Turns:
    """Return the turns of an object whose keys are the speakers: `{"human": ..., "assistant": ...}`."""
    said: dict[str, Any] = {}
    rest: dict[str, object] = {}
    for key, cell in one.items():
        side = find_side(key)
        if side and isinstance(cell, Mapping) and isinstance(cell.get("text"), str):
            cell = cell["text"]
        if find_sense(key):
            rest[key] = cell
        elif side and isinstance(cell, str) and side not in said:
            words = strip_marks(cell)
            if not is_blank(words) and words.lower() not in NOTHING:
                said[side] = words
        elif isinstance(cell, str) and not is_blank(cell):
            words = strip_marks(cell)
            if words.lower() not in NOTHING:
                rest[str(key)] = words
    if {*said} == {"user"} and (made := _find_made(one, said["user"])):
        said["user"], said["assistant"] = made
        rest = {key: words for key, words in rest.items() if words not in made}
    if len(said) == 1 and any(
        count_words(words) >= PROSE_WORDS for words in rest.values() if isinstance(words, str)
    ):
        return []  # one side is known, and the words of the other stand under a key that is not
    order = [side for side in ("system", "user", "assistant") if side in said]
    return [{"role": side, "content": said[side], **(rest if side == order[-1] else {})} for side in order]


def _find_made(one: Mapping[str, object], said: str) -> tuple[str, str] | None:
    """Return a sentence and the query that was written for it; None where an object does not hold both.

    A key such as `query` names the question elsewhere, and here what a program is asked.
    """
    cells = [cell for cell in one.values() if isinstance(cell, str) and not is_blank(cell)]
    made = [cell for cell in cells if is_code(cell)]
    words = [
        one[key] for key in (*SENTENCE_KEYS, *one) if isinstance(one.get(key), str) and one[key] not in made
    ]
    if len(made) != 1 or not words:
        return None
    return (words[0] if said in made else said), made[0]


def strip_marks(words: str) -> str:
    """Return words without the speaker's name in front and the sign at the end that some files write around them."""
    if words.startswith("<|") and (lead := LEAD.match(words)):
        words = words[lead.end() :]
    return END.sub("", words)


def _from_pairs(cell: Sequence[Sequence[object]], named: bool) -> Turns | None:
    if not all(one is None or isinstance(one, str) for pair in cell for one in pair):
        return None
    if all(isinstance(pair[0], str) and read_role(pair[0]) for pair in cell) or _name_speakers(cell):
        return [{"role": str(pair[0]), "content": pair[1]} for pair in cell]
    if not named:
        return None
    sides = [side for pair in cell for side in zip(("user", "assistant"), pair, strict=True)]
    # A program that speaks first writes a sign in place of the question.
    return [
        {"role": role, "content": words}
        for role, words in sides
        if words and words.strip() and not SIGN.fullmatch(words.strip())
    ]


def _name_speakers(cell: Sequence[Sequence[object]]) -> bool:
    """Return whether the first of each two texts says who speaks: a few short ones, of which one is a role."""
    first = {pair[0] for pair in cell}
    if not 1 < len(first) <= min(MOST_SPEAKERS, len(cell) - 1):
        return False
    short = all(isinstance(one, str) and 0 < count_words(one) <= NAME_WORDS for one in first)
    return short and any(guess_role(one) for one in first)


def _from_texts(cell: Sequence[str], named: bool) -> Turns | None:
    if cell[0].lstrip().startswith("{"):
        turns = [parse_text(one) for one in cell]
        return _from_objects(turns, named) if all(isinstance(one, Mapping) for one in turns) else None
    leads = [LEAD.match(one) for one in cell]
    roles = [lead and (read_role(lead[1]) or find_side(lead[1])) for lead in leads]
    if all(roles):
        said = [one[lead.end() :] for one, lead in zip(cell, leads, strict=True)]
        return [{"role": role, "content": words} for role, words in zip(roles, said, strict=True)]
    if not named or len(cell) < 2 or any(roles):
        return None
    order = ("assistant", "user") if HELPING.search(cell[0]) else ("user", "assistant")
    return [{"role": order[i % 2], "content": one} for i, one in enumerate(cell)]


def _from_object(cell: Mapping[str, object], named: bool) -> Turns | None:
    """Return the turns of an object of lists, or of one whose keys number the turns."""
    if cell and all(isinstance(one, (list, tuple)) for one in cell.values()):
        if len({len(one) for one in cell.values()}) != 1:
            return None
        keys = {*cell}
        if not (keys & {*SPEAKER_KEYS} and keys & {*WORD_KEYS}):
            return None
        rows = zip(*cell.values(), strict=True)
        return _from_objects([dict(zip(cell, row, strict=True)) for row in rows], named)
    numbers = [NUMBERED.fullmatch(str(key)) for key in cell]
    if not cell or not all(numbers):
        return None
    if spoken := _from_marked(cell):
        return spoken
    order = sorted(
        zip((int(one[1]) for one in numbers), cell.values(), strict=True), key=lambda pair: pair[0]
    )
    return to_turns([value for _, value in order], named)
