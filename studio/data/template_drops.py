"""What a chat template left out of a conversation: questions, results, calls, the system prompt, thoughts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from studio.core.i18n import text
from studio.data.conversation import Message, ToolCall
from studio.data.row import RowError
from studio.data.row_codes import RowCode
from studio.data.template_turns import THOUGHTS


def find_lost(full: str, messages: Sequence[Message]) -> frozenset[str]:
    """Return what the template left out. Raises RowError TEMPLATE for a question or a tool's result."""
    lost = set()
    for number, message in enumerate(messages, start=1):
        if message.role == "assistant":
            found = THOUGHTS.match(message.content)
            thoughts = (message.reasoning, found[1] if found else "")
            if not all(words.strip() in full for words in thoughts):
                lost.add("reasoning")
        lines = [line.strip() for line in message.content.splitlines() if line.strip()]
        if message.role == "assistant" or not lines or any(map(full.__contains__, lines)):
            continue
        if any(
            json.dumps(line, ensure_ascii=ascii)[1:-1] in full for line in lines for ascii in (False, True)
        ):
            continue
        if message.role == "system":
            lost.add("system")
        else:
            what = "tool_result_lost" if message.role == "tool" else "turn_lost"
            raise RowError(RowCode.TEMPLATE, text(f"data.row.{what}", number=number))
    return frozenset(lost)


def is_whole(message: Message, words: str) -> bool:
    """Return whether all of the answer `message` but the thoughts in front stands in `words`, its turn.

    Templates of reasoning models drop what stands before `</think>`, also where it is no thought.
    """
    if "</think>" not in message.content:
        return True
    found = THOUGHTS.match(message.content)
    rest = message.content[found.end() :] if found else message.content
    return "</think>" not in rest or rest.strip() in words


def name_of(tool: Mapping[str, Any]) -> str:
    """Return the name of the function that `tool` describes; "" when it has none."""
    inner = tool.get("function", tool)
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def is_written(call: ToolCall, words: str) -> bool:
    """Return whether the name and all arguments of `call` stand in `words`."""
    return call.name in words and all(_holds(words, value) for value in _list_leaves(call.arguments))


def _list_leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in (str(key), *_list_leaves(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _list_leaves(item)]
    return [value]


def _holds(words: str, value: Any) -> bool:
    spoken = str(value)
    if spoken in words or spoken.strip() in words:
        return True
    once, ascii = json.dumps(value, ensure_ascii=False, default=str), json.dumps(value, default=str)
    spellings = [one[1:-1] if isinstance(value, str) else one for one in (once, ascii)]
    # Arguments given as text are escaped twice where the template writes that text as JSON.
    return any(one in words or json.dumps(one, ensure_ascii=False)[1:-1] in words for one in spellings)
