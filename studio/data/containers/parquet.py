"""Parquet files, read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from studio.data.containers.arrow import SLICE_BYTES, SLICE_ROWS, check_names, read_batches
from studio.data.containers.container import Container, ReadOptions, refuse_file
from studio.data.row import Row

MARK = b"PAR1"
BUFFER_BYTES = 2**20
ROW_LIMIT_BYTES = 2**28
"""A row group whose rows are larger on average cannot be read in bounded memory."""


def accept(head: bytes, suffix: str) -> bool:
    """Return whether the file begins with the mark of Parquet."""
    return head.startswith(MARK)


def iterate(stream: BinaryIO, encoding: str, options: ReadOptions) -> Iterator[Row]:
    """Yield the rows; `line` is the row's number, counted from 1. `stream` can seek.

    Raises StudioError when the file is damaged, its rows are too large, or two columns have the same name.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        # Without pre_buffer and with a buffer, pages are read as they are needed, not whole columns of a row group.
        with pyarrow.parquet.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            check_names(file.schema_arrow, options.name)
            yield from read_batches(_iterate_batches(file, options.name))
    except (pyarrow.ArrowException, OSError, ValueError, KeyError) as error:
        raise refuse_file(options.name, "parquet_broken") from error


def _iterate_batches(file: Any, name: str) -> Iterator[Any]:
    for group in range(file.num_row_groups):
        facts = file.metadata.row_group(group)
        # What is known is the size before compression; equal values, kept once, count once.
        row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
        if row_bytes > ROW_LIMIT_BYTES:
            raise refuse_file(name, "row_large", limit=ROW_LIMIT_BYTES // 2**20)
        rows = max(1, min(SLICE_ROWS, SLICE_BYTES // row_bytes))
        yield from file.iter_batches(batch_size=rows, row_groups=[group], use_threads=False)


CONTAINER = Container(name="parquet", suffixes=(".parquet",), accepts=accept, iterate=iterate, binary=True)
