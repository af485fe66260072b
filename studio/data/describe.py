"""What a data set is, over all its rows: the answer of `launch.py data SOURCE`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from studio.core.recipe import DatasetSpec
from studio.core.text import text
from studio.data.prepare import read, tokenise
from studio.data.preview import PreviewRow, show_rows
from studio.data.render import Renderer
from studio.data.row import RowProblem
from studio.data.sniff import Ambiguous
from studio.data.source import RowSource, read_rows

PROBLEMS_A_CODE = 100


def describe(
    source: str,
    *,
    tokenizer: Any | None = None,
    max_length: int = 1024,
    rows: int = 5,
    format: str = "auto",
    mapping: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the object that `launch.py data SOURCE --json` prints, with Texts where a person reads.

    A format that is not clear gives `format` None and a question in `needs_answer`. Without a tokenizer the
    rows are checked but not rendered. Raises StudioError for a source that cannot be read, and with a tokenizer
    that has no chat template where one is needed.
    """
    spec = DatasetSpec(source=source, format=format, mapping=dict(mapping or {}), max_length=max_length)
    opened = read_rows(source)
    if all(row.problem for row in opened.sample):
        return _describe_unclear(opened, None)
    try:
        reading = read(spec)
    except Ambiguous as question:
        return _describe_unclear(opened, question)
    dropped: Mapping[str, int] = {}
    used = len(reading.conversations)
    if tokenizer is not None:
        tokenised = tokenise(reading, Renderer(tokenizer, spec.train_on), max_length)
        dropped, used = dict(tokenised.dropped), len(tokenised.rows)
    shown, _, _ = show_rows(reading.source.sample[:rows], reading.guess, spec, tokenizer)
    return {
        "source": source,
        "container": reading.source.container,
        "encoding": "utf-8",
        "format": reading.guess.format.name,
        "confidence": reading.guess.confidence,
        "reason": reading.guess.reason,
        "mapping": dict(reading.guess.mapping),
        "needs_answer": [],
        "rows_read": reading.rows_read,
        "rows_used": used,
        "rows_quarantined": len(reading.problems),
        "rows_filtered": dropped,
        "problems": _list_problems(reading.problems),
        "preview": [_show(row) for row in shown],
    }


def _describe_unclear(opened: RowSource, question: Ambiguous | None) -> dict[str, Any]:
    """Describe a source whose format is not known: because of `question`, or because no row can be read."""
    rows_read, problems = 0, []
    for row in opened:
        rows_read += 1
        if row.problem is not None:
            problems.append(row.problem)
    asked = [] if question is None else [{"question": question.what, "choices": list(question.choices)}]
    return {
        "source": opened.source,
        "container": opened.container,
        "encoding": "utf-8",
        "format": None,
        "confidence": 0.0,
        "reason": problems[0].sentence if question is None else question.why,
        "mapping": {},
        "needs_answer": asked,
        "rows_read": rows_read,
        "rows_used": 0,
        "rows_quarantined": len(problems),
        "rows_filtered": {},
        "problems": _list_problems(problems),
        "preview": [],
    }


def _list_problems(problems: Iterable[RowProblem]) -> list[dict[str, Any]]:
    """Return one entry for each problem up to PROBLEMS_A_CODE a code, then one with the count of the rest."""
    entries: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for problem in problems:
        seen[problem.code] += 1
        if seen[problem.code] <= PROBLEMS_A_CODE:
            entries.append(_show_problem(problem))
    for code, count in seen.items():
        if count > PROBLEMS_A_CODE:
            rest = count - PROBLEMS_A_CODE
            entries.append({"code": code, "count": rest, "message": text("data.problem.more", count=rest)})
    return entries


def _show_problem(problem: RowProblem) -> dict[str, Any]:
    return {"code": problem.code, "line": problem.line, "count": 1, "message": problem.sentence}


def _show(row: PreviewRow) -> dict[str, Any]:
    return {
        "messages": [dataclasses.asdict(message) for message in row.messages],
        "text": row.text,
        "tokens": [dataclasses.asdict(token) for token in row.tokens],
    }
