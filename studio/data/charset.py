"""In which encoding a file is written: its mark, a scan for valid UTF-8, else a guess that a person confirms."""

from __future__ import annotations

import codecs
import io
import re
from dataclasses import dataclass
from typing import BinaryIO

from studio.data.legacy_encodings import CODECS, decide_encoding, is_plausible, rank_encodings

ENCODINGS = (
    "utf-8",
    "utf-8-sig",
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "cp1252",
    "gb18030",
    "big5",
    "shift_jis",
    "euc_kr",
    "cp1251",
)
"""What a file of text may be written in. utf-8-sig and utf-16 begin with a mark, utf-16-le and -be have none."""
SINGLE_BYTES = ("cp1252", "cp1251")
MARKS = (  # longest first: that of UTF-32 begins like that of UTF-16
    (b"\xff\xfe\0\0", ""),
    (b"\0\0\xfe\xff", ""),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CHUNK_BYTES = 2**20
SCAN_BYTES = 64 * 2**20
"""So much is scanned before the first preview, some 0.1 s; broken characters behind it become broken rows."""
SAMPLE_BYTES = 2**15
EXCERPT_BYTES = 20
"""Shown on each side of the first character beyond ASCII."""
ENOUGH_BROKEN = 2**16
BROKEN = re.compile("[\udc80-\udcff]")
"""Bytes that are no UTF-8, as surrogateescape shows them."""
LINES_BEYOND_ASCII = re.compile(rb"[^\n]*[\x80-\xff][^\n]*")
PAUSE = re.compile(rb"[\x00-\x2f]")
"""Blanks and signs below the digits: never the second byte of a character in any of ENCODINGS but UTF-16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodingGuess:
    """What a file seems to be written in."""

    encoding: str
    """One of ENCODINGS; "" for UTF-32, which is not read."""
    sure: bool
    """Whether the bytes leave no doubt; otherwise a person should look at the preview and confirm."""
    choices: tuple[str, ...]
    """What it could be, the likeliest first; `encoding` alone when it is sure."""
    excerpt: bytes = b""
    """Some words with characters beyond ASCII, by which a person tells the choices apart; empty when it is sure."""

    def show(self, encoding: str) -> str:
        """Return the excerpt as it reads in `encoding`."""
        return " ".join(self.excerpt.decode(encoding, "replace").split())


def find_mark(head: bytes) -> tuple[str, bytes] | None:
    """Return (encoding, mark) when `head` begins with a byte order mark."""
    return next(((name, mark) for mark, name in MARKS if head.startswith(mark)), None)


def detect_encoding(stream: BinaryIO, suffix: str = "", limit_bytes: int = SCAN_BYTES) -> EncodingGuess:
    """Return the EncodingGuess for `stream` (at its start), which is read to its end or `limit_bytes` (0: no limit).

    suffix: such as ".jsonl"; JSON is UTF-8 by its standard, so that one bad line does not make it another encoding.
    """
    chunk = stream.read(CHUNK_BYTES)
    encoding = mark[0] if (mark := find_mark(chunk)) else _find_utf16(chunk)
    if encoding is not None:
        return _sure(encoding)
    whole, broken, broken_lines, lines, read, sample = 0, 0, 0, 0, 0, b""
    rest = b""  # of a character that the chunk cuts
    while chunk:
        read, lines = read + len(chunk), lines + chunk.count(b"\n")
        if rest or not chunk.isascii():
            words, rest, found = _decode(rest + chunk)
            whole += len(chunk) - len(words)  # characters beyond ASCII take two bytes or more
            if found:
                broken += found
                broken_lines += sum(1 for line in words.split("\n") if BROKEN.search(line))
                if len(sample) < SAMPLE_BYTES:
                    sample += _take_sample(chunk, SAMPLE_BYTES)
        if broken > ENOUGH_BROKEN or (limit_bytes and read >= limit_bytes):
            break
        chunk = stream.read(CHUNK_BYTES)
    else:
        if rest:
            broken, broken_lines, sample = broken + len(rest), broken_lines + 1, sample or rest
    if whole >= broken:  # also where both are none, which is ASCII
        return _sure("utf-8")
    in_json = suffix in (".jsonl", ".ndjson", ".json") and lines > 1
    if broken_lines == 1 and (in_json or not is_plausible(sample)):
        return _sure("utf-8")
    if decided := decide_encoding(sample):
        return _sure(decided)
    choices = tuple(name for name, _ in rank_encodings(sample)) or ("cp1252",)
    choices = (*choices, "utf-8")
    return EncodingGuess(encoding=choices[0], sure=False, choices=choices, excerpt=_cut_excerpt(sample))


def _sure(encoding: str) -> EncodingGuess:
    return EncodingGuess(encoding=encoding, sure=True, choices=(encoding,))


def _decode(data: bytes) -> tuple[str, bytes, int]:
    """Return (words, bytes of an unfinished character at the end, number of bytes that are no UTF-8)."""
    try:
        words, used = codecs.utf_8_decode(data, "strict", False)
        return words, data[used:], 0
    except UnicodeDecodeError:
        words, used = codecs.utf_8_decode(data, "surrogateescape", False)
        return words, data[used:], len(BROKEN.findall(words))


def _take_sample(chunk: bytes, limit_bytes: int) -> bytes:
    """Return lines of `chunk` that hold bytes beyond ASCII, cut where no character is cut."""
    sample = b""
    for match in LINES_BEYOND_ASCII.finditer(chunk):
        sample += match[0][:limit_bytes] + b"\n"
        if len(sample) >= limit_bytes:
            break
    pauses = list(PAUSE.finditer(sample))
    start = 0 if chunk.startswith(sample[:64]) else pauses[0].end() if len(pauses) > 1 else 0
    return sample[start : pauses[-1].end()] if pauses else sample


def _cut_excerpt(sample: bytes) -> bytes:
    """Return the first words of `sample` that are not ASCII, with those beside them, cut where no character is cut."""
    beyond = re.search(rb"[\x80-\xff]", sample)
    if beyond is None:
        return b""
    pauses = [0, *(pause.end() for pause in PAUSE.finditer(sample)), len(sample)]
    start = max(at for at in pauses if at <= max(0, beyond.start() - EXCERPT_BYTES) or at == 0)
    end = next((at for at in pauses if at >= beyond.end() + EXCERPT_BYTES), len(sample))
    return sample[start:end][: 8 * EXCERPT_BYTES].strip()


def _find_utf16(head: bytes) -> str | None:
    """Return the UTF-16 without a mark in which `head` is written, seen by zeros on one side of its pairs."""
    head = head[: len(head) // 2 * 2]
    zeros = head[0::2].count(0), head[1::2].count(0)
    side = zeros[1] > zeros[0]
    many, few = zeros[side], zeros[not side]
    share = many / max(len(head) // 2, 1)
    western = share > 0.6
    eastern = share > 0.05 and not head.replace(b"\0", b"").isascii()  # blanks and signs among other letters
    if many < 2 or few > many / 20 or not (western or eastern):
        return None
    encoding = "utf-16-le" if side else "utf-16-be"
    words = head.decode(encoding, "replace")
    return encoding if words.count("\ufffd") <= 1 + len(words) // 1000 else None


def skip_mark(stream: BinaryIO, encoding: str) -> tuple[BinaryIO, str, int]:
    """Return (`stream`, from its start, behind its mark; the encoding without a mark; length of the mark in bytes)."""
    if encoding not in ("utf-8", "utf-8-sig", "utf-16"):
        return stream, encoding, 0
    start = stream.read(3 if encoding != "utf-16" else 2)
    marks = (codecs.BOM_UTF8,) if encoding != "utf-16" else (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    length = len(start) if start in marks else 0
    if encoding == "utf-16":
        encoding = "utf-16-be" if start == codecs.BOM_UTF16_BE else "utf-16-le"
    else:
        encoding = "utf-8"
    return JoinedBytes(start[length:], stream), encoding, length


def open_utf8(stream: BinaryIO, encoding: str) -> BinaryIO:
    """Return `stream` (behind its mark) as UTF-8, converted while it is read; `encoding` is one without a mark.

    What is broken in `encoding` comes as bytes that are no UTF-8 either, so that only the row which holds it fails.
    """
    return stream if encoding == "utf-8" else io.BufferedReader(_Converter(stream, encoding), CHUNK_BYTES)


def read_head(stream: BinaryIO, encoding: str, size_bytes: int = 2**16) -> bytes:
    """Return the first `size_bytes` of `stream` (at its start) as UTF-8 without a mark, perhaps less.

    Of a binary file (`encoding` "") they come as they are.
    """
    head = stream.read(size_bytes)
    if not encoding:
        return head
    behind, encoding, _ = skip_mark(io.BytesIO(head), encoding)
    return open_utf8(behind, encoding).read(size_bytes)


def is_utf8_among(raw: bytes, encoding: str) -> bool:
    """Return whether a line of a file that is read as `encoding` is UTF-8: the file was put together from two.

    Only of alphabets of single bytes: there letters beyond ASCII never come in the pairs that UTF-8 makes of each.
    """
    if encoding not in SINGLE_BYTES or raw.isascii():
        return False
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def get_codec(encoding: str) -> str:
    """Return Python's name for `encoding`."""
    return CODECS.get(encoding, encoding)


def from_utf8(data: bytes, encoding: str) -> bytes:
    """Return bytes that came from open_utf8 as they stand in the file."""
    if encoding == "utf-8":
        return data
    return data.decode("utf-8", "surrogatepass").encode(get_codec(encoding), _choose_handler(encoding))


def to_utf8(data: bytes, encoding: str) -> bytes:
    """Return `data`, which holds whole characters, as UTF-8. Raises UnicodeDecodeError."""
    return data if encoding == "utf-8" else data.decode(get_codec(encoding)).encode("utf-8")


def _choose_handler(encoding: str) -> str:
    return "surrogatepass" if encoding.startswith("utf-16") else "surrogateescape"


class JoinedBytes(io.RawIOBase):
    """`start`, then what is left of `stream`."""

    def __init__(self, start: bytes, stream: BinaryIO) -> None:
        self._start, self._stream = start, stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, all that are left when it is negative."""
        if not self._start:
            return self._stream.read(size)
        if size < 0 or size > len(self._start):
            start, self._start = self._start, b""
            return start + self._stream.read(size if size < 0 else size - len(start))
        start, self._start = self._start[:size], self._start[size:]
        return start


class _Converter(io.RawIOBase):
    """`stream` in UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(get_codec(encoding))(_choose_handler(encoding))
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._waiting:
            chunk = self._stream.read(CHUNK_BYTES)
            try:
                words = self._decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError:  # half a character, which the handler cannot stand for
                words = "\udcff"
                self._decoder.reset()
            self._waiting = words.encode("utf-8", "surrogatepass")
            if not chunk:
                break
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size
