"""What a program may ask for: every parameter is read, refused, or known to change no answer; none is passed over."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.ui.completions.refusal import HttpRefusal, refuse_field

Body = Mapping[str, Any]
MOST_CHOICES = 16
MOST_STOPS = 16
MOST_LIKELIEST = 20
MOST_TOOLS = 128
MOST_MESSAGES = 2048
USUAL_TOKENS = 1024
"""Of an answer that names no limit, where the address allows so many."""
SCHEMA_CHARACTERS = 64 * 1024
SEEDS = 2**31
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
ROLES = ("system", "developer", "user", "assistant", "tool")
WITHOUT_EFFECT = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Parameters that change no answer, whatever they hold."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
}
"""Parameters of OpenAI's that are not offered, and with which values an answer is the same without them."""
COMMON = (
    *("model", "stream", "stream_options", "n", "stop", "seed", "temperature", "top_p", "max_tokens"),
    *("top_k", "min_p", "repetition_penalty", "logprobs", *WITHOUT_EFFECT, *NEUTRAL),
)
CHAT = (
    *(*COMMON, "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"),
    *("parallel_tool_calls", "response_format"),
)
COMPLETION = (*COMMON, "prompt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One request, checked. `prompts` are what is asked, each for `choices` answers."""

    model: str
    prompts: tuple[dict[str, Any], ...]
    """Of each, the fields of engine.generation.answer_request.AnswerRequest that say what is asked."""
    chat: bool
    choices: int
    stream: bool
    usage: bool
    """Whether a stream ends with a count of tokens."""
    sampling: dict[str, float]
    stop: tuple[str, ...]
    likeliest: int | None
    tools: tuple[dict[str, Any], ...] = ()
    called: tuple[str, ...] = ()
    parallel: bool = True
    schema: dict[str, Any] | None = None
    """Of JSON that the answer has to be."""


def read_body(body: bytes) -> Body:
    """Return the JSON object of a request. Raises HttpRefusal."""
    try:
        found = parse_json(body)
        # Half a character cannot be written again, and no tokenizer takes it.
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise HttpRefusal(400, text("answers.json"), code="invalid_json") from None
    if not isinstance(found, dict):
        raise HttpRefusal(400, text("answers.json"), code="invalid_json")
    return found


def read_chat(body: Body, most_tokens: int, hottest: float) -> Wanted:
    """Return what /v1/chat/completions is asked for. Raises HttpRefusal."""
    _refuse_unknown(body, CHAT)
    messages = _read_list(body, "messages", dict, 1, MOST_MESSAGES)
    told = _flag(body, "logprobs")
    top = _number(body, "top_logprobs", int, 0, MOST_LIKELIEST, 0)
    if top and not told:
        raise refuse_field("top_logprobs", "needs", other="logprobs")
    tools = tuple(map(_read_tool, _read_list(body, "tools", dict, 0, MOST_TOOLS), range(MOST_TOOLS)))
    offered, called = _read_choice(body, tools)
    schema = _read_format(body)
    if schema is not None and offered:
        raise refuse_field("response_format", "together", other="tools")
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return Wanted(
        prompts=({"messages": [_read_turn(one, place) for place, one in enumerate(messages)]},),
        chat=True,
        likeliest=top if told else None,
        tools=offered,
        called=called,
        parallel=_flag(body, "parallel_tool_calls", True),
        schema=schema,
        **_read_common(body, limit, most_tokens, hottest),
    )


def read_completion(body: Body, most_tokens: int, hottest: float) -> Wanted:
    """Return what /v1/completions is asked for. Raises HttpRefusal."""
    _refuse_unknown(body, COMPLETION)
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if (
        not isinstance(prompts, list)
        or not prompts
        or not all(isinstance(one, str) and one for one in prompts)
    ):
        raise refuse_field("prompt", "texts")
    common = _read_common(body, "max_tokens", most_tokens, hottest)
    if len(prompts) * common["choices"] > MOST_CHOICES:
        raise refuse_field("prompt", "most", most=MOST_CHOICES // common["choices"])
    likeliest = _number(body, "logprobs", int, 0, MOST_LIKELIEST, None)
    asked = tuple({"words": words} for words in prompts)
    return Wanted(prompts=asked, chat=False, likeliest=likeliest, **common)


def _read_common(body: Body, limit: str, most_tokens: int, hottest: float) -> dict[str, Any]:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise refuse_field("model", "text")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not stream:
        raise refuse_field("stream_options", "needs", other="stream")
    if options is not None and (not isinstance(options, dict) or set(options) - {"include_usage"}):
        raise refuse_field("stream_options", "stream_options")
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise refuse_field("stop", "texts")
    if len(stops) > MOST_STOPS:
        raise refuse_field("stop", "most", most=MOST_STOPS)
    seed = _number(body, "seed", int, -(2**63), 2**63 - 1, None)
    return {
        "model": model,
        "choices": _number(body, "n", int, 1, MOST_CHOICES, 1),
        "stream": stream,
        "usage": _flag(options or {}, "include_usage"),
        "stop": tuple(stops),
        "sampling": {
            "max_new_tokens": _number(body, limit, int, 1, most_tokens, min(USUAL_TOKENS, most_tokens)),
            "temperature": _number(body, "temperature", float, 0, hottest, 1.0),
            "top_p": _number(body, "top_p", float, 0, 1, 1.0),
            "top_k": _number(body, "top_k", int, 0, 2**31 - 1, 0),
            "min_p": _number(body, "min_p", float, 0, 1, 0.0),
            "repetition_penalty": _number(body, "repetition_penalty", float, 0.1, 10, 1.0),
            "seed": secrets.randbelow(SEEDS) if seed is None else seed % SEEDS,
        },
    }


def _refuse_unknown(body: Body, known: Sequence[str]) -> None:
    for name, value in body.items():
        if name not in known:
            raise HttpRefusal(
                400, text("answers.unknown", field=name[:64]), field=name[:64], code="unknown_parameter"
            )
        if name in NEUTRAL and value is not None and not any(_same(value, one) for one in NEUTRAL[name]):
            raise HttpRefusal(
                400, text("answers.unsupported", field=name), field=name, code="unsupported_value"
            )


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _number(body: Body, name: str, kind: type, low: float, high: float, usual: Any) -> Any:
    value = body.get(name)
    if value is None:
        return usual
    sound = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not sound or not low <= value <= high:  # NaN is in no range
        raise refuse_field(name, "whole" if kind is int else "number", low=f"{low:g}", high=f"{high:.10g}")
    return kind(value)


def _flag(body: Body, name: str, usual: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise refuse_field(name, "flag")
    return value


def _read_list(body: Body, name: str, kind: type, least: int, most: int) -> list[Any]:
    value = body.get(name)
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(one, kind) for one in found) or len(found) < least:
        raise refuse_field(name, "objects")
    if len(found) > most:
        raise refuse_field(name, "most", most=most)
    return found


# Messages -------------------------------------------------------------------------------------------------------------


def _read_turn(turn: Body, place: int) -> dict[str, Any]:
    """Return a message as data.conversation.read_message takes it. Raises HttpRefusal."""
    field = f"messages[{place}]"
    role = turn.get("role")
    if role not in ROLES:
        raise refuse_field(f"{field}.role", "one_of", choices=", ".join(ROLES))
    calls = turn.get("tool_calls") if role == "assistant" else None
    found: dict[str, Any] = {"role": "system" if role == "developer" else role}
    found["content"] = _read_content(turn.get("content"), f"{field}.content", empty=bool(calls))
    for name, kept in (("name", "name"), ("reasoning_content", "reasoning_content")):
        if turn.get(name) is not None:
            found[kept] = _text(turn, name, f"{field}.{name}")
    if role == "tool":
        found["tool_call_id"] = _text(turn, "tool_call_id", f"{field}.tool_call_id")
    if calls is not None:
        if not isinstance(calls, list):
            raise refuse_field(f"{field}.tool_calls", "objects")
        found["tool_calls"] = [_read_call(call, f"{field}.tool_calls") for call in calls]
    return found


def _read_content(content: Any, field: str, *, empty: bool) -> str:
    if content is None and empty:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise refuse_field(field, "text")
    words = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            kind = part.get("type") if isinstance(part, dict) else ""
            raise refuse_field(field, "content", kind=str(kind)[:40])
        words.append(_text(part, part["type"], field))
    return "".join(words)


def _read_call(call: Any, field: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refuse_field(field, "call")
    try:
        arguments = parse_json(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refuse_field(field, "arguments")
    given = call.get("id")
    return {
        "id": given if isinstance(given, str) else "",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _text(turn: Body, name: str, field: str) -> str:
    value = turn.get(name)
    if not isinstance(value, str):
        raise refuse_field(field, "text")
    return value


# Tools and forms ------------------------------------------------------------------------------------------------------


def _read_tool(tool: Body, place: int) -> dict[str, Any]:
    field, function = f"tools[{place}]", tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise refuse_field(field, "tool")
    if set(function) - {"name", "description", "parameters", "strict"}:
        raise refuse_field(field, "tool")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refuse_field(f"{field}.function.name", "name")
    if parameters is not None and not isinstance(parameters, dict):
        raise refuse_field(f"{field}.function.parameters", "object")
    if not isinstance(function.get("description", ""), (str, type(None))):
        raise refuse_field(f"{field}.function.description", "text")
    if function.get("strict"):
        raise refuse_field(f"{field}.function.strict", "strict")
    _limit_schema(parameters or {}, f"{field}.function.parameters")
    kept = {"name": name, "description": function.get("description") or ""}
    return {
        "type": "function",
        "function": kept | {"parameters": parameters or {"type": "object", "properties": {}}},
    }


def _read_choice(
    body: Body, tools: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Return the tools that the model is shown, and the names of those of which it must call one."""
    choice, names = body.get("tool_choice"), tuple(tool["function"]["name"] for tool in tools)
    if len(set(names)) < len(names):
        raise refuse_field("tools", "twice")
    if choice is None or choice == "auto":
        return tools, ()
    if choice == "none":
        return (), ()
    if not tools:
        raise refuse_field("tool_choice", "needs", other="tools")
    if choice == "required":
        return tools, names
    function = (
        choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    )
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise refuse_field("tool_choice", "one_of", choices=", ".join(("none", "auto", "required", *names)))
    return tools, (name,)


def _read_format(body: Body) -> dict[str, Any] | None:
    form = body.get("response_format")
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    part = form.get("json_schema") if kind == "json_schema" else None
    schema = part.get("schema") if isinstance(part, dict) else None
    if not isinstance(schema, dict):
        raise refuse_field("response_format", "format")
    _limit_schema(schema, "response_format")
    return schema


def _limit_schema(schema: Body, field: str) -> None:
    if len(json.dumps(schema)) > SCHEMA_CHARACTERS:
        raise refuse_field(field, "schema_long", most=SCHEMA_CHARACTERS)
