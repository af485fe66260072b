"""The table of a test: every question with the answers of both sides, what was expected, and how good each side is."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.metrics.exact import is_exact
from studio.core.metrics.normalised import is_alike
from studio.data.questions import QuestionSet
from studio.services.csv_cells import protect


@dataclass(frozen=True, slots=True)
class TableRow:
    """One question. The mappings go from `base` and `tuned` to what that side said of it."""

    number: int
    """Its place in the file, from 1."""
    prompt: str
    expected: str | None
    answers: Mapping[str, str]
    exact: Mapping[str, bool]
    """Empty where nothing is expected, as `alike`."""
    alike: Mapping[str, bool]
    """The same once normalised (core.metrics.normalised)."""
    losses: Mapping[str, float | None]
    """Mean over the expected answer's tokens, in nats."""


@dataclass(frozen=True, slots=True)
class Totals:
    """One side over all questions."""

    exact: int
    alike: int
    expected: int
    """Questions with an expected answer."""
    loss: float | None
    """Over all expected tokens, in nats."""
    perplexity: float | None


@dataclass(frozen=True, slots=True)
class EvalTable:
    """A test's outcome; the rows in which the sides differ come first."""

    name: str
    run: str
    checkpoint: str
    rows: tuple[TableRow, ...]
    totals: Mapping[str, Totals]
    whole: bool
    """False when it was stopped: some answers are empty."""
    left_out: int


def make_table(
    questions: QuestionSet,
    run: str,
    checkpoint: str,
    answers: Mapping[str, Sequence[str]],
    losses: Mapping[str, Sequence[Any]],
    *,
    whole: bool,
) -> EvalTable:
    """Return the table of answers and engine.scoring.Loss by side, each in the order of `questions.asked`."""
    from studio.engine.answer_losses import add_losses

    rows, totals = [], {}
    for i, prompt in enumerate(questions.asked):
        given = {side: found[i] for side, found in answers.items()}
        wanted = prompt.expected
        known = {} if wanted is None else given
        loss = {side: found[i].mean if found[i] else None for side, found in losses.items()}
        exact = {side: is_exact(words, wanted) for side, words in known.items()}
        alike = {side: is_alike(words, wanted) for side, words in known.items()}
        rows.append(TableRow(i + 1, prompt.prompt, wanted, given, exact, alike, loss))
    for side in answers:
        all_losses = add_losses(losses.get(side, ()))
        totals[side] = Totals(
            sum(row.exact.get(side, False) for row in rows),
            sum(row.alike.get(side, False) for row in rows),
            sum(row.expected is not None for row in rows),
            all_losses.mean if all_losses.tokens else None,
            all_losses.perplexity if all_losses.tokens else None,
        )
    ranked, left_out = tuple(sorted(rows, key=_rank)), len(questions.rows) - len(questions.asked)
    return EvalTable(questions.name, run, checkpoint, ranked, totals, whole, left_out)


def _rank(row: TableRow) -> tuple[int, float, int]:
    """The tuned model alone is right, the base alone is right, the answers differ, they are the same; then by loss."""
    base, tuned = row.exact.get("base"), row.exact.get("tuned")
    if base is not None and tuned is not None and base != tuned:
        order = 0 if tuned else 1
    else:
        order = 2 if len({words.strip() for words in row.answers.values()}) > 1 else 3
    before, after = row.losses.get("base"), row.losses.get("tuned")
    gained = before - after if before is not None and after is not None else 0.0
    return order, -gained if math.isfinite(gained) else 0.0, row.number


def write_csv(table: EvalTable, headings: Mapping[str, str]) -> str:
    """Return the table as CSV with a byte order mark (Excel); cells that would be formulas get a quote in front.

    headings: what each column is called, in the order number, prompt, expected and SIDE, SIDE_exact, SIDE_alike,
    SIDE_loss for each side that is there.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    sides = list(table.totals)
    names = ["number", "prompt", "expected"]
    names += [f"{side}{part}" for side in sides for part in ("", "_exact", "_alike", "_loss")]
    writer.writerow([protect(headings[name]) for name in names])
    for row in sorted(table.rows, key=lambda row: row.number):
        cells: list[Any] = [row.number, protect(row.prompt), protect(row.expected or "")]
        for side in sides:
            loss = row.losses.get(side)
            cells += [
                protect(row.answers.get(side, "")),
                _mark(row.exact.get(side)),
                _mark(row.alike.get(side)),
            ]
            cells.append("" if loss is None else f"{loss:.6f}")
        writer.writerow(cells)
    return "\ufeff" + out.getvalue()


def _mark(good: bool | None) -> str:
    return "" if good is None else str(int(good))
