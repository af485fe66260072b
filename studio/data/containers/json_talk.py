"""A JSON file that is one talk: a list of nothing but speakers and their words."""

from __future__ import annotations

from studio.data.containers.json_stream import BLANKS, JsonWindow, find_values
from studio.data.containers.json_text import is_talk, parse_json

TALK_BYTES = 2**20
"""A longer list of messages is no single talk."""
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
"""With other keys a list of messages may be a table that holds several talks."""


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


def _parse(data: bytes) -> object:
    try:
        return parse_json(data)
    except ValueError:
        return None


def _is_turn(value: object) -> bool:
    return isinstance(value, dict) and bool(SPEAKER_KEYS & value.keys()) and {*value} <= ONLY_KEYS
