"""Calls of functions in turns, however files write them, and the descriptions of the functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studio.core.i18n import Text, text
from studio.data.containers.json_text import parse_json
from studio.data.conversation import Message, ToolCall
from studio.data.formats.cells import Values, is_empty, name_kind, shorten
from studio.data.row import RowError
from studio.data.row_codes import RowCode

ARGUMENTS = ("arguments", "parameters", "args", "input")
"""Keys that the arguments of a call go by."""
CALL_SIGNS = (
    "<tool_call",
    "<function",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "function_call",
    "tool_calls",
    "Action:",
)
"""What stands in an answer that calls a function in its words; such calls stay words."""


def read_calls(number: int, found: object) -> tuple[ToolCall, ...]:
    """Return the calls of turn `number`: one call or a list of them, as objects or as JSON in a string.

    A call is `{"function": {"name", "arguments"}}` or `{"name", "arguments"}`. Raises RowError (BAD_TOOL_CALL).
    """
    if isinstance(found, str):
        found = _parse(found)
    calls = [found] if isinstance(found, Mapping) else found
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)) or not calls:
        raise _refuse("data.row.call_shape", number)
    return tuple(_read_call(number, call) for call in calls)


def _read_call(number: int, call: object) -> ToolCall:
    if isinstance(call, str):
        call = _parse(call)
    if not isinstance(call, Mapping):
        raise _refuse("data.row.call_shape", number)
    function = call.get("function")
    if isinstance(function, str) and "name" not in call:
        function = {**call, "name": function}
    if not isinstance(function, Mapping):
        function = call
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _refuse("data.row.call_name", number)
    arguments = next((function[key] for key in ARGUMENTS if function.get(key) is not None), None)
    if isinstance(arguments, str):
        written = arguments
        arguments = _parse(written) if written.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise _refuse("data.row.arguments", number, name=shorten(name))
    id = call.get("id") or call.get("call_id")
    return ToolCall(name, arguments, str(id) if id is not None else "")


def find_calls(words: str) -> tuple[ToolCall, ...]:
    """Return the calls of an answer that is nothing but their JSON, as sets for function calling have it; else ()."""
    if words.lstrip()[:1] not in ("[", "{"):
        return ()
    found = _parse(words)
    calls = [found] if isinstance(found, Mapping) else found
    for call in calls if isinstance(calls, list) else [None]:
        if not isinstance(call, Mapping) or set(call) not in ({"name", "arguments"}, {"name", "parameters"}):
            return ()
    try:
        return read_calls(1, calls)
    except RowError:  # It is words after all.
        return ()


def _parse(words: str) -> object:
    try:
        return parse_json(words.encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return words


def check_calls(messages: Sequence[Message]) -> None:
    """Raise RowError (BAD_TOOL_CALL) when a result belongs to no call, or a call before another turn has no result."""
    open_turn = 0
    """The turn whose calls may be answered; 0: none."""
    ids: set[str] = set()
    answered: set[str] = set()
    results = 0
    for number, message in enumerate(messages, start=1):
        if message.role == "tool":
            if not open_turn:
                raise _refuse("data.row.result_alone", number)
            if message.call_id and ids and message.call_id not in ids:
                raise _refuse("data.row.result_other", number, id=shorten(message.call_id))
            answered.add(message.call_id)
            results += 1
            continue
        if open_turn and messages[open_turn - 1].tool_calls:
            lacking = ids - answered if answered != {""} else set()
            if not results or lacking:
                raise _refuse("data.row.call_alone", open_turn)
        calls = message.tool_calls
        ids = {call.id for call in calls} if all(call.id for call in calls) else set()
        answered, results = set(), 0
        open_turn = (
            number if calls or (message.role == "assistant" and calls_in_words(message.content)) else 0
        )


def calls_in_words(content: str) -> bool:
    """Return whether an answer calls a function in its words."""
    return content.lstrip()[:1] in ("{", "[") or any(sign in content for sign in CALL_SIGNS)


def read_tools(values: Values, column: str) -> tuple[Mapping[str, Any], ...]:
    """Return the functions that a cell describes: a list of objects, or JSON of one; () for an empty cell.

    Bare descriptions are put into `{"type": "function", "function": ...}`, as chat templates take them. Raises
    RowError (WRONG_SHAPE).
    """
    cell = values.get(column)
    if is_empty(cell):
        return ()
    tools = _parse(cell) if isinstance(cell, str) else cell
    if isinstance(tools, Mapping):
        tools = [tools]
    if isinstance(tools, Sequence) and not isinstance(tools, (str, bytes)):
        tools = [_parse(tool) if isinstance(tool, str) else tool for tool in tools]
        if all(isinstance(tool, Mapping) for tool in tools):
            return tuple(_wrap(own) for tool in tools for own in _unpack(tool))
    raise RowError(RowCode.WRONG_SHAPE, text("data.row.tools", column=shorten(column), found=name_kind(cell)))


def holds_tools(cell: object) -> bool:
    """Return whether a cell looks like descriptions of functions."""
    if isinstance(cell, str):
        return cell.lstrip()[:1] in ("[", "{")
    return isinstance(cell, (Mapping, list, tuple))


def _unpack(tool: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the functions of a tool as hosted services nest them: a list of declarations, a specification."""
    for key in ("functionDeclarations", "function_declarations", "tools"):
        inner = tool.get(key)
        if isinstance(inner, list) and all(isinstance(one, Mapping) for one in inner):
            return [own for one in inner for own in _unpack(one)]
    inner = tool.get("toolSpec", tool)
    tool = inner if isinstance(inner, Mapping) else tool
    schema = next(
        (tool[key] for key in ("input_schema", "inputSchema") if isinstance(tool.get(key), Mapping)), None
    )
    if schema is None or "parameters" in tool:
        return [tool]
    described = {key: value for key, value in tool.items() if key not in ("input_schema", "inputSchema")}
    return [{**described, "parameters": schema.get("json", schema)}]


def _wrap(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    bare = (
        "function" not in tool
        and isinstance(tool.get("name"), str)
        and tool.get("type") in (None, "function")
    )
    if not bare:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _refuse(id: str, number: int, /, **values: object) -> RowError:
    sentence: Text = text(id, number=number, **values)
    return RowError(RowCode.BAD_TOOL_CALL, sentence)
