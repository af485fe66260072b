"""The converted rows on disk: Arrow files of a few megabytes, which are mapped into memory, and an index of arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from studio.data.conversation import Conversation, read_stored

SHARD_BYTES = 8 * 2**20
SHARD_ROWS = 2**16
COLUMN = "conversation"
INDEX: Mapping[str, type] = {
    "file": np.int32,
    "line": np.int64,
    "row": np.int64,
    "offset": np.int64,
    "prompt": np.uint64,
    "exact": np.uint8,
    "control": np.uint8,
    "hashes": np.uint64,
    "characters": np.int64,
    "answer_characters": np.int64,
    "turns": np.int64,
    "flags": np.uint32,
}
"""Arrays with one entry a row. file: number of the DataFile in its split; line, row, offset: as in RowProblem;
prompt: 64 bits that rows share which ask the same; exact: 1 where an integer beyond 64 bits needs Python's own reader;
control: 1 where the row spells a control sign of a common model family;
the others: as in traits.Traits."""
STARTS = "starts.bin"
"""int64 [shards + 1]: number of the first row of each shard, then the number of rows."""


class ShardWriter:
    """Writes rows and their index into `folder`, in bounded memory; `close()` completes it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.rows = 0
        self._starts = [0]
        self._texts: list[bytes] = []
        self._bytes = 0
        self._files: dict[str, BinaryIO] = {name: (folder / f"{name}.bin").open("wb") for name in INDEX}

    def add(self, texts: Sequence[bytes], columns: Mapping[str, np.ndarray]) -> None:
        """Append rows: `texts` are Conversations as JSON in UTF-8, `columns` holds an array for each name of INDEX."""
        for name, kind in INDEX.items():
            self._files[name].write(np.ascontiguousarray(columns[name], dtype=kind).tobytes())
        for text in texts:
            self._texts.append(text)
            self._bytes += len(text)
            if self._bytes >= SHARD_BYTES or len(self._texts) >= SHARD_ROWS:
                self._flush()
        self.rows += len(texts)

    def close(self) -> None:
        """Write what waits; afterwards `Shards(folder)` reads it."""
        self._flush()
        for file in self._files.values():
            file.close()
        (self.folder / STARTS).write_bytes(np.asarray(self._starts, dtype=np.int64).tobytes())

    def release(self) -> None:
        """Let go of files that are not completed."""
        for file in self._files.values():
            with suppress(OSError):  # the disk that is full says so once more
                file.close()

    def _flush(self) -> None:
        if not self._texts:
            return
        import pyarrow

        lengths = np.fromiter(map(len, self._texts), dtype=np.int64, count=len(self._texts))
        edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        column = pyarrow.LargeStringArray.from_buffers(
            len(self._texts), pyarrow.py_buffer(edges), pyarrow.py_buffer(b"".join(self._texts))
        )
        batch = pyarrow.RecordBatch.from_arrays([column], names=[COLUMN])
        path = shard_path(self.folder, len(self._starts) - 1)
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
        self._starts.append(self._starts[-1] + len(self._texts))
        self._texts, self._bytes = [], 0


def shard_path(folder: Path, number: int) -> Path:
    """Return the Arrow file of one shard; `datasets.Dataset.from_file` maps it."""
    return folder / f"{number:05d}.arrow"


class Shards(Sequence[Conversation]):
    """The rows in one folder, in the order of their files; nothing is read before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._starts = np.fromfile(folder / STARTS, dtype=np.int64)
        self._columns = lru_cache(maxsize=4)(self._open)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, row: int) -> Conversation:
        return next(iter(self.read([row])))[1]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The Arrow files."""
        return tuple(shard_path(self.folder, i) for i in range(len(self._starts) - 1))

    def column(self, name: str) -> np.ndarray:
        """Return one array of INDEX, mapped from disk."""
        return self._index[name]

    @cached_property
    def _index(self) -> dict[str, np.ndarray]:
        if not len(self):
            return {name: np.zeros(0, kind) for name, kind in INDEX.items()}
        return {
            name: np.memmap(self.folder / f"{name}.bin", dtype=kind, mode="r", shape=(len(self),))
            for name, kind in INDEX.items()
        }

    def read(self, rows: Iterable[int] | None = None) -> Iterator[tuple[int, Conversation]]:
        """Yield (row, Conversation) for `rows` in their order; None: all."""
        import orjson

        exact = self.column("exact")
        special = set(np.flatnonzero(exact).tolist())
        for row, text in self.read_texts(rows):
            yield row, read_stored(json.loads(bytes(text)) if row in special else orjson.loads(text))

    def read_texts(self, rows: Iterable[int] | None = None) -> Iterator[tuple[int, memoryview]]:
        """Yield (row, JSON in UTF-8) for `rows` in their order; None: all."""
        if rows is None:
            for shard in range(len(self._starts) - 1):
                edges, data = self._open(shard)
                first = int(self._starts[shard])
                places = edges.tolist()
                for i in range(len(places) - 1):
                    yield first + i, data[places[i] : places[i + 1]]
            return
        for row in rows:
            row = int(row)
            shard = int(np.searchsorted(self._starts, row, side="right")) - 1
            edges, data = self._columns(shard)
            i = row - int(self._starts[shard])
            yield row, data[int(edges[i]) : int(edges[i + 1])]

    def _open(self, shard: int) -> tuple[np.ndarray, memoryview]:
        import pyarrow

        with pyarrow.memory_map(str(shard_path(self.folder, shard))) as file:
            batch = pyarrow.ipc.open_stream(file).read_next_batch()
        _, edges, data = batch.column(0).buffers()
        return np.frombuffer(edges, dtype=np.int64)[: batch.num_rows + 1], memoryview(data)


def join_shards(parts: Sequence[tuple[Path, Mapping[str, int]]], folder: Path) -> None:
    """Make one folder of several: (folder of a part, what is added to its index columns), in order. Parts go away."""
    folder.mkdir(parents=True, exist_ok=True)
    starts = [0]
    files: dict[str, Any] = {name: (folder / f"{name}.bin").open("wb") for name in INDEX}
    for part, added in parts:
        edges = np.fromfile(part / STARTS, dtype=np.int64)
        for i in range(len(edges) - 1):
            shard_path(part, i).replace(shard_path(folder, len(starts) - 1))
            starts.append(starts[-1] + int(edges[i + 1] - edges[i]))
        for name, kind in INDEX.items():
            column = np.fromfile(part / f"{name}.bin", dtype=kind)
            files[name].write((column + kind(added.get(name, 0))).astype(kind).tobytes())
    for file in files.values():
        file.close()
    (folder / STARTS).write_bytes(np.asarray(starts, dtype=np.int64).tobytes())
