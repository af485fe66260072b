"""Images with a conversation, a question and its answer, or a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from studio.core.i18n import text
from studio.data.containers.images import SUFFIXES, check_image
from studio.data.conversation import Conversation, Message
from studio.data.formats.aliases import ANSWERS, CAPTIONS, IMAGES, LISTS, QUESTIONS, SYSTEM, TEXT
from studio.data.formats.cells import (
    Values,
    holds_setting,
    holds_text,
    holds_words,
    is_empty,
    name_kind,
    read_cell,
    read_optional,
    shorten,
)
from studio.data.formats.content_parts import IMAGE_TYPES
from studio.data.formats.format import Format, Mapped
from studio.data.formats.message_parsing import (
    find_turns,
    holds_turns,
    is_turn,
    make_chat,
    put_system_first,
    read_turns,
)
from studio.data.formats.prompt_answer import holds_side
from studio.data.row import RowError
from studio.data.row_codes import RowCode

IN_ROW = "row:"
"""Before the name of the column that holds an image's bytes."""
PLACEHOLDER = "<image>"
"""What stands in words for an image."""
ADDRESSES = ("http://", "https://")


def is_image(value: object) -> bool:
    """Return whether a value is an image: bytes, or a path, address or data that says so."""
    if isinstance(value, (bytes, bytearray)):
        return True
    if isinstance(value, Mapping):
        return isinstance(value.get("bytes"), bytes) or isinstance(value.get("path"), str)
    if not isinstance(value, str):
        return False
    return value.startswith((IN_ROW, "data:image/")) or value.lower().split("?", 1)[0].endswith(SUFFIXES)


def holds_images(cell: object) -> bool:
    """Return whether a cell is an image or a list of them."""
    return any(map(is_image, cell)) if isinstance(cell, (list, tuple)) else is_image(cell)


def doubt(columns: Sequence[str], mapping: Mapped, sample: Sequence[Values]) -> float:
    """Return 0.6 where there is no column of images and no turn holds one."""
    if "images" in mapping:
        return 0.0
    return 0.0 if any(_shows_image(row.get(mapping["messages"])) for row in sample) else 0.6


def _shows_image(cell: object) -> bool:
    for turn in find_turns(cell) or ():
        parts = turn.get("content") if is_turn(turn) else None
        if isinstance(parts, list) and any(
            isinstance(p, Mapping) and p.get("type") in IMAGE_TYPES for p in parts
        ):
            return True
    return False


def read(values: Values, mapping: Mapped) -> Conversation:
    """Turns with their images; a question stands before its answer, a caption answers the image alone."""
    images = _read_images(values, mapping["images"]) if "images" in mapping else ()
    if "messages" in mapping:
        messages = read_turns(values, mapping["messages"], images=True)
    else:
        parts = tuple({"type": "image"} for _ in images)
        asked = read_optional(values, mapping, "prompt") if "completion" in mapping else ""
        if asked:
            parts += ({"type": "text", "text": asked},)
        answer = mapping["completion"] if "completion" in mapping else mapping["caption"]
        messages = [Message("user", asked, parts=parts), Message("assistant", read_cell(values, answer))]
    messages = put_system_first(messages, read_optional(values, mapping, "system"))
    shown = [part for message in messages for part in message.parts if part.get("type") in IMAGE_TYPES]
    own = tuple(found for part in shown if (found := _read_part(part, mapping.get("messages", ""))))
    if images and shown and len(shown) != len(images) + len(own):
        raise RowError(
            RowCode.BAD_IMAGE, text("data.row.image.count", shown=len(shown), found=len(images) + len(own))
        )
    awaited = (
        shown or "messages" not in mapping or any(PLACEHOLDER in message.content for message in messages)
    )
    if awaited and not images and not own:
        raise RowError(RowCode.BAD_IMAGE, text("data.row.no_image"))
    return make_chat(messages)._replace(kind="vision", images=images + own)


def _read_images(values: Values, column: str) -> tuple[str, ...]:
    """Return a row's images; () for rows of text alone. Raises RowError (BAD_IMAGE)."""
    cell = values.get(column)
    if is_empty(cell):
        return ()
    if not isinstance(cell, (list, tuple)):
        return (_name_image(cell, column, column),)
    return tuple(_name_image(value, column, f"{column}[{i}]") for i, value in enumerate(cell))


def _name_image(value: object, column: str, place: str) -> str:
    """Return the path or address of an image, or where in the row its bytes stand. Raises RowError (BAD_IMAGE)."""
    if isinstance(value, Mapping):
        inside, path = value.get("bytes"), value.get("path")
        value = inside if isinstance(inside, bytes) and inside else path
    if isinstance(value, (bytes, bytearray)) or (isinstance(value, str) and value.startswith("data:image/")):
        return IN_ROW + place
    if not isinstance(value, str) or not value.strip():
        raise RowError(
            RowCode.BAD_IMAGE, text("data.row.image.kind", column=shorten(column), found=name_kind(value))
        )
    return value


def _read_part(part: Mapping[str, object], column: str) -> str:
    """Return the path or address that an image part names; "" for one that stands for the next of the row's images.

    column: where the part stands, for images whose bytes are in it.
    """
    for key in ("image", "image_url", "path", "url", "source"):
        found = part.get(key)
        if isinstance(found, Mapping):
            if found.get("data") or found.get("bytes"):
                return f"{IN_ROW}{column}"
            found = found.get("url") or found.get("path")
        if isinstance(found, str) and found:
            return f"{IN_ROW}{column}" if found.startswith("data:") else found
    return ""


def check_images(conversation: Conversation, folder: Path) -> None:
    """Raise RowError (BAD_IMAGE) where an image is no file or damaged; paths begin at `folder`, the data's own.

    For data sets of this computer. Bytes in the row are not looked at; an address would have to be fetched.
    """
    for name in conversation.images:
        if name.startswith(IN_ROW):
            continue
        if name.startswith(ADDRESSES):
            raise RowError(RowCode.BAD_IMAGE, text("data.row.image.address", name=shorten(name)))
        path = folder / name.removeprefix("file://")
        try:
            found = path.is_file()
        except (OSError, ValueError):  # names that are too long or hold NUL
            found = False
        if not found:
            raise RowError(RowCode.BAD_IMAGE, text("data.row.image.missing", name=shorten(name)))
        check_image(path, shorten(name))


FORMAT = Format(
    name="vision",
    roles={
        "images": IMAGES,
        "messages": LISTS,
        "prompt": ("prompt", *QUESTIONS),
        "completion": ("completion", *(name for name in ANSWERS if name != "completion")),
        "caption": (*CAPTIONS, *TEXT),
        "system": SYSTEM,
    },
    required=("images|messages", "messages|completion|caption"),
    kinds={
        "images": holds_images,
        "messages": holds_turns,
        "prompt": holds_side,
        "completion": holds_words,
        "caption": holds_text,
        "system": holds_setting,
    },
    read=read,
    beside="never",
    doubt=doubt,
    beats=("messages", "sharegpt", "prompt_completion", "alpaca", "text", "rl"),
    loose=("caption",),
)
