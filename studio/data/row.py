"""One row of a data set, and what is wrong with a row that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from studio.core.text import Text, text


class RowError(Exception):
    """One row cannot be used. `code` is its number in the row checks (E101 ...), "" where it has none."""

    def __init__(self, code: str, message: Text) -> None:
        super().__init__(code, message.id)
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True, slots=True)
class RowProblem:
    """Why the row at `line` was refused."""

    line: int
    code: str
    message: Text

    @property
    def sentence(self) -> Text:
        """The problem with its place: "Line 12: ..."."""
        return text("data.problem.at", line=self.line, problem=self.message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row as it was found. Where `problem` is set, the row could not be read and `values` is empty."""

    line: int
    """Line of the file where the row begins, from 1; the row's number in containers without lines (parquet, json)."""
    values: Mapping[str, object] = field(default_factory=dict)
    problem: RowProblem | None = None


def broken_row(line: int, code: str, message: Text) -> Row:
    """Return a Row that stands for one that could not be read."""
    return Row(line=line, problem=RowProblem(line=line, code=code, message=message))


def list_columns(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the names of all columns of `rows` in the order of their first appearance."""
    return tuple(dict.fromkeys(str(name) for row in rows for name in row.values))


def say_problems(problems: Iterable[RowProblem], limit: int = 100) -> tuple[Text, ...]:
    """Return the sentences of the first `limit` problems, then one that counts the rest."""
    problems = tuple(problems)
    sentences = tuple(problem.sentence for problem in problems[:limit])
    rest = len(problems) - len(sentences)
    return (*sentences, text("data.problem.more", count=rest)) if rest else sentences
