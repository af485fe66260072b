"""One file of a data set: how it is opened, how it holds its rows, and in which encoding."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.recipe import DatasetSpec
from studio.data.charset import detect_encoding, read_head
from studio.data.compression import Member, open_unpacked
from studio.data.containers import CONTAINERS, images, json_document, workbook
from studio.data.containers.container import HEAD_BYTES, Container, ReadOptions, refuse_file
from studio.data.open_question import Question
from studio.data.reshape import Reshape
from studio.data.row import Row
from studio.data.split_discovery import find_suffix

IMAGE_FOLDER = "imagefolder"
SEEKING = ("parquet", "xlsx")
"""Containers that are read from several places at once."""
BINARY_SUFFIXES = {
    ".parquet": "parquet_broken",
    ".arrow": "arrow_broken",
    ".xlsx": "workbook_broken",
    ".xlsm": "workbook_broken",
}
"""What is wrong with a file of this ending that does not begin as such a file does."""
MARKED = (b"%PDF", b"{\\rtf", b"<", b"%!PS", b"\\documentclass")
"""Texts begin so that are written for another program to show."""
POINTER = b"version https://git-lfs.github.com/spec/"
"""What git writes in place of a large file that it has not fetched."""
CONFLICT = b"<<<<<<< "
"""How a file begins in which git could not join two versions."""
PAGE = re.compile(rb"\s*<(?:!doctype html|html)\b", re.I)
ROWS_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""Endings of files in which a page stands only where a download went wrong."""
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
LEAST_LINES = 5
ALIKE_LINES = 50
"""So many lines, and no fewer than LEAST_LINES, have as many tabs or commas each where they are a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """One file of a data set, or one member of a zip."""

    name: str
    """As it is shown, with / between folders; "" where the source is one file."""
    path: Path
    member: Member | None = None
    """Of the zip `path`."""
    container: str = ""
    """"" until look_into has seen; jsonl json csv tsv xlsx parquet arrow txt md imagefolder."""
    packing: str = ""
    """"" gz zst zip."""
    encoding: str = ""
    """One of encoding.ENCODINGS; "" in binary containers."""
    size_bytes: int
    """On the disk; of a member: after unpacking."""
    sheet: str = ""
    """Of a workbook; of a JSON file of splits the key of its list."""
    reshapes: tuple[Reshape, ...] = ()
    """How its rows become examples, one step behind the other."""

    def rows(self) -> Iterator[Row]:
        """Yield every row in order, broken ones included, in bounded memory but for talks. Raises StudioError."""
        rows = self._rows()
        for reshape in self.reshapes:
            rows = reshape.apply(rows)
        yield from rows

    def _rows(self) -> Iterator[Row]:
        with refusing(self.path), open_stream(self) as stream:
            options = ReadOptions(name=self.shown_name, sheet=self.sheet)
            if self.container == IMAGE_FOLDER:
                described = get_container("csv" if self.path.suffix.lower() == ".csv" else "jsonl")
                rows = described.iterate(stream, self.encoding, options)
                yield from images.place_images(rows, self.path.parent)
            else:
                yield from get_container(self.container).iterate(stream, self.encoding, options)

    @property
    def shown_name(self) -> str:
        """Its name for messages."""
        return PurePosixPath(self.member.name if self.member else self.name).name or self.path.name


def look_into(
    file: DataFile, spec: DatasetSpec, limit_bytes: int
) -> tuple[DataFile, tuple[Question, ...]] | None:
    """Return `file` with how it holds its rows, and what has to be asked; None for one without content.

    limit_bytes: so much is scanned for its encoding. Raises StudioError: no kind that is known, damaged, not readable.
    """
    if not file.size_bytes:
        return None
    name = file.shown_name
    suffix = find_suffix(name)
    with refusing(file.path):
        with open_unpacked(file.path, file.packing, file.member) as stream:
            head = stream.read(HEAD_BYTES)
        if not head.strip():
            return None
        if head.startswith(POINTER):
            raise refuse_file(name, "pointer")
        binary = next((one for one in CONTAINERS if one.binary and one.accepts(head, suffix)), None)
        if binary is not None:
            file = replace(file, container=binary.name)
            return _choose_sheet(file, spec) if binary is workbook.CONTAINER else (file, ())
        if suffix in BINARY_SUFFIXES:
            raise refuse_file(name, BINARY_SUFFIXES[suffix])
        encoding, asked = _choose_encoding(file, spec, suffix, limit_bytes)
        head = read_head(BytesIO(head), encoding)
    if not head.strip():
        return None
    if file.container == IMAGE_FOLDER:
        return replace(file, encoding=encoding), asked
    if suffix in ROWS_SUFFIXES and PAGE.match(head):
        raise refuse_file(name, "page")
    if suffix in ROWS_SUFFIXES and head.startswith(CONFLICT):
        raise refuse_file(name, "conflict")
    for container in CONTAINERS:
        if not container.binary and container.accepts(head, suffix):
            return replace(file, container=container.name, encoding=encoding), asked
    guessed = _guess_container(head, suffix)
    if not guessed:
        raise refuse_file(name, "kind")
    return replace(file, container=guessed, encoding=encoding), asked


def _guess_container(head: bytes, suffix: str) -> str:
    """Return how a text lies in a file whose ending says nothing: in tabs, commas, or plainly; "" for no plain text."""
    known = any(suffix in one.suffixes for one in CONTAINERS)
    if known or head.lstrip().startswith(MARKED) or len(CONTROL.findall(head)) > 0.001 * len(head):
        return ""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:ALIKE_LINES] if line.strip()]
    for delimiter, container in (("\t", "tsv"), (",", "csv"), (";", "csv")):
        counts = {line.count(delimiter) for line in lines}
        if len(lines) >= LEAST_LINES and len(counts) == 1 and counts.pop():
            return container
    return "txt"


def _choose_encoding(
    file: DataFile, spec: DatasetSpec, suffix: str, limit_bytes: int
) -> tuple[str, tuple[Question, ...]]:
    if spec.encoding not in ("auto", ""):
        return spec.encoding, ()
    with open_unpacked(file.path, file.packing, file.member) as stream:
        guess = detect_encoding(stream, suffix, limit_bytes)
    if not guess.encoding:
        raise refuse_file(file.shown_name, "encoding")
    if guess.sure:
        return guess.encoding, ()
    asked = text("data.source.encoding_choice", name=file.shown_name[:80])
    names = tuple(
        text("data.source.encoding_shown", encoding=one, words=literal(guess.show(one)))
        for one in guess.choices
    )
    return guess.encoding, (
        Question(id="encoding", question=asked, choices=guess.choices, names=names, field="data.encoding"),
    )


def _choose_sheet(file: DataFile, spec: DatasetSpec) -> tuple[DataFile, tuple[Question, ...]]:
    if spec.sheet:
        return replace(file, sheet=spec.sheet), ()
    with open_stream(file) as stream:
        sheets = tuple(workbook.list_sheets(stream, file.shown_name))
    if len(sheets) < 2:
        return replace(file, sheet="".join(sheets)), ()
    asked = text("data.source.sheets", count=len(sheets))
    question = Question(id="sheet", question=asked, choices=sheets, field="data.sheet")
    return replace(file, sheet=sheets[0]), (question,)


def part_splits(file: DataFile) -> dict[str, DataFile]:
    """Return a file for each split that a JSON file holds; {} for other files."""
    if file.container != "json" or file.sheet:
        return {}
    with refusing(file.path), open_stream(file) as stream:
        found = json_document.list_splits(stream, file.encoding)
    return {split: replace(file, sheet=key) for split, key in found.items()}


def get_container(name: str) -> Container:
    """Return the Container of this name."""
    return next(one for one in CONTAINERS if one.name == name)


@contextmanager
def open_stream(file: DataFile) -> Iterator[BinaryIO]:
    """Open a file after unpacking; what is read from several places is unpacked to the disk first."""
    with open_unpacked(file.path, file.packing, file.member) as stream:
        if not file.packing or file.container not in SEEKING:
            yield stream
            return
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(stream, unpacked, 2**20)
            unpacked.seek(0)
            yield unpacked


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn what the system refuses into a StudioError."""
    try:
        yield
    except OSError as error:
        raise refuse_system(path, error) from error


def refuse_system(path: Path, error: OSError) -> StudioError:
    """Return the StudioError for what the system said about `path`."""
    return refuse_file(
        (path.name or str(path))[:80], "system", message=error.strerror or type(error).__name__
    )
