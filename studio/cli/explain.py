"""`explain`: what a pasted error text or a log means. Standard library only: it works where nothing installs."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from studio.cli.arguments import parse
from studio.cli.console import Console, leave_reader
from studio.core.errors import StudioError
from studio.core.i18n import choose_language, load_catalogue, text
from studio.machine.failures.explanation import explain_words

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 256 * 1024
"""A log's first lines name the versions, its last ones the failure; what lies between them is not read."""
CHUNK_BYTES = 1024 * 1024
UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
FOREIGN = re.compile(rb"[\x80-\xff]+(?![\x80-\xff]|\Z)")
"""A run of bytes beyond ASCII, without one that may be cut at the end."""
NO_TEXT = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f\ufffd]")
NO_TEXT_SHARE = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `explain` alone, without the rest of the studio, and return its exit code: 0 done, 2 bad input."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    console = Console(load_catalogue(choose_language()), as_json="--json" in words)
    try:
        return explain(parse(words, console.catalogue), None, console)
    except StudioError as error:
        return console.refuse(error)
    except BrokenPipeError:
        return leave_reader()
    except KeyboardInterrupt:
        return 2


def explain(options: argparse.Namespace, workspace: object, console: Console) -> int:
    """Say what the text in `options.file`, or on stdin, means. An unknown text is an answer too: exit code 0."""
    if options.file in (None, "-"):
        words, whole = read_stream(console)
    else:
        words, whole = read_file(Path(options.file))
    if not words.strip():
        raise _refuse("empty")
    if not whole:
        console.note(text("explain.long", head=HEAD_BYTES // 1024, tail=TAIL_BYTES // 1024))
    answer = explain_words(words, console.catalogue)
    lines = [answer["what"], answer["why"], *(f"  - {fix}" for fix in answer["fixes"])]
    if answer["where"]:
        lines.insert(2, answer["where"])
    named = answer["why"]
    if answer["other"]:
        other = answer["other"]
        which = console.catalogue.say(text("explain.which", tell=answer["tell"]))
        lines = [
            console.catalogue.say(text("explain.unsure")),
            which,
            *("1. " + lines[0], *lines[1:]),
            *("2. " + other["what"], other["why"], *(f"  - {fix}" for fix in other["fixes"])),
        ]
        named += other["why"]
    if answer["line"] and answer["line"] not in named:
        lines.insert(2, f"  > {answer['line']}")
    if answer["doubt"]:
        lines[:0] = [answer["doubt"]]
    names = [answer, answer["other"]] if answer["other"] else [answer]
    if answer["code"]:
        lines.append("[" + ", ".join(f"{one['code']} {one['id']}" for one in names) + "]")
    console.answer(answer, lines)
    return 0


def read_file(path: Path) -> tuple[str, bool]:
    """Return the text of `path`, of a long one its head and tail, and whether it is whole. Raises StudioError."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise _refuse("folder", path=str(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise _refuse("device", path=str(path))
        with path.open("rb") as source:
            return decode(*_read_ends(source))
    except FileNotFoundError as error:
        raise _refuse("absent", path=str(path)) from error
    except (OSError, ValueError) as error:  # may not be read; a name that no file can have
        raise StudioError(
            text("explain.unreadable", path=str(path)),
            text("explain.unreadable.why", error=str(error)),
            text("explain.unreadable.fix"),
        ) from error


def read_stream(console: Console) -> tuple[str, bool]:
    """Return what is pasted or piped into this process, like `read_file`."""
    if sys.stdin is None:
        raise _refuse("empty")
    if sys.stdin.isatty():
        console.say(text("explain.paste.windows" if os.name == "nt" else "explain.paste"))
        words = sys.stdin.read()
        return words, True
    return decode(*_read_ends(sys.stdin.buffer))


def decode(head: bytes, tail: bytes) -> tuple[str, bool]:
    """Return the text of a log's first and last bytes, and whether these are all of it. Raises StudioError on no text.

    Windows writes logs as UTF-16 (PowerShell's >), UTF-8 with or without a mark, or in its own code page.
    """
    encoding = find_encoding(head)
    words = head.decode(encoding, "replace").lstrip("\ufeff")
    if tail:
        # The first line of the tail and the last one of the head are cut.
        words = words.rpartition("\n")[0] + "\n" + tail.decode(encoding, "replace").partition("\n")[2]
    if len(NO_TEXT.findall(words)) > NO_TEXT_SHARE * len(words):
        raise _refuse("binary")
    return words, not tail


def find_encoding(data: bytes) -> str:
    """Return the encoding of text that starts with `data`; Western European where nothing else fits."""
    mark = UTF16.get(data[:2])
    if mark:
        return mark
    sample = data[:4096]
    if (
        len(sample) > 3
        and sample[1::2].count(0) > len(sample) // 4
        and sample[::2].count(0) < len(sample) // 16
    ):
        return "utf-16-le"
    for encoding in ("utf-8", "gbk"):
        # Chinese comes in pairs of bytes; a European letter beyond ASCII mostly stands alone.
        if encoding == "gbk" and any(len(run) % 2 for run in FOREIGN.findall(data)):
            continue
        try:
            codecs.getincrementaldecoder(encoding)().decode(data)
        except UnicodeDecodeError:
            continue
        return encoding
    return "cp1252"


def _read_ends(source: BinaryIO) -> tuple[bytes, bytes]:
    """Return the first HEAD_BYTES and the last TAIL_BYTES, b"" when the first ones are all; never more in memory."""
    head = source.read(HEAD_BYTES + TAIL_BYTES)
    more = source.read(CHUNK_BYTES)
    if not more:
        return head, b""
    if source.seekable():
        size = source.seek(0, os.SEEK_END)
        source.seek((size - TAIL_BYTES) // 4 * 4)  # on a character of UTF-16
        return head[:HEAD_BYTES], source.read(TAIL_BYTES + 4)
    rest, length = head[HEAD_BYTES:], HEAD_BYTES + len(head[HEAD_BYTES:])
    while more:
        length += len(more)
        rest = (rest + more)[-TAIL_BYTES:]
        more = source.read(CHUNK_BYTES)
    return head[:HEAD_BYTES], rest[(length - len(rest)) % 2 :]


def _refuse(kind: str, **values: str) -> StudioError:
    what, why = text(f"explain.{kind}", **values), text(f"explain.{kind}.why")
    return StudioError(what, why, text("explain.fix"))


if __name__ == "__main__":
    sys.exit(main())
