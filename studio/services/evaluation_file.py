"""The rows of an evaluation as a file: every row as it was, with each model's answer, log-probability and scores."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import Catalogue, text
from studio.services.csv_cells import protect
from studio.services.evaluation_result import EvaluationResult, Side

PROBLEM = "problem"


def require_writable(path: Path) -> None:
    """Raise StudioError unless answers can be written there: .csv or .jsonl, in a folder that is there, no file yet."""
    if path.suffix.lower() not in (".csv", ".jsonl"):
        raise StudioError(
            text("eval.out.kind", name=path.name), text("eval.out.kind.why"), text("eval.out.kind.fix")
        )
    if path.exists():
        raise StudioError(
            text("eval.out.exists", name=path.name), text("eval.out.exists.why"), text("eval.out.fix")
        )
    if not path.parent.is_dir():
        raise StudioError(
            text("eval.out.folder", name=str(path.parent)), text("eval.out.folder.why"), text("eval.out.fix")
        )


def write_answers(path: Path, evaluation: EvaluationResult, catalogue: Catalogue) -> None:
    """Write all rows in one step, as CSV or as JSON lines by the name's ending. Raises OSError."""
    write_file(path, render_answers(evaluation, catalogue, path.suffix.lower()))


def render_answers(evaluation: EvaluationResult, catalogue: Catalogue, suffix: str) -> bytes:
    """Return the content of that file."""
    rows = list(_list_rows(evaluation, catalogue))
    if suffix == ".jsonl":
        lines = (json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        return "".join(lines).encode("utf-8", "replace")
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(map(protect, names))
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
    return ("\ufeff" + out.getvalue()).encode("utf-8", "replace")


def _list_rows(evaluation: EvaluationResult, catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    taken = {str(name) for one in evaluation.questions.rows for name in one.values}
    for one in evaluation.questions.rows:
        row: dict[str, Any] = {str(name): value for name, value in one.values.items()}
        added: dict[str, Any] = {}
        problem = one.problem
        for side in evaluation.sides:
            added |= _say_side(side, one.number, evaluation)
            problem = problem or side.refused.get(one.number)
        added[PROBLEM] = catalogue.say(problem) if problem is not None else None
        # What the file has under the same name stays as it is.
        yield row | {f"{name}_" if name in taken else name: value for name, value in added.items()}


def _say_side(side: Side, number: int, evaluation: EvaluationResult) -> Mapping[str, Any]:
    name, answer = side.contender.name, side.answers.get(number)
    said = {
        name: answer.words if answer is not None else None,
        f"{name}.log_probability": answer.log_probability if answer is not None else None,
        f"{name}.tokens": answer.tokens if answer is not None else None,
        f"{name}.end": answer.end if answer is not None else None,
    }
    for metric in evaluation.metrics:
        counts = side.counts[metric.name].get(number)
        said[f"{name}.{metric.name}"] = None if counts is None else metric.total(counts)
    return said


def _plain(value: Any) -> Any:
    """Return `value` as JSON can say it: no NaN, times and bytes in words."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (Mapping, list, tuple)):
        return protect(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))
    return f"{value:.6g}" if isinstance(value, float) else protect(str(value))
