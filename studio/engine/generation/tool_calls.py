"""Calls of functions in an answer: how a model's template writes them, found out by trying, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.conversation import Message, ToolCall
from studio.data.template import ChatTemplate
from studio.data.template_turns import TurnWriter

NAME, VALUE = "q7x_find_z9k", "Q7xCityZ9k"
READ = json.JSONDecoder()
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CallForm:
    """How one template writes calls: `before`{"`name`": ..., "`arguments`": {...}} ..."""

    name: str
    arguments: str
    before: str
    mark: str
    """`before` as it stands in an answer, whose special tokens are left out."""

    def schema(self, tools: Tools) -> dict[str, Any]:
        """Return the JSON schema of one call of any of `tools`."""

        def describe(function: Mapping[str, Any]) -> dict[str, Any]:
            parts = {self.name: {"const": function["name"]}}
            parts[self.arguments] = function.get("parameters") or {"type": "object"}
            return {
                "type": "object", "properties": parts, "required": [self.name, self.arguments],
                "additionalProperties": False,
            }  # fmt: skip

        found = [describe(tool["function"]) for tool in tools]
        return found[0] if len(found) == 1 else {"anyOf": found}

    def hold(self, words: str) -> str:
        """Return the part of a growing answer that is surely no call."""
        mark = self.mark
        if not mark:
            return "" if words.lstrip()[:1] in ("{", "[", "") else words
        kept, found, _ = words.partition(mark)
        if found:
            return kept
        parts = (mark[:length] for length in range(len(mark) - 1, 0, -1))
        return words.removesuffix(next(filter(words.endswith, parts), ""))

    def read(self, words: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        """Return what an answer says beside its calls, and these; words that are no whole call of a tool stay words."""
        mark = self.mark
        said, found, rest = words.partition(mark) if mark else ("", "x", words)
        known = {tool["function"]["name"] for tool in tools}
        calls = [call for value in _objects(rest) if (call := self._read_call(value)) and call.name in known]
        return (said.rstrip(), tuple(calls)) if found and calls else (words, ())

    def _read_call(self, value: Mapping[str, Any]) -> ToolCall | None:
        name, arguments = value.get(self.name), value.get(self.arguments)
        return ToolCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def find_form(template: ChatTemplate, writer: TurnWriter, show: Callable[[str], str]) -> CallForm:
    """Return how `template` writes calls; `show` leaves special tokens out of words.

    Raises StudioError where it takes no tools, or writes them in no JSON."""
    tool = {
        "type": "function",
        "function": {
            "name": NAME, "description": "Finds.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }  # fmt: skip
    question = Message("user", "ask")
    prompt = template.try_render(writer.write([question]), [tool], generation_prompt=True)
    if prompt is None or NAME not in prompt:
        raise StudioError(
            text("answers.no_tools"), text("answers.no_tools.why"), text("answers.no_tools.fix")
        )
    calls = (ToolCall(NAME, {"city": VALUE}, "call_1"),)
    words = template.try_render(writer.write([question, Message("assistant", "", tool_calls=calls)]), [tool])
    found = _find_call(words or "")
    if found is None:
        raise StudioError(text("answers.no_tools"), text("answers.no_json.why"), text("answers.no_tools.fix"))
    place, name, arguments = found
    before = mark = words[_count_shared(prompt, words) : place]
    # What stands between words and a call is part of every call; what stands in front of one alone may be more.
    beside = template.try_render(
        writer.write([question, Message("assistant", VALUE, tool_calls=calls)]), [tool]
    )
    after = _find_call(beside or "")
    if after is not None and (start := beside.rfind(VALUE, 0, after[0])) >= 0:
        mark = beside[start + len(VALUE) : after[0]]
    return CallForm(name, arguments, before, show(mark).strip())


def _find_call(words: str) -> tuple[int, str, str] | None:
    """Return where the call of NAME begins in a rendered talk, and the keys of its name and arguments."""
    start = words.rfind(VALUE)
    for place in (place for place in range(start, -1, -1) if words[place] == "{"):
        value = _read_at(words, place)
        keys = None if value is None or value[1] < start else _describe(value[0])
        if keys is not None:
            return place, *keys
    return None


def _describe(value: Mapping[str, Any]) -> tuple[str, str] | None:
    name = next((key for key, one in value.items() if one == NAME), None)
    arguments = next(
        (key for key, one in value.items() if isinstance(one, dict) and VALUE in one.values()), None
    )
    return (name, arguments) if name and arguments else None


def _count_shared(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _objects(words: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects that stand one after another in `words`, in a list or not."""
    place = words.find("{")
    while place >= 0:
        value = _read_at(words, place)
        if value is not None:
            yield value[0]
        place = words.find("{", value[1] if value else place + 1)


def _read_at(words: str, place: int) -> tuple[Mapping[str, Any], int] | None:
    try:
        value, end = READ.raw_decode(words, place)
    except (ValueError, RecursionError):
        return None
    return (value, end) if isinstance(value, dict) else None
