"""Quizzes as learning platforms exchange them in plain text, GIFT and Aiken: each question is a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from studio.data.charset import get_codec
from studio.data.containers.container import Container, ReadOptions
from studio.data.row import Row

READ_BYTES = 2**24
LEAST = 3
"""So many questions make a quiz."""
AIKEN = re.compile(
    r"^(?P<asked>[^\n]+(?:\n(?![A-Z][.)] )[^\n]+){0,20})\n(?P<options>(?:[A-Z][.)] [^\n]+\n+){2,})"
    r"ANSWER:[ \t]*(?P<key>[A-Z])",
    re.M,
)
OPTION = re.compile(r"^[A-Z][.)] (.+)$", re.M)
GIFT = re.compile(r"(?<!\\)\{(?P<options>(?:\\.|[^\\{}])*)\}(?P<after>[^\n]*)")
"""The answers of a question; it stands in front of them. A pattern for both takes hours in a text without braces."""
BRACE = re.compile(r"(?<!\\)[{}]")
CHOICE = re.compile(r"(?<!\\)([=~])((?:\\.|[^\\=~])+)")
REMARKS = re.compile(r"^(?://|\$CATEGORY:).*$", re.M)
HINT = re.compile(r"(?<!\\)#.*", re.S)
WEIGHT = re.compile(r"%-?[\d.]+%")
TITLE = re.compile(r"^\s*::(?:\\.|[^\\])*?::")
TRUTH = re.compile(r"t(?:rue)?|f(?:alse)?", re.I)
FORM = re.compile(r"\[(?:html|moodle|plain|markdown)\]")


def accept(head: bytes, suffix: str) -> bool:
    """Return whether several questions in one of both forms stand in the text."""
    if suffix not in CONTAINER.suffixes:
        return False
    words = head.decode("utf-8", "replace").replace("\r\n", "\n")
    return len(AIKEN.findall(words)) >= LEAST or len(_read_gift(words)) >= LEAST


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield a Row a question: its words, its options where it has several, and the one that is right."""
    words = stream.read(READ_BYTES).decode(get_codec(encoding), "replace").replace("\r\n", "\n")
    found = _read_aiken(words) or _read_gift(words)
    for row, (place, values) in enumerate(found, start=1):
        yield Row(1 + words.count("\n", 0, place), values, None, row, 0)


def _read_aiken(words: str) -> list[tuple[int, dict[str, Any]]]:
    """Return where each question stands, and what it says."""
    return [
        (
            found.start(),
            {
                "question": found["asked"].strip(),
                "options": OPTION.findall(found["options"]),
                "answer": found["key"],
            },
        )
        for found in AIKEN.finditer(words)
    ]


def _read_gift(words: str) -> list[tuple[int, dict[str, Any]]]:
    """As _read_aiken; a question without a right answer, such as an essay, is left out."""
    rows, before = [], 0
    words = REMARKS.sub("", words)
    for found in GIFT.finditer(words):
        begin, before = before, found.end()
        said = found["options"].strip()
        if said[:1] not in ("=", "~") and not TRUTH.fullmatch(_clean(HINT.sub("", said))):
            continue
        asked = BRACE.split(words[begin : found.start()])[-1]
        begin = found.start() - len(asked)
        asked = _clean(TITLE.sub("", asked))
        if (behind := _clean(found["after"])) and not behind.startswith("::"):
            asked = f"{asked} ____ {behind}"  # the gap that is to be filled
        if TRUTH.fullmatch(_clean(HINT.sub("", said))):
            right, choices = ("True" if said[0] in "tT" else "False"), ["True", "False"]
        else:
            marked = [(sign, _clean(HINT.sub("", WEIGHT.sub("", one)))) for sign, one in CHOICE.findall(said)]
            full = [_clean(HINT.sub("", one)) for sign, one in CHOICE.findall(said) if "%100%" in one]
            right = next(
                (one for sign, one in marked if sign == "="), WEIGHT.sub("", full[0]) if full else ""
            )
            choices = [one for _, one in marked] if any(sign == "~" for sign, _ in marked) else []
        if asked and right and "->" not in right:
            rows.append((begin, {"question": asked, "options": choices or None, "answer": right}))
    return rows


def _clean(words: str) -> str:
    return " ".join(re.sub(r"\\(.)", r"\1", FORM.sub("", words)).split())


CONTAINER = Container(name="quiz", suffixes=(".gift", ".txt", ".text"), accepts=accept, iterate=iterate)
