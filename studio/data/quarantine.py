"""quarantine.jsonl: every row that cannot be used, with its place, what is wrong with it, and its bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from studio.core.codec import from_json, to_json
from studio.core.i18n import Catalogue, Text, load_catalogue
from studio.data.row import RowProblem

NAME = "quarantine.jsonl"


class QuarantineWriter:
    """Writes rows as they are found; their line and row may still lack what stands before a part of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._file: BinaryIO | None = None

    def add(self, problem: RowProblem) -> None:
        """Append one row."""
        import orjson

        if self._file is None:
            self._file = self.path.open("wb")
        found = {name: getattr(problem, name) for name in ("line", "row", "offset", "file", "code")}
        message = {"id": problem.message.id, "values": to_json(dict(problem.message.values))}
        entry = found | {"message": message} | show_raw(problem.raw)
        self._file.write(orjson.dumps(entry, default=str) + b"\n")
        self.rows += 1

    def close(self) -> None:
        """Complete the file; without a row there is none."""
        if self._file is not None:
            self._file.close()

    def release(self) -> None:
        """Let go of a file that is not completed."""
        with suppress(OSError):
            self.close()


def join_quarantine(parts: Iterable[tuple[Path, Mapping[str, int]]], path: Path) -> int:
    """Write the entries of `parts`, with what is added to their numbers, behind each other; returns how many.

    The message becomes an English sentence with its place. `path` is always made, empty where nothing was refused.
    """
    import orjson

    words = load_catalogue("en")
    count = 0
    with path.open("wb") as out:
        for part, added in parts:
            if not part.exists():
                continue
            with part.open("rb") as file:
                for line in file:
                    found = orjson.loads(line)
                    for name, more in added.items():
                        found[name] += more
                    found["message"] = say_place(found, words)
                    out.write(orjson.dumps(found) + b"\n")
                    count += 1
    return count


def say_place(found: Mapping[str, Any], words: Catalogue) -> str:
    """Return the English sentence of one entry."""
    message = from_json(Text, found["message"])
    problem = RowProblem(code=found["code"], message=message, line=found["line"], file=found["file"])
    return words.say(problem.sentence)


def show_raw(raw: bytes) -> dict[str, str]:
    """Return {"raw": text}, or {"raw_base64": ...} where the bytes are no UTF-8."""
    try:
        return {"raw": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode("ascii")}
