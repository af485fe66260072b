"""The answers that a run has drawn and what rewards gave them, step by step, out of a file that may be large."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from studio.core.json_file import parse_json
from studio.machine.workspace import Workspace

ANSWERS_FILE = "completions.jsonl"
"""In a run's folder, a line an answer (engine/rollouts/completions_file.py)."""
STEP = re.compile(rb'^\{"step": (\d+)')
MOST_BYTES = 2**24
"""Read of one step: 64 answers of 32,768 tokens are 8 MB."""
KEPT_RUNS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFilter:
    """Which answers are looked at."""

    step: int = 0
    """0: the last one."""
    which: str = "all"
    """One of WHICH."""
    words: str = ""
    """What prompt or answer holds, in any case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswersPage:
    """Answers of one step."""

    step: int
    steps: tuple[int, ...]
    """All that have answers, ascending."""
    names: tuple[str, ...]
    """Of the rewards."""
    rows: tuple[Mapping[str, Any], ...]
    count: int
    """Answers of the step before they were filtered."""


def _total(row: Mapping[str, Any]) -> float:
    found = row.get("total")
    return float(found) if isinstance(found, (int, float)) else float("-inf")


WHICH: dict[str, Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]] = {
    "all": lambda rows: rows,
    "best": lambda rows: sorted(rows, key=_total, reverse=True),
    "worst": lambda rows: sorted(rows, key=_total),
    "long": lambda rows: sorted(rows, key=lambda row: -int(row.get("length_tokens") or 0)),
    "cut": lambda rows: [row for row in rows if not row.get("ended")],
    "unscored": lambda rows: [row for row in rows if row.get("total") is None or row.get("notes")],
}
"""Name of a filter -> what it leaves, in its order."""


@dataclass(slots=True)
class _Index:
    """Where each step begins in a file, as far as it was read."""

    inode: int = 0
    read_bytes: int = 0
    places: dict[int, int] = field(default_factory=dict)


class RunAnswers:
    """Answers of the runs of a workspace. Methods may be called from any thread."""

    def __init__(self, workspace: Workspace) -> None:
        self._runs = workspace.runs
        self._known: dict[str, _Index] = {}
        self._lock = threading.Lock()

    def measure(self, run: str) -> int:
        """Return how many bytes of answers there are: what changes when there are more; 0 without any."""
        try:
            return self._file(run).stat().st_size
        except OSError:
            return 0

    def read(self, run: str, wanted: AnswerFilter) -> AnswersPage | None:
        """Return the answers of a step, None for a run without any. Raises OSError."""
        if not self.measure(run):
            return None
        with self._lock, self._file(run).open("rb") as file:
            places = self._index(run, file).places
            if not places:
                return None
            steps = tuple(sorted(places))
            step = wanted.step if wanted.step in places else steps[-1]
            file.seek(places[step])
            content = file.read(MOST_BYTES)
        found = []
        for line in content.split(b"\n")[:-1]:
            row = _read(line)
            if row is None:
                continue
            if row["step"] != step:
                break
            found.append(row)
        names = tuple(dict.fromkeys(name for row in found for name in row["scores"]))
        words = wanted.words.casefold()
        rows = [row for row in found if words in f"{row.get('prompt')}\n{row.get('answer')}".casefold()]
        rows = list(WHICH.get(wanted.which, WHICH["all"])(rows))
        return AnswersPage(step=step, steps=steps, names=names, rows=tuple(rows), count=len(found))

    def _index(self, run: str, file: Any) -> _Index:
        """Return where steps begin, reading on where the last look ended; anew where the file is another one."""
        stat = os.fstat(file.fileno())
        index = self._known.pop(run, _Index())
        if index.inode != stat.st_ino or index.read_bytes > stat.st_size:
            index = _Index(inode=stat.st_ino)
        file.seek(index.read_bytes)
        for line in file:
            if not line.endswith(b"\n"):
                break  # being written
            if found := STEP.match(line):
                index.places.setdefault(int(found[1]), index.read_bytes)
            index.read_bytes += len(line)
        self._known[run] = index
        while len(self._known) > KEPT_RUNS:
            self._known.pop(next(iter(self._known)))
        return index

    def _file(self, run: str) -> Path:
        return self._runs / run / ANSWERS_FILE


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        found = parse_json(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    whole = (
        isinstance(found, dict)
        and isinstance(found.get("step"), int)
        and isinstance(found.get("scores"), dict)
    )
    return found if whole else None
