"""CSV files of measurements: appended to row by row, over several calls and versions of a program."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a heading; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: Mapping[str, Any], columns: Sequence[str] = ()) -> None:
    """Append one row of `columns` (those of the row where none are given), with a heading when the file is new.

    A file of an earlier version that lacks columns is written anew with them; what it has besides stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = list(columns or row)
    earlier = read_rows(path)
    known = list(earlier[0]) if earlier else []
    if earlier and set(wanted) <= set(known):
        _write(path, "a", known, [row])
        return
    heading = wanted + [name for name in known if name not in wanted]
    _write(path, "w", heading, [*earlier, row])


def _write(path: Path, mode: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open(mode, newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=columns, restval="", lineterminator="\n")
        if mode == "w":
            writer.writeheader()
        writer.writerows(rows)
