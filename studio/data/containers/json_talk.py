"""A JSON file that is one list: of nothing but speakers and their words, which is one talk, or of texts."""

from __future__ import annotations

from studio.data.containers.json_stream import BLANKS, JsonWindow, find_values
from studio.data.containers.json_text import is_talk, parse_json

TALK_BYTES = 2**20
"""A longer list of messages is no single talk."""
TEXTS_BYTES = 64 * 2**20
"""A longer list of texts is not read: it is parsed as a whole."""
SPEAKER_KEYS = {"role", "from"}
ONLY_KEYS = SPEAKER_KEYS | {
    "content",
    "value",
    "weight",
    "tool_calls",
    "tool_call_id",
    "name",
    "reasoning_content",
}
"""With other keys a list of messages may be a table that holds several talks; notes of a turn are no such key."""


def find_talk(window: JsonWindow) -> list | None:
    """Return the turns of a file that is one talk; None for every other file, of which little is looked at."""
    first = next(find_values(window.data, window.place + 1), None)
    if not isinstance(first, tuple) or not _is_turn(_parse(window.data[slice(*first)])):
        return None
    while not isinstance(whole := next(find_values(window.data, window.place), None), tuple):
        if whole is not None or window.held_bytes > TALK_BYTES or not window.grow():
            return None
    if window.data[whole[1] :].strip(BLANKS) or window.grow():
        return None
    value = _parse(window.data[slice(*whole)])
    return value if is_talk(value) and all(map(_is_turn, value)) else None


def find_texts(window: JsonWindow) -> list[dict[str, object]] | None:
    """Return the rows of a file that is a list of texts; None for every other file, of which little is looked at.

    Texts that are objects, written as JSON, are those objects.
    """
    while not (head := window.data[window.place + 1 :].lstrip(BLANKS)) and window.grow():
        pass
    if head[:1] != b'"':
        return None
    while window.held_bytes <= TEXTS_BYTES and window.grow():
        pass
    value = _parse(window.data[window.place :])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return None
    objects = [_parse(one.encode("utf-8", "surrogatepass")) for one in value if one.lstrip().startswith("{")]
    if len(objects) == len(value) and all(isinstance(one, dict) for one in objects):
        return objects
    return [{"text": one} for one in value]


def _parse(data: bytes) -> object:
    try:
        return parse_json(data)
    except ValueError:
        return None


def _is_turn(value: object) -> bool:
    if not isinstance(value, dict) or not SPEAKER_KEYS & value.keys():
        return False
    return {key for key, cell in value.items() if not isinstance(cell, list)} <= ONLY_KEYS
