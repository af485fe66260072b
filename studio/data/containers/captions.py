"""Subtitles (.srt, .vtt, .sbv): what is said, without the numbers and times that a player needs; one row a file."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import BinaryIO

from studio.data.charset import get_codec
from studio.data.containers.container import Container, ReadOptions
from studio.data.containers.text_files import COLUMN
from studio.data.row import Row

READ_BYTES = 2**24
"""A film has 100 KB of subtitles; of a longer file the rest is no subtitles."""
TIMES = re.compile(r"(?:\d+:)?\d{1,2}:\d{2}[.,]\d{2,3}\s*(?:-->|,)\s*(?:\d+:)?\d{1,2}:\d{2}[.,]\d{2,3}.*")
VOICE = re.compile(r"<v(?:\.[\w.]+)?\s+([^>]+)>")
TAGS = re.compile(r"</?[a-zA-Z][^>]*>|\{\\[^}]*\}|<\d[\d:.]*>")
ASIDE = ("WEBVTT", "NOTE", "STYLE", "REGION", "Kind:", "Language:", "X-TIMESTAMP")


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file's name, or its first line, says so."""
    return suffix in CONTAINER.suffixes or head.lstrip(b"\xef\xbb\xbf").startswith(b"WEBVTT")


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield one Row with the column `text`: a line a caption, behind the name of its speaker if told."""
    words = stream.read(READ_BYTES).decode(get_codec(encoding), "replace").replace("\r\n", "\n")
    said = [line for block in re.split(r"\n[ \t]*\n", words) if (line := _read_caption(block))]
    lines = [line for n, line in enumerate(said) if n == 0 or line != said[n - 1]]
    if lines:
        yield Row(1, {COLUMN: "\n".join(lines)}, None, 1, 0)


def _read_caption(block: str) -> str:
    """Return what one caption says in one line; "" for a block without a time, which is a note or a heading."""
    lines = block.strip().splitlines()
    place = next((n for n, line in enumerate(lines) if TIMES.fullmatch(line.strip())), None)
    if place is None or block.startswith(ASIDE):
        return ""
    said = [VOICE.sub(r"\1: ", line) for line in lines[place + 1 :]]
    return " ".join(html.unescape(TAGS.sub("", " ".join(said))).split())


CONTAINER = Container(name="captions", suffixes=(".srt", ".vtt", ".sbv"), accepts=accept, iterate=iterate)
