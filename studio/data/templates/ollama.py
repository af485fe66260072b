"""Chat templates in Ollama's language (Go's text/template): which one a model's own is, and what Ollama passes on else.

Beside each template of the catalogue stands the same one in Go, in `ollama/`; tests render both, the latter by Go. A
model's own template is written into a Modelfile only as one of these, and only where both render every conversation of
MATRIX alike. What Ollama changes in a conversation before any template sees it, `find_losses` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studio.core.i18n import Text, text
from studio.data.template import ChatTemplate, Turns
from studio.data.templates.catalogue import list_names, read_family

FOLDER = Path(__file__).resolve().parent / "ollama"
PARTS = {"tool": ("tool",), "object": ("object", "value", "list"), "strip": ("strip",)}
"""Files of definitions that several templates use, and what each defines; the first use those behind them."""
USE = 'template "%s"'
WORDS = "(the words of the system)"
TOOL_KEYS = ("type", "function")
FUNCTION_KEYS = ("name", "description", "parameters")
PARAMETER_KEYS = ("type", "properties", "required")
PROPERTY_KEYS = ("type", "description", "enum", "items")
"""What Ollama keeps of a function's description, in the order in which the templates write it."""
ESCAPED = '\n\t\r"\\'
"""Letters that Go's quoting writes as JSON does, beside those that can be printed."""
EXACT = 2**53
"""Larger whole numbers are rounded: Go reads numbers of JSON as float64."""
BLANKS = " \n\t\r\v\f"
"""What the templates strip; Python strips other spaces, too."""


def _turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(name: str, number: str = "callabc12", **arguments: Any) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "find_weather",
            "description": "Say what the weather is <now> & “later”.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The town's name"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    },
)
MATRIX: tuple[tuple[Turns, Sequence[Mapping[str, Any]]], ...] = (
    ([_turn("user", "ask 1")], ()),
    ([_turn("system", "be kind"), _turn("user", "ask <1> & \"é\" '漢'")], ()),
    ([_turn("user", "ask 1"), _turn("assistant", "say 1\n"), _turn("user", "ask 2")], ()),
    (
        [
            _turn("system", "be kind"),
            _turn("user", " ask 1 "),
            _turn("assistant", "say 1"),
            _turn("user", "ask\n2"),
        ],
        (),
    ),
    ([_turn("system", "be kind"), _turn("user", "ask 1")], TOOLS),
    (
        [
            _turn("user", "ask 1"),
            _turn("assistant", "", tool_calls=[_call("find_weather", city="Ulm", unit="c")]),
            _turn("tool", "8 °C", tool_call_id="callabc12"),
        ],
        TOOLS,
    ),
    (
        [
            _turn("user", "ask 1"),
            _turn("assistant", "say 1", reasoning_content="think 1"),
            _turn("user", "ask 2"),
        ],
        (),
    ),
)
"""Conversations on which two templates are held against each other: what Ollama passes on of them is all of them."""


def find_family(own: ChatTemplate, special_tokens: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name of the template that renders as `own` does, and what `own` has the system say by itself.

    None where none does. A template that refuses a conversation says nothing of it.
    """
    for name in list_names():
        theirs = ChatTemplate(read_family(name), special_tokens)
        for system in dict.fromkeys(("", _find_system(own, theirs))):
            if _is_alike(own, theirs, system):
                return name, system
    return None


def write_template(name: str, special_tokens: Mapping[str, str], *, adds_begin: bool) -> str:
    """Return the template `name` as Ollama takes it. `adds_begin`: whether the tokenizer puts the first token itself.

    Raises KeyError where the template needs a token that there is not.
    """
    body = _read(name)
    words = body
    for part, inside in PARTS.items():
        if any(USE % name in words for name in inside):
            words = _read(f"part_{part}") + words
    tokens = {"bos_token": "" if adds_begin else special_tokens.get("bos_token", "")}
    tokens["bos_again"] = special_tokens.get("bos_token", "")

    def name_token(found: re.Match[str]) -> str:
        return tokens[found[1]] if found[1] in tokens else special_tokens[found[1]]

    return re.sub(r"\[\[(\w+)\]\]", name_token, words).rstrip("\n")


def find_losses(
    template: ChatTemplate, name: str, turns: Turns, tools: Sequence[Mapping[str, Any]] = ()
) -> list[Text]:
    """Return why Ollama's prompt of a conversation would be another one than `template`'s; empty where it is the same.

    `name`: of the template that stands in the Modelfile.
    """
    body = _read(name)
    found = []
    pairs = zip(turns, turns[1:], strict=False)
    if any(one["role"] == two["role"] != "tool" for one, two in pairs):
        found.append(text("ollama.merged"))
    thoughts = [(str(one.get("reasoning_content") or ""), str(one.get("content") or "")) for one in turns]
    if any(
        "</think>" in words or thought.strip("\n") != thought or (thought and words.startswith("\n"))
        for thought, words in thoughts
    ):
        found.append(text("ollama.thoughts"))
    if USE % "strip" in body and any(words.strip() != words.strip(BLANKS) for _, words in thoughts):
        found.append(text("ollama.letters"))
    if tools and ".Tools" not in body:
        with_tools, without = (
            template.try_render(turns, given, generation_prompt=True) for given in (tools, ())
        )
        if with_tools != without:
            found.append(text("ollama.tools"))
    calls = [call["function"] for one in turns for call in one.get("tool_calls") or ()]
    found += [reason for tool in tools if ".Tools" in body for reason in _judge_tool(tool)]
    found += [reason for call in calls if ".ToolCalls" in body for reason in _judge_value(call["arguments"])]
    if 'printf "%q" $m.Content' in body:  # results as JSON
        found += [reason for one in turns if one["role"] == "tool" for reason in _judge_value(one["content"])]
    return list({(one.id, str(one.values)): one for one in found}.values())


def _read(name: str) -> str:
    return (FOLDER / f"{name}.gotmpl").read_text(encoding="utf-8")


def _find_system(own: ChatTemplate, theirs: ChatTemplate) -> str:
    """Return what stands in `own`'s prompt of a single question where `theirs` has the words of the system."""
    question = [_turn("user", "ask 1")]
    told = theirs.try_render([_turn("system", WORDS), *question], generation_prompt=True) or ""
    found = own.try_render(question, generation_prompt=True) or ""
    before, _, behind = told.partition(WORDS)
    fits = (
        behind and found.startswith(before) and found.endswith(behind) and len(found) > len(before + behind)
    )
    return found[len(before) : -len(behind)] if fits else ""


def _is_alike(own: ChatTemplate, theirs: ChatTemplate, system: str) -> bool:
    compared = 0
    for turns, tools in MATRIX:
        wanted = own.try_render(turns, tools, generation_prompt=True)
        if wanted is None:
            continue
        given = turns if not system or turns[0]["role"] == "system" else [_turn("system", system), *turns]
        if theirs.try_render(given, tools, generation_prompt=True) != wanted:
            return False
        compared += 1
    return compared > 0


def _judge_tool(tool: Mapping[str, Any]) -> Iterator[Text]:
    function = tool.get("function") or {}
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    levels = [(tool, TOOL_KEYS), (function, FUNCTION_KEYS), (parameters, PARAMETER_KEYS)]
    levels += [(one, PROPERTY_KEYS) for one in (properties or {}).values() if isinstance(one, Mapping)]
    for level, known in levels:
        strange = [key for key in level if key not in known]
        if strange:
            yield text("ollama.key", key=str(strange[0]))
        elif list(level) != [key for key in known if key in level]:
            yield text("ollama.order")
    whole = isinstance(properties, Mapping) and all(isinstance(one, Mapping) for one in properties.values())
    empty = any(not level[key] for level, _ in levels for key in ("description", "required") if key in level)
    kinds = [level.get("type") for level, _ in levels]
    if not whole or empty or not all(isinstance(kind, str) for kind in [*kinds[:1], *kinds[2:]]):
        yield text("ollama.shape")
    if isinstance(properties, Mapping) and list(properties) != sorted(properties, key=_order):
        yield text("ollama.order")
    for level, _ in levels:
        for key in ("name", "description", "enum", "items"):
            yield from _judge_value(level.get(key))


def _judge_value(value: Any) -> Iterator[Text]:
    """Yield why a value is written otherwise by Go than by Python's json."""
    if isinstance(value, Mapping):
        if list(value) != sorted(value, key=_order):
            yield text("ollama.order")
        for key, one in value.items():
            yield from _judge_value(key)
            yield from _judge_value(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _judge_value(one)
    elif isinstance(value, str):
        if not all(letter.isprintable() or letter in ESCAPED for letter in value):
            yield text("ollama.letters")
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > EXACT:
            yield text("ollama.number", value=str(value)[:40])
    elif isinstance(value, float) and (value.is_integer() or "e" in repr(value)):
        yield text("ollama.number", value=repr(value))


def _order(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")
