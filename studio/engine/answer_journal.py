"""What one model answered to one set of questions: a line as each answer comes, so that a killed process goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from studio.core.json_file import parse_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """One answer."""

    words: str
    tokens: int
    """The end token included."""
    log_probability: float | None
    """Sum over its tokens, in nats; None where the model's own code answered, which tells none."""
    end: str
    """`end`, or `limit` where it was cut."""


@dataclass(frozen=True, slots=True)
class ExpectedLoss:
    """How likely the expected answer is: - log p of its tokens together, in nats."""

    nats: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said of an answer."""

    score: float | None
    """0..1; None where it named no score."""
    words: str


KINDS: dict[str, type] = {"answer": WrittenAnswer, "loss": ExpectedLoss, "verdict": Judgement}


class AnswerJournal:
    """The lines of one file, in memory too; add() appends. Rows are numbered as in the data."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Read what is there of `about`: whose answers to what. Raises OSError."""
        self.path = path
        self.about = dict(about)
        self.answers: dict[int, WrittenAnswer] = {}
        self.losses: dict[int, ExpectedLoss] = {}
        self.verdicts: dict[tuple[int, str], Judgement] = {}
        """By row and rubric."""
        self._file: BinaryIO | None = None
        self._whole_bytes = self._read()

    def add(
        self, row: int, kind: str, found: WrittenAnswer | ExpectedLoss | Judgement, rubric: str = ""
    ) -> None:
        """Keep what was found of a row. Raises OSError."""
        if self._file is None:
            self._file = self._open()
        line: dict[str, Any] = {"row": row, "kind": kind} | asdict(found)
        if rubric:
            line["rubric"] = rubric
        self._write(line)
        self._take(row, kind, found, rubric)

    def close(self) -> None:
        """Let the file go."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        if file.tell() > self._whole_bytes:  # a line that a killed process began
            file.truncate(self._whole_bytes)
        self._file = file
        if not self._whole_bytes:
            self._write({"version": VERSION, **self.about})
        return file

    def _write(self, line: Mapping[str, Any]) -> None:
        content = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        self._file.write(content)
        self._file.flush()  # to the system, which a killed process does not take along

    def _read(self) -> int:
        """Take what whole lines say; return how many bytes they are, 0 where the file is of something else."""
        if not self.path.is_file():
            return 0
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        read_bytes = 0
        for place, line in enumerate(whole.splitlines(keepends=True)):
            try:
                found = parse_json(line)
                if place == 0:
                    if found != {"version": VERSION, **self.about}:
                        return 0
                else:
                    self._take_line(found)
            except (ValueError, KeyError, TypeError):
                break  # what a disk lost: all behind it is answered again
            read_bytes += len(line)
        return read_bytes

    def _take_line(self, found: dict[str, Any]) -> None:
        row, kind, rubric = int(found.pop("row")), found.pop("kind"), found.pop("rubric", "")
        self._take(row, kind, KINDS[kind](**found), rubric)

    def _take(self, row: int, kind: str, found: Any, rubric: str) -> None:
        if kind == "verdict":
            self.verdicts[row, rubric] = found
        else:
            (self.answers if kind == "answer" else self.losses)[row] = found
