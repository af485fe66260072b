"""Mails as programs keep them, one a file (.eml) or many (.mbox): each is a row, answers name what they answer."""

from __future__ import annotations

import email.policy
import html
import re
from collections.abc import Iterator
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import parseaddr
from typing import BinaryIO

from studio.core.i18n import text
from studio.data.containers.container import Container, ReadOptions
from studio.data.row import RAW_BYTES, Row, broken_row
from studio.data.row_codes import RowCode

MAIL_BYTES = 2**25
"""Longest mail that is read: 32 MiB, with its attachments."""
HEADERS = re.compile(
    rb"^(?:from|to|cc|subject|date|message-id|received|return-path|mime-version|content-type|reply-to"
    rb"|delivered-to|in-reply-to|references):[ \t]",
    re.I | re.M,
)
LEAST_HEADERS = 3
"""So many kinds of header make a mail; a talk may have a line that begins with `From:`."""
BETWEEN = re.compile(rb"From \S+.*\d{4}\s*$")
"""The line in front of each mail of an mbox (RFC 4155)."""
IDS = re.compile(r"<[^<>\s]+>")
QUOTED = re.compile(r"[ \t]*>")
WROTE = re.compile(r"^(?:on|am|le|el|em|il|op|den)\b.{4,120}(?:wrote|schrieb|écrit|escribió|escreveu|scritto|schreef)"
                   r"[^:]*:\s*$|^.{4,120}写道[:：]\s*$|^-{2,}\s*original message\s*-{2,}\s*$", re.I | re.M)  # fmt: skip
"""The line in front of what is quoted."""
SIGNED = "-- "
"""The line in front of a signature (RFC 3676)."""
UNSEEN = re.compile(r"<(script|style|head)\b.*?</\1\s*>|<!--.*?-->", re.I | re.S)
LINE_END = re.compile(r"<(?:br|/p|/div|/tr|/li|/h\d)\b[^>]*>", re.I)
TAG = re.compile(r"<[^<>]*>")


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file begins as a mail does: with its headers, in an mbox behind a line of its own."""
    first = re.split(rb"\r?\n\r?\n", head.lstrip(b"\xef\xbb\xbf"), maxsplit=1)[0]
    told = {found.lower() for found in HEADERS.findall(first)}
    opens = HEADERS.match(first) is not None or BETWEEN.match(first.partition(b"\n")[0]) is not None
    return opens and len(told) >= LEAST_HEADERS


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield a Row a mail: message_id, in_reply_to, date, sender, to, subject, text, quoted, attachments.

    What an answer quotes at its end, and a signature, stand in `quoted`: the mail before says it already.
    """
    parser = BytesParser(policy=email.policy.default)
    for row, (line, data) in enumerate(_part(stream), start=1):
        if len(data) > MAIL_BYTES:
            reason = text("data.row.too_long", megabytes=MAIL_BYTES >> 20)
            yield broken_row(line, RowCode.UNREADABLE, reason, row=row, offset=0, raw=data[:RAW_BYTES])
            continue
        yield Row(line, _read(parser.parsebytes(data)), None, row, 0, data[:RAW_BYTES])


def _part(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each mail of a file with the number of its first line; of one that is too long a part."""
    lines: list[bytes] = []
    first, size_bytes, blank = 1, 0, True
    for number, line in enumerate(stream, start=1):
        if blank and BETWEEN.fullmatch(line.rstrip(b"\r\n")):
            if lines:
                yield first, b"".join(lines)
            lines, first, size_bytes, blank = [], number + 1, 0, False
            continue
        size_bytes += len(line)
        if size_bytes <= MAIL_BYTES + len(line):
            lines.append(re.sub(rb"^>(>*From )", rb"\1", line))
        blank = not line.strip()
    if any(map(bytes.strip, lines)):
        yield first, b"".join(lines)


def _read(mail: EmailMessage) -> dict[str, object]:
    before = IDS.findall(_header(mail, "in-reply-to")) or IDS.findall(_header(mail, "references"))[-1:]
    own = IDS.findall(_header(mail, "message-id"))
    name, address = parseaddr(_header(mail, "from"))
    said, quoted = _part_quoted(_read_body(mail))
    files = [part.get_filename() for part in mail.iter_attachments()] if mail.is_multipart() else []
    return {
        "message_id": own[0] if own else None,
        "in_reply_to": before[0] if before else None,
        "date": _header(mail, "date") or None,
        "sender": name or address or None,
        "to": _header(mail, "to") or None,
        "subject": _header(mail, "subject") or None,
        "text": said,
        "quoted": quoted or None,
        "attachments": ", ".join(filter(None, files)) or None,
    }


def _header(mail: EmailMessage, name: str) -> str:
    """Return a header's text in one line; a broken one as far as it can be read."""
    try:
        return " ".join(str(mail.get(name, "")).split())
    except (
        ValueError,
        IndexError,
        AttributeError,
        TypeError,
    ):  # what the standard library raises for broken ones
        return " ".join(str(dict(mail.raw_items()).get(name, "")).split())


def _read_body(mail: EmailMessage) -> str:
    part = mail.get_body(("plain", "html"))
    if part is None:
        return ""
    try:
        words = part.get_content()
    except (LookupError, ValueError):  # an encoding that nobody knows
        words = (part.get_payload(decode=True) or b"").decode("utf-8", "replace")
    if not isinstance(words, str):
        return ""
    if part.get_content_subtype() == "html":
        words = html.unescape(TAG.sub("", LINE_END.sub("\n", UNSEEN.sub("", words))))
        words = re.sub(r"[ \t\xa0]+", " ", words)
    return re.sub(r"\n{3,}", "\n\n", words.replace("\r\n", "\n")).strip()


def _part_quoted(words: str) -> tuple[str, str]:
    """Return what somebody wrote, and what stands behind it: an earlier mail that is quoted, and a signature.

    A quotation with an answer below it stays: it says what is answered.
    """
    lines = words.split("\n")
    end = next((n for n, line in enumerate(lines) if line == SIGNED), len(lines))
    while end and (not lines[end - 1].strip() or QUOTED.match(lines[end - 1])):
        end -= 1
    quotes = any(map(QUOTED.match, lines[end:]))
    body = "\n".join(lines[:end])
    found = [one for one in WROTE.finditer(body) if quotes or one[0].startswith("-")]
    cut = len(body)
    if found and (found[-1].end() >= len(body.rstrip()) or found[-1][0].startswith("-")):
        cut = found[-1].start()
    said = body[:cut].strip()
    return (said, words[len(words[: len(body[:cut].rstrip())]) :].strip()) if said else (words, "")


CONTAINER = Container(
    name="mails", suffixes=(".eml", ".mbox", ".mbx"), accepts=accept, iterate=iterate, binary=True
)
