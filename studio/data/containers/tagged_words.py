"""Texts of which every word has tags, a word a line and a blank line between sentences (CoNLL, CoNLL-U, IOB)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

from studio.data.charset import get_codec
from studio.data.containers.container import Container, ReadOptions
from studio.data.line_reader import LineReader
from studio.data.row import Row

SENTENCE_LINES = 10_000
"""A sentence has fewer words; more lines without a blank one are no sentence, and are cut here."""
LEAST_LINES = 8
ANY_SUFFIXES = (".txt", ".text", ".tsv", "")
UNIVERSAL = ("id", "word", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The ten fields of CoNLL-U."""
TOLD = ("upos", "lemma")
"""Those of them that are shown as columns of their own."""
IOB = re.compile(r"(?:[BIESLU]-.+|O)")
COMMENT = re.compile(r"#\s*(\w+)\s*=\s*(.*)")
SPAN = re.compile(r"\d+[-.]\d+")
"""The number of several words that are written as one, or of one that is not written."""
BEGINS = "-DOCSTART-"


def accept(head: bytes, suffix: str) -> bool:
    """Return whether each line is a word with as many tags, sentences parted by blank lines."""
    if suffix not in (*CONTAINER.suffixes, *ANY_SUFFIXES):
        return False
    lines = head.decode("utf-8", "replace").splitlines()[:-1]
    words = [line.split("\t") if "\t" in line else line.split() for line in lines if _is_word(line)]
    if len(words) < LEAST_LINES and suffix not in CONTAINER.suffixes:
        return False
    widths = Counter(map(len, words))
    width, count = widths.most_common(1)[0] if widths else (0, 0)
    if width < 2 or count < 0.95 * len(words):
        return False
    parted = any(not line.strip() for line in lines)
    tagged = [cells[-1] for cells in words if len(cells) == width]
    iob = all(map(IOB.fullmatch, tagged)) and any(tag != "O" for tag in tagged)
    numbered = width == len(UNIVERSAL) and all(re.match(r"\d", cells[0]) for cells in words)
    return (iob and parted) or numbered or (suffix in CONTAINER.suffixes and parted)


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield a Row a sentence: its text, and the tags of its words for each further column, with spaces between.

    Of CoNLL-U those are `upos` and `lemma`; of other files the last column is called `tags`, others by their place.
    """
    reader = LineReader(stream, encoding)
    codec = get_codec(encoding)
    held: list[str] = []
    first, row = 1, 0
    for number, _, data, _ in reader:
        line = data.decode(codec, "replace").removesuffix("\r")
        if line.strip() and len(held) < SENTENCE_LINES:
            first = number if not held else first
            held.append(line)
            continue
        if values := _read(held):
            row += 1
            yield Row(first, values, None, row, 0)
        first, held = number, [line] if line.strip() else []
    if values := _read(held):
        yield Row(first, values, None, row + 1, 0)


def _is_word(line: str) -> bool:
    return bool(line.strip()) and not COMMENT.match(line) and not line.startswith((BEGINS, "# "))


def _read(lines: list[str]) -> dict[str, object]:
    """Return the columns of a sentence; {} where it has no words."""
    told = {found[1]: found[2] for line in lines if (found := COMMENT.match(line))}
    words = [line.split("\t") if "\t" in line else line.split() for line in lines if _is_word(line)]
    if not words:
        return {}
    width = max(map(len, words))
    words = [cells + [""] * (width - len(cells)) for cells in words]
    if width == len(UNIVERSAL) and all(re.match(r"\d", cells[0]) for cells in words):
        words = [cells for cells in words if not SPAN.fullmatch(cells[0])]
        lists = {name: [cells[UNIVERSAL.index(name)] for cells in words] for name in TOLD}
        said = [cells[1] for cells in words]
    else:
        said = [cells[0] for cells in words]
        names = [f"tags_{place}" for place in range(2, width)] + ["tags"]
        lists = {name: [cells[place] for cells in words] for place, name in enumerate(names, start=1)}
    tags = {name: " ".join(cells) for name, cells in lists.items()}
    return {"text": told.get("text") or " ".join(said), **tags}


CONTAINER = Container(
    name="tagged words",
    suffixes=(".conll", ".conllu", ".iob", ".bio", ".iob2"),
    accepts=accept,
    iterate=iterate,
)
