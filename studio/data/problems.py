"""What is wrong with the rows of a data set: every occurrence counted, the first of each code kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from studio.core.codec import from_json, to_json
from studio.core.i18n import Text, text
from studio.data.row import RowProblem
from studio.data.row_codes import find_code

KEPT = 100
"""Problems of one code that are kept one by one; of the others only their number."""


@dataclass(slots=True)
class Problems:
    """Counts of all problems by code, and the first KEPT of each."""

    counts: Counter[str] = field(default_factory=Counter)
    kept: dict[str, list[RowProblem]] = field(default_factory=lambda: defaultdict(list))

    def add(self, problem: RowProblem) -> None:
        """Count one problem."""
        self.counts[problem.code] += 1
        if self.counts[problem.code] <= KEPT:
            self.kept[problem.code].append(problem)

    def join(self, other: Problems) -> None:
        """Count those of `other`, which come behind these."""
        for code, found in other.kept.items():
            self.kept[code] += found[: max(0, KEPT - len(self.kept[code]))]
        self.counts.update(other.counts)

    def moved(self, line: int, row: int, offset: int) -> Problems:
        """Return these with so much added to their places: what stands before a part of a file."""
        if not (line or row or offset):
            return self
        moved = Problems(self.counts)
        for code, found in self.kept.items():
            moved.kept[code] = [
                replace(one, line=one.line + line, row=one.row + row, offset=one.offset + offset)
                for one in found
            ]
        return moved

    def __iter__(self) -> Iterator[RowProblem]:
        """Yield those kept in the order of the files."""
        found = [problem for problems in self.kept.values() for problem in problems]
        return iter(sorted(found, key=lambda one: (one.file, one.line, one.row, one.code)))

    @property
    def first_refused(self) -> RowProblem | None:
        """The first problem that keeps a row out."""
        return next((one for one in self if is_refused(one.code)), None)

    @property
    def refused(self) -> int:
        """How many problems keep a row out, which is one a row."""
        return sum(count for code, count in self.counts.items() if is_refused(code))

    def kinds(self) -> Text:
        """Return how many rows of which kind cannot be used, the most frequent kind first."""
        counts = sorted((-count, code) for code, count in self.counts.items() if is_refused(code))
        named = [
            text(f"data.refused.{find_code(code) or 'other'}", rows=f"{-count:,}") for count, code in counts
        ]
        named = named or [text("data.refused.other", rows=f"{self.refused:,}")]
        return reduce(lambda first, next: text("data.refused.list", first=first, next=next), named)

    def sentences(self) -> tuple[Text, ...]:
        """Return a sentence for each kept problem that refuses a row, then one that counts the rest."""
        kept = [one.sentence for one in self if is_refused(one.code)][:KEPT]
        rest = self.refused - len(kept)
        return (*kept, text("data.problem.more", count=rest)) if rest > 0 else tuple(kept)

    def entries(self) -> list[dict[str, Any]]:
        """Return one entry for each kept problem, then for each code one with the count of the rest."""
        entries = [
            {
                "code": one.code,
                "line": one.line,
                "row": one.row,
                "count": 1,
                "message": one.sentence,
                "file": one.file,
            }
            for one in self
        ]
        for code, count in self.counts.items():
            rest = count - len(self.kept[code])
            if rest > 0:
                message = text("data.problem.more", count=rest)
                entries.append(
                    {"code": code, "line": 0, "row": 0, "count": rest, "message": message, "file": ""}
                )
        return entries

    def to_dict(self) -> dict[str, Any]:
        """Return what a manifest holds."""
        return {"counts": dict(self.counts), "kept": [_pack(one) for one in self]}


def read_problems(found: Mapping[str, Any]) -> Problems:
    """Return the Problems that `to_dict` wrote."""
    problems = Problems(Counter(found["counts"]))
    for one in found["kept"]:
        problems.kept[one["code"]].append(unpack_problem(one))
    return problems


def gather(found: Iterable[Problems]) -> Problems:
    """Return all of `found` as one."""
    together = Problems()
    for problems in found:
        together.join(problems)
    return together


def is_refused(code: str) -> bool:
    """Return whether a row with this code cannot be used."""
    known = find_code(code)
    return known is None or known.effect == "refused"


def unpack_problem(found: Mapping[str, Any]) -> RowProblem:
    """Return the RowProblem, without its bytes, that a manifest holds."""
    places = {name: found[name] for name in ("code", "line", "row", "offset", "file")}
    return RowProblem(message=from_json(Text, found["message"]), **places)


def _pack(problem: RowProblem) -> dict[str, Any]:
    places = {name: getattr(problem, name) for name in ("code", "line", "row", "offset", "file")}
    return places | {"message": to_json(problem.message)}
