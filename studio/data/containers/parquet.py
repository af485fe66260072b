"""Parquet files, read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from studio.data.containers.container import Container, refuse_file
from studio.data.row import Row

BATCH_ROWS = 1024


def accept(path: Path, head: bytes) -> bool:
    """Return whether the file begins with the mark of Parquet."""
    return head.startswith(b"PAR1") or path.suffix.lower() == ".parquet"


def iterate(path: Path) -> Iterator[Row]:
    """Yield the rows; `line` is the row's number, counted from 1. Raises StudioError when the file is damaged."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(line=number, values=values)
    except (pyarrow.ArrowException, OSError) as error:
        raise refuse_file(path, "parquet_broken") from error


CONTAINER = Container(name="parquet", accepts=accept, iterate=iterate)
