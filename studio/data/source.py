"""Open a data set: a local file or the bundled demo."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.text import text
from studio.data.containers import CONTAINERS
from studio.data.containers.container import UTF8_MARK, Container, refuse_file
from studio.data.row import Row, list_columns

DEMO = "demo"
DEMO_FILE = Path(__file__).resolve().parents[2] / "assets" / "demo_data" / "train.jsonl"
SAMPLE_ROWS = 200
HEAD_BYTES = 2**16
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSource:
    """An opened data set. Iterating reads it from its start; broken rows come as Rows with a `problem`."""

    source: str
    container: str
    """jsonl, json, csv or parquet."""
    sample: tuple[Row, ...]
    """The first SAMPLE_ROWS rows."""
    columns: tuple[str, ...]
    """Columns of the sample, in the order of their first appearance."""
    iterate: Callable[[], Iterator[Row]]
    digest: Callable[[], str]

    def __iter__(self) -> Iterator[Row]:
        return self.iterate()

    @property
    def content_hash(self) -> str:
        """A hash of the file's bytes. Reads the whole file."""
        return self.digest()


def read_rows(source: str) -> RowSource:
    """Open `source`: a path or `demo`.

    Raises StudioError: no such file, a name of the hub, a folder, a kind of file that is not known, not UTF-8,
    damaged, or empty.
    """
    path = DEMO_FILE if source.strip() == DEMO else _find_file(source.strip())
    container = _choose_container(path)
    return _open(source, container.name, partial(_iterate_file, container, path), partial(_hash_file, path))


def _open(
    source: str, container: str, iterate: Callable[[], Iterator[Row]], digest: Callable[[], str]
) -> RowSource:
    rows = iterate()
    sample = tuple(itertools.islice(rows, SAMPLE_ROWS))
    rows.close()
    if not sample:
        raise _refuse(source, "empty")
    return RowSource(
        source=source,
        container=container,
        sample=sample,
        columns=list_columns(sample),
        iterate=iterate,
        digest=digest,
    )


def _find_file(source: str) -> Path:
    """Return the file that `source` names. Raises StudioError."""
    if not source:
        raise StudioError(
            text("data.source.none"), text("data.source.none.why"), text("data.source.none.fix")
        )
    if "://" in source or "::" in source:
        raise _refuse(source, "address")
    try:
        path = Path(source).expanduser()
        exists, folder, file = path.exists(), path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise _refuse(source, "missing") from error
    if folder:
        raise _refuse(source, "folder")
    if exists and not file:  # a pipe nobody writes to would be waited for without end
        raise refuse_file(path, "special")
    if exists:
        return path
    is_hub_name = HUB_ID.fullmatch(source) and not source.lower().endswith(SUFFIXES)
    raise _refuse(source, "hub" if is_hub_name else "missing")


def _refuse(source: str, reason: str) -> StudioError:
    return StudioError(
        text(f"data.source.{reason}", source=source),
        text(f"data.source.{reason}.why"),
        text(f"data.source.{reason}.fix"),
    )


def _choose_container(path: Path) -> Container:
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise refuse_file(path, "system", message=error.strerror or str(error)) from error
    for container in CONTAINERS:
        if container.accepts(path, head.removeprefix(UTF8_MARK)):
            if container.name != "parquet" and (head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head):
                raise refuse_file(path, "encoding")
            return container
    if not head.removeprefix(UTF8_MARK).strip() and path.suffix.lower() in SUFFIXES:
        raise _refuse(path.name, "empty")
    if path.suffix.lower() == ".json" and b"\0" in head:
        raise refuse_file(path, "encoding")
    raise refuse_file(path, "kind")


def _iterate_file(container: Container, path: Path) -> Iterator[Row]:
    try:
        yield from container.iterate(path)
    except OSError as error:
        raise refuse_file(path, "system", message=error.strerror or str(error)) from error


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
