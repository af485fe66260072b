"""One part of a data set, a file or a stretch of its lines, from rows to shards: each row used or set aside."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.i18n import text
from studio.data.containers import CONTAINERS
from studio.data.containers.container import ReadOptions
from studio.data.conversation import Conversation
from studio.data.formats.vision import check_images
from studio.data.problems import Problems
from studio.data.quarantine import NAME as QUARANTINE
from studio.data.quarantine import QuarantineWriter
from studio.data.row import Row, RowError, RowProblem
from studio.data.row_codes import RowCode
from studio.data.row_stats import BATCH_ROWS, collect_traits
from studio.data.shards import ShardWriter
from studio.data.source import DataFile
from studio.data.special_tokens import WELL_KNOWN
from studio.data.understanding import Understanding
from studio.data.unicode_scripts import SCRIPTS

RANGE_BYTES = 32 * 2**20
"""Stretches of lines are always this long, so that the shards do not depend on how many processes read them."""
SEARCH_BYTES = 64 * 2**20
"""A line that is longer lets its stretch end later."""
STRETCHED = ("utf-8", "utf-8-sig")
"""Encodings in which a newline is one byte that is part of nothing else."""
COLUMNS_LIMIT = 10_000
TELL_ROWS = 1024
CONTROL = re.compile("|".join(map(re.escape, WELL_KNOWN)).encode("utf-8"))
CONTROL_LEADS = tuple(
    {word[:2].encode("utf-8") for word in WELL_KNOWN if word.startswith("<")} | {b"[INST", b"[/INST"}
)
Stop = Callable[[], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPart:
    """What is read at once: a whole file, or its bytes from `start` up to `stop`."""

    split: str
    number: int
    """Of the file in its split."""
    file: DataFile
    start: int
    stop: int
    """0: the whole file."""
    folder: Path
    """Where the part's rows and quarantine go."""

    @property
    def ranged(self) -> bool:
        """Whether it is a stretch of lines."""
        return self.stop > 0

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self.stop - self.start if self.ranged else self.file.size_bytes


@dataclass(kw_only=True, slots=True)
class PartResult:
    """What was found in a Part; lines and rows are numbered from its own start."""

    rows_read: int = 0
    rows_used: int = 0
    rows_refused: int = 0
    lines: int = 0
    """Newlines in a stretch of lines."""
    part_bytes: int = 0
    columns: tuple[str, ...] = ()
    mapping: dict[str, str] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    letters: list[int] = field(default_factory=list)
    digest: str = ""
    """sha256 of its conversations."""


class Stretch:
    """The bytes of a file from `start` up to `stop` as a stream that counts its newlines."""

    closed = False

    def __init__(self, file: Any, start: int, stop: int) -> None:
        file.seek(start)
        self._file, self._left = file, stop - start
        self.newlines = 0

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, b"" at the end."""
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        self.newlines += found.count(b"\n")
        return found


def split_files(file: DataFile) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the stretches in which a file is read; (0, 0) is all of it."""
    plain = (
        file.container == "jsonl" and not file.packing and file.encoding in STRETCHED and not file.reshapes
    )
    if not plain or file.size_bytes <= RANGE_BYTES:
        yield 0, 0
        return
    start = 0
    with file.path.open("rb") as stream:
        while start < file.size_bytes:
            stop = _find_line_end(stream, min(start + RANGE_BYTES, file.size_bytes), file.size_bytes)
            if stop == 0:  # no newline far and wide: lines that end in CR alone
                if start == 0:
                    yield 0, 0
                    return
                stop = file.size_bytes
            yield start, stop
            start = stop


def _find_line_end(stream: Any, place: int, size: int) -> int:
    """Return the byte behind the first newline from `place` on; 0 where none is near."""
    if place >= size:
        return size
    stream.seek(place)
    for _ in range(SEARCH_BYTES // 2**20):
        chunk = stream.read(2**20)
        found = chunk.find(b"\n")
        if found >= 0:
            return place + found + 1
        place += len(chunk)
        if not chunk or place >= size:
            return size
    return 0


def read_part(
    part: DataPart,
    understanding: Understanding,
    tell: Callable[[int], None] | None = None,
    stop: Stop | None = None,
) -> PartResult:
    """Read a Part and write its rows. Raises StudioError when the file as a whole is damaged, and what `stop` raises.

    tell: called with the bytes done now and then.
    """
    part.folder.mkdir(parents=True)
    sorter = Sorter(part, understanding)
    try:
        if part.ranged:
            container = next(one for one in CONTAINERS if one.name == part.file.container)
            with part.file.path.open("rb") as file:
                stretch = Stretch(file, part.start, part.stop)
                rows = container.iterate(
                    stretch, "utf-8", ReadOptions(name=part.file.name or part.file.path.name)
                )
                sorter.take(rows, tell, stop)
                sorter.result.lines = stretch.newlines
        else:
            sorter.take(part.file.rows(), tell, stop)
        return sorter.close()
    except BaseException:
        sorter.release()
        raise


class Sorter:
    """Takes rows and writes each to the shards, or to the quarantine."""

    def __init__(self, part: DataPart, understanding: Understanding) -> None:
        self.part = part
        self.understanding = understanding
        self.result = PartResult(part_bytes=part.size_bytes, letters=[0] * len(SCRIPTS))
        self._known: dict[str, None] = {}
        self._shards = ShardWriter(part.folder / "rows")
        self._quarantine = QuarantineWriter(part.folder / QUARANTINE)
        self._digest = hashlib.sha256()
        self._conversations: list[Conversation] = []
        self._texts: list[bytes] = []
        self._places: list[tuple[int, int, int, int]] = []

    def take(self, rows: Iterable[Row], tell: Callable[[int], None] | None, stop: Stop | None) -> None:
        """Read all of `rows`."""
        known, result = self._known, self.result
        chosen = self.understanding.format if self.understanding.readable else None
        mapping = self.understanding.mapping
        for row in rows:
            if result.rows_read % TELL_ROWS == 0:
                if stop is not None:
                    stop()
                if tell is not None:
                    tell(min(max(row.offset, result.rows_read), result.part_bytes))
            result.rows_read += 1
            if row.problem is not None:
                self._refuse(row, row.problem.code, row.problem.message)
                continue
            if not known.keys() >= row.values.keys() and len(known) < COLUMNS_LIMIT:
                known.update(dict.fromkeys(row.values))
                self.understanding = self.understanding.extend(tuple(known))
                mapping = self.understanding.mapping
            if chosen is None:
                continue
            try:
                conversation = chosen.convert(row.values, mapping)
                if conversation.images:
                    check_images(conversation, self.part.file.path.parent)
                written, exact = write_conversation(conversation)
            except RowError as error:
                self._refuse(row, error.code, error.message)
                continue
            for code, message in chosen.notes(conversation):
                result.problems.add(self._problem(row, code, message))
            self._conversations.append(conversation)
            self._texts.append(written)
            self._places.append((row.line, row.row, row.offset, exact))
            if len(self._texts) == BATCH_ROWS:
                self._flush()

    def close(self) -> PartResult:
        """Complete the files and return what was found."""
        self._flush()
        self._shards.close()
        self._quarantine.close()
        result = self.result
        result.rows_used, result.rows_refused = self._shards.rows, self._quarantine.rows
        result.columns = tuple(self._known)
        result.mapping = dict(self.understanding.mapping)
        result.digest = self._digest.hexdigest()
        if self.understanding.readable:
            assert result.rows_read == result.rows_used + result.rows_refused, (
                "rows lost while they were read"
            )
        return result

    def release(self) -> None:
        """Let go of files that are not completed: Windows removes none that is open."""
        self._shards.release()
        self._quarantine.release()

    def _flush(self) -> None:
        if not self._texts:
            return
        traits = collect_traits(self._conversations)
        line, row, offset, exact = np.asarray(self._places, dtype=np.int64).T
        names = ("hashes", "characters", "answer_characters", "turns", "flags")
        columns = {name: getattr(traits, name) for name in names}
        columns |= {"line": line, "row": row, "offset": offset, "exact": exact}
        columns["file"] = np.full(len(line), self.part.number)
        columns["prompt"] = hash_prompts(self._conversations)
        joined = b"\n".join([*self._texts, b""])
        columns["control"] = self._find_control(joined)
        self._shards.add(self._texts, columns)
        self._digest.update(joined)
        self.result.letters = (np.asarray(self.result.letters) + traits.letters).tolist()
        self._conversations, self._texts, self._places = [], [], []

    def _find_control(self, joined: bytes) -> np.ndarray:
        """Return uint8 [rows]: 1 where words of a person spell a well-known control sign; plain texts may."""
        found = np.zeros(len(self._texts), dtype=np.uint8)
        if any(lead in joined for lead in CONTROL_LEADS):  # rarely: the pattern alone would take 2 us a row
            for i, text_ in enumerate(self._texts):
                if self._conversations[i].kind != "text":
                    found[i] = CONTROL.search(text_) is not None
        return found

    def _refuse(self, row: Row, code: RowCode, message: Any) -> None:
        problem = self._problem(row, code, message)
        self.result.problems.add(replace(problem, raw=b""))
        self._quarantine.add(problem)

    def _problem(self, row: Row, code: RowCode, message: Any) -> RowProblem:
        return RowProblem(
            code=code,
            message=message,
            line=row.line,
            row=row.row,
            offset=row.offset,
            file=self.part.file.name,
            raw=row.raw,
        )


def hash_prompts(conversations: Iterable[Conversation]) -> np.ndarray:
    """Return uint64 [rows]: equal where two conversations ask the same."""
    from xxhash import xxh3_64_intdigest

    keys = [xxh3_64_intdigest(one.prompt_key.encode("utf-8", "surrogatepass")) for one in conversations]
    return np.asarray(keys, dtype=np.uint64)


def write_conversation(conversation: Conversation) -> tuple[bytes, int]:
    """Return a Conversation as JSON in UTF-8, and 1 where it holds integers beyond 64 bits.

    Raises RowError: half a surrogate pair (BAD_CHARACTERS), or nested too deep (UNREADABLE).
    """
    import orjson

    found = conversation.to_dict()
    try:
        return orjson.dumps(found), 0
    except TypeError:
        pass  # orjson refuses integers beyond 64 bits, half surrogate pairs and deep nesting alike
    try:
        return json.dumps(found, ensure_ascii=False, default=str).encode("utf-8"), 1
    except UnicodeEncodeError as error:
        raise RowError(RowCode.BAD_CHARACTERS, text("data.row.surrogate")) from error
    except (RecursionError, ValueError) as error:
        raise RowError(RowCode.UNREADABLE, text("data.row.too_deep", levels=240)) from error
