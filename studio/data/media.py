"""Columns with films or recordings, which the studio does not learn from: words about them are not learned blind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.formats.cells import Values, is_empty, shorten
from studio.data.formats.column_names import part_name
from studio.data.formats.content_parts import IMAGE_TYPES, PLACEHOLDER
from studio.data.formats.roles import read_role
from studio.data.talks.sides import find_side, find_speaker, find_words

NAMES = {
    **dict.fromkeys("video videos clip clips movie film films footage 视频".split(), "video"),
    **dict.fromkeys(
        "audio audios speech sound sounds wav recording recordings voice 音频 语音".split(), "audio"
    ),
}
SUFFIXES = {
    **dict.fromkeys((".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg"), "video"),
    **dict.fromkeys((".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a", ".aac", ".wma"), "audio"),
}
LOOKED_AT = 300
PICTURED = frozenset(
    "image images img imgs picture pictures photo photos pixel bytes path file 图片 图像 图".split()
)


def refuse_media(columns: Sequence[str], rows: Sequence[Values]) -> None:
    """Raise StudioError where a column holds films or recordings: a question about them cannot be learned blind."""
    for name in columns:
        cells = [row[name] for row in rows[:LOOKED_AT] if not is_empty(row.get(name))]
        kinds = [find_medium(name, cell) for cell in cells]
        if cells and 2 * sum(map(bool, kinds)) > len(cells):
            parts = (
                text(f"data.media.{next(filter(None, kinds))}{part}", column=shorten(name))
                for part in ("", ".why", ".fix")
            )
            raise StudioError(*parts)


def refuse_placeholders(columns: Sequence[str], rows: Sequence[Values]) -> None:
    """Raise StudioError where most questions have a placeholder for media and no column holds any."""
    rows = rows[:LOOKED_AT]
    shown = [
        name
        for name in columns
        if PICTURED.intersection(part_name(name)) and any(row.get(name) for row in rows)
    ]
    for name in () if shown else columns:
        asked = [words for row in rows if (words := " ".join(_list_asked(name, row.get(name))))]
        if len(asked) * 2 > len(rows) and 2 * sum(
            PLACEHOLDER.search(words) is not None for words in asked
        ) > len(asked):
            parts = (
                text(f"data.media.placeholder{part}", column=shorten(name)) for part in ("", ".why", ".fix")
            )
            raise StudioError(*parts)


def _list_asked(name: str, cell: object) -> Iterator[str]:
    """Yield what is asked in a cell: its words, or those of turns that are no answers."""
    if isinstance(cell, str):
        yield from () if find_side(name) == "assistant" else (cell,)
    for turn in cell if isinstance(cell, (list, tuple)) else ():
        words = find_words(turn) if isinstance(turn, Mapping) else turn
        if isinstance(words, list) and any(
            isinstance(one, Mapping) and one.get("type") in IMAGE_TYPES for one in words
        ):
            return
        if isinstance(words, str) and not (
            isinstance(turn, Mapping) and read_role(find_speaker(turn)) == "assistant"
        ):
            yield words


def find_medium(name: str, cell: object) -> str:
    """Return video or audio where a cell is one, or a list of them; "" for another cell."""
    if isinstance(cell, (list, tuple)):
        return find_medium(name, cell[0]) if cell else ""
    named = next((NAMES[word] for word in part_name(name) if word in NAMES), "")
    if isinstance(cell, Mapping):
        if "sampling_rate" in cell or "array" in cell:
            return named or "audio"
        path = next((cell[key] for key in ("path", "url", "src") if isinstance(cell.get(key), str)), "")
        return find_medium(name, path) or (named if isinstance(cell.get("bytes"), bytes) else "")
    if isinstance(cell, (bytes, bytearray)):
        return named
    if not isinstance(cell, str) or len(cell.split()) > 1:
        return ""
    if named and ("/" in cell or re.search(r"\.\w{2,5}$", cell)):
        return named
    path = cell.lower().split("?", 1)[0]
    if cell.startswith(("data:audio/", "data:video/")):
        return cell[5:10]
    return next((kind for suffix, kind in SUFFIXES.items() if path.endswith(suffix)), "")
