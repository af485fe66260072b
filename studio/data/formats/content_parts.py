"""A turn's content where it is a list of parts, as hosted services write it: words, thoughts, calls, results, media."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from studio.core.i18n import text
from studio.data.conversation import Message, ToolCall
from studio.data.formats.cells import is_blank, name_kind, shorten
from studio.data.formats.flags import join_parts, weigh
from studio.data.formats.tool_calls import read_calls
from studio.data.row import RowError
from studio.data.row_codes import RowCode

Part = Mapping[str, Any]
IMAGE_TYPES = ("image", "image_url", "input_image", "image_asset_pointer")
MEDIA = {
    **dict.fromkeys(IMAGE_TYPES, "image"),
    **dict.fromkeys(("audio", "input_audio", "audio_url", "sound", "speech", "audio_asset_pointer"), "audio"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("file", "document", "input_file", "file_url", "fileData", "file_data"), "file"),
    **dict.fromkeys(("inlineData", "inline_data", "media"), "file"),
}
"""What a part's type, or the only key that it has, says of media."""
ATTACHED = {
    **dict.fromkeys(("images", "image", "image_url"), "image"),
    **dict.fromkeys(("audio", "audios", "input_audio"), "audio"),
    **dict.fromkeys(("video", "videos"), "video"),
    **dict.fromkeys(("attachments", "files", "file"), "file"),
}
"""Keys of a turn that hold media."""
WORD_TYPES = ("text", "input_text", "output_text", "refusal", "code", "summary_text", "markdown")
THOUGHT_TYPES = ("thinking", "reasoning", "thought", "reasoningContent", "reasoning_content", "think")
CALL_TYPES = ("tool_use", "toolUse", "functionCall", "function_call", "tool_call", "server_tool_use")
RESULT_TYPES = (
    "tool_result",
    "toolResult",
    "functionResponse",
    "function_response",
    "tool_response",
    "function_call_output",
)
PASSED = ("redacted_thinking", "cachePoint", "cache_point", "token_budget", "flag")
"""Parts that hold no words: what was made unreadable, and notes to the service."""
RESULT_KEYS = ("content", "response", "output", "result", "text")
ID_KEYS = ("tool_use_id", "toolUseId", "tool_call_id", "call_id", "id")


PLACEHOLDER = re.compile(
    r"<\|?(?:image|img|picture|video|audio|speech|sound|vision)"
    r"(?:[_ -]?(?:pad|start|placeholder|soft_token|\d+))*\|?/?>"
)
"""What stands in words for an image, a film or a recording."""


def refuse_attached(number: int, turn: Mapping[str, object]) -> None:
    """Raise RowError (BAD_IMAGE) where media stand beside the words of a turn, under a key of their own."""
    for key, kind in ATTACHED.items():
        found = turn.get(key)
        if found not in (None, "", [], {}, False):
            raise RowError(RowCode.BAD_IMAGE, text(f"data.row.media.{kind}", number=number))


def is_placeholder(words: str) -> bool:
    """Return whether words begin or end with what stands for media; elsewhere it may be spoken of, as in code."""
    words = words.strip()
    if words[:1] != "<" and words[-1:] != ">":
        return False
    return PLACEHOLDER.match(words) is not None or any(
        one.end() == len(words) for one in PLACEHOLDER.finditer(words, max(0, len(words) - 40))
    )


class Content(NamedTuple):
    """What a turn's content holds."""

    words: str = ""
    parts: tuple[Part, ...] = ()
    """All parts, where one is an image; else ()."""
    thoughts: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[Message, ...] = ()
    weight: float = 1.0


def read_content(number: int, found: object, of_tool: bool, images: bool) -> Content:
    """Return what the content of turn `number` holds. images: whether it may hold images.

    Raises RowError: media that cannot be learned from (BAD_IMAGE), flags that are not clear (UNCLEAR_FLAG), a part that
    is not known (WRONG_SHAPE), calls without a name (BAD_TOOL_CALL).
    """
    if found is None:
        return Content()
    if isinstance(found, str):
        return Content(found)
    if isinstance(found, Mapping) and not of_tool and _find_type(found):
        found = [found]
    if isinstance(found, (list, tuple)):
        if not of_tool or all(isinstance(part, str) or _find_type(part) for part in found):
            return _read_parts(number, found, images)
    if of_tool and isinstance(found, (list, tuple, Mapping, int, float)):
        return Content(_write_json(found))
    raise RowError(RowCode.WRONG_SHAPE, text("data.row.turn_not_text", number=number, found=name_kind(found)))


def _find_type(part: object) -> str:
    """Return the type of a part; where it names none, its key that is one: `{"toolUse": {...}}`."""
    if not isinstance(part, Mapping):
        return ""
    named = part.get("type", part.get("content_type"))
    if isinstance(named, str) and named:
        return named
    if isinstance(part.get("text"), str):
        return "text"
    for key in part:
        if key in MEDIA or key in CALL_TYPES or key in RESULT_TYPES or key in THOUGHT_TYPES or key in PASSED:
            return key
    return ""


def _read_parts(number: int, found: Sequence[object], images: bool) -> Content:
    words: list[str] = []
    thoughts: list[str] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    weights: list[float] = []
    has_image = False
    for part in found:
        if isinstance(part, str):
            words.append(part)
            parts.append({"type": "text", "text": part})
            continue
        kind = _find_type(part)
        if not kind:
            raise RowError(RowCode.WRONG_SHAPE, text("data.row.part", number=number, found=name_kind(part)))
        if kind not in part and "value" in part:  # {"type": "reasoning", "value": ...}
            part = {**{key: cell for key, cell in part.items() if key != "value"}, kind: part["value"]}
        inner = part.get(kind, part)
        if kind in MEDIA:
            if not (images and MEDIA[kind] == "image"):
                raise RowError(
                    RowCode.BAD_IMAGE, text(f"data.row.media.{_name_media(part, kind)}", number=number)
                )
            has_image = True
            parts.append({key: value for key, value in part.items() if value is not None})
        elif kind in THOUGHT_TYPES or part.get("thought") is True:
            thoughts.append(_say(number, inner if kind != "text" else part["text"]))
        elif kind in CALL_TYPES:
            calls += read_calls(
                number, {**inner, "id": _find_id(inner)} if isinstance(inner, Mapping) else inner
            )
        elif kind in RESULT_TYPES:
            results.append(_read_result(number, inner))
        elif kind in WORD_TYPES or isinstance(part.get("text"), str):
            said = part.get(kind) if isinstance(part.get(kind), str) else part.get("text")
            if isinstance(said, Mapping):  # a text with its annotations
                said = said.get("value", said.get("text"))
            if not isinstance(said, str):
                raise RowError(
                    RowCode.WRONG_SHAPE, text("data.row.turn_not_text", number=number, found=name_kind(said))
                )
            words.append(said)
            parts.append({"type": "text", "text": said})
            if not is_blank(said):
                weights.append(weigh(number, part))
        elif kind not in PASSED:
            raise RowError(RowCode.WRONG_SHAPE, text("data.row.part", number=number, found=shorten(kind, 40)))
    return Content(
        "".join(words),
        tuple(parts) if has_image else (),
        "\n".join(filter(None, thoughts)),
        tuple(calls),
        tuple(results),
        join_parts(number, weights),
    )


def _name_media(part: Part, kind: str) -> str:
    """Return image, audio, video or file; a part that names its own type of media says which."""
    inner = part.get(kind)
    told = [inner.get(key) for key in ("mimeType", "mime_type")] if isinstance(inner, Mapping) else []
    named = next((str(one).partition("/")[0] for one in told if one), MEDIA[kind])
    return named if named in ("image", "audio", "video") else "file"


def _say(number: int, inner: object) -> str:
    """Return the words of a thought, however deep they stand."""
    while isinstance(inner, Mapping):
        keys = ("thinking", "reasoning", "text", "reasoningText", "thought", "content", "summary")
        inner = next((inner[key] for key in keys if inner.get(key)), "")
    if isinstance(inner, (list, tuple)):
        return "\n".join(_say(number, one) for one in inner)
    if not isinstance(inner, str):
        raise RowError(
            RowCode.WRONG_SHAPE, text("data.row.turn_not_text", number=number, found=name_kind(inner))
        )
    return inner


def _read_result(number: int, inner: object) -> Message:
    """Return the result of a call as a turn of its own."""
    if not isinstance(inner, Mapping):
        return Message("tool", inner if isinstance(inner, str) else _write_json(inner))
    found = next((inner[key] for key in RESULT_KEYS if inner.get(key) is not None), "")
    if (
        isinstance(found, (list, tuple))
        and len(found) == 1
        and isinstance(found[0], Mapping)
        and "json" in found[0]
    ):
        found = found[0]["json"]
    name = inner.get("name")
    return Message(
        "tool",
        read_content(number, found, True, False).words,
        name=name if isinstance(name, str) else "",
        call_id=_find_id(inner),
    )


def _find_id(inner: Mapping[str, object]) -> str:
    return next((str(inner[key]) for key in ID_KEYS if inner.get(key)), "")


def _write_json(value: object) -> str:
    """Return a result of a function, which files also give as an object, in the words that a model reads."""
    try:
        return orjson.dumps(value, default=str).decode("utf-8")
    except TypeError as error:
        raise RowError(RowCode.WRONG_SHAPE, text("data.row.result_shape")) from error
