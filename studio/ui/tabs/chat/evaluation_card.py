"""What an evaluation tells: scores with their bounds, what changed between models, and the rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.metrics.metric import AnswerMetric
from studio.services.evaluation_result import BASE, TUNED, Contender, EvaluationResult, SideComparison
from studio.ui.cards import Say
from studio.ui.templates import render

ROWS_SHOWN = 200
"""More rows are in the file alone: a browser takes a second for 2000."""


def evaluation_card(found: EvaluationResult, say: Say) -> Markup:
    """Return an evaluation: totals, then rows that went from right to wrong, those that went the other way, all."""
    asked = found.questions.asked
    expected = sum(one.expected is not None for one in asked)
    left_out = len(found.questions.rows) - len(asked)
    notes = [say("ui.eval.count", count=len(asked), expected=expected)]
    if left_out:
        notes.append(say("ui.eval.left_out", count=left_out))
    if any(side.scores for side in found.sides):
        notes.append(say("ui.eval.bounds"))
    if not found.whole:
        notes.append(say("ui.test.not_whole"))
    if len(asked) > ROWS_SHOWN:
        notes.append(say("ui.test.more", shown=ROWS_SHOWN))
    return render(
        "tabs/chat/evaluation.html",
        say,
        name=found.questions.name,
        sides=[name_side(side.contender, say) for side in found.sides],
        others=[name_side(side.contender, say) for side in found.sides[1:]],
        totals=[_total(metric, found, say) for metric in found.metrics if _is_measured(metric, found)],
        notes=notes,
        sections=list(_list_sections(found, say)),
    )


def name_side(contender: Contender, say: Say) -> str:
    """Return what a model of an evaluation is called."""
    if contender.name in (BASE, TUNED):
        return say(f"ui.chat.{contender.name}")
    return say("chat.place.step", step=int(contender.name.removeprefix("step-")))


def _is_measured(metric: AnswerMetric, found: EvaluationResult) -> bool:
    return any(metric.name in side.scores for side in found.sides)


def _total(metric: AnswerMetric, found: EvaluationResult, say: Say) -> tuple[str, str, list, list]:
    values = []
    for side in found.sides:
        score = side.scores.get(metric.name)
        values.append(("–", "") if score is None else _show(metric, score, signed=False))
    differences = []
    for comparison in found.comparisons:
        difference = comparison.differences.get(metric.name)
        if difference is None:
            differences.append(("–", "", ""))
            continue
        gain = difference.value if metric.better == "higher" else -difference.value
        sure = difference.low > 0 or difference.high < 0
        differences.append(
            (*_show(metric, difference, signed=True), ("good" if gain > 0 else "bad") if sure else "")
        )
    return say(f"metric.{metric.name}"), say(f"ui.eval.better.{metric.better}"), values, differences


def _show(metric: AnswerMetric, score: Any, *, signed: bool) -> tuple[str, str]:
    scale, digits = (100, 1) if metric.is_share else (1, 2)
    sign = "+" if signed else ""
    value, low, high = (_number(scale * part, digits, sign) for part in (score.value, score.low, score.high))
    unit = " %" if metric.is_share and not signed else ""  # a difference of shares is in points
    return value + unit, f"[{low}, {high}]"


def _number(value: float, digits: int, sign: str = "") -> str:
    if not math.isfinite(value):
        return "∞"
    return f"{value:{sign}.{digits}f}" if abs(value) < 1e6 else f"{value:{sign}.2g}"


def _list_sections(found: EvaluationResult, say: Say) -> Iterable[tuple[str, list[dict[str, Any]], bool]]:
    """Yield (words, rows, whether it is open): what was lost, what was won, everything."""
    opened = False
    for comparison in found.comparisons:
        for which, changed in (("lost", comparison.lost), ("won", comparison.won)):
            rows = _first_changed(found, comparison, changed)
            if rows:
                other = name_side(_contender(found, comparison), say)
                words = say(
                    f"ui.eval.{which}", count=len(rows[1]), metric=say(f"metric.{rows[0]}"), other=other
                )
                yield words, _rows(found, rows[1], say), which == "lost"
                opened = opened or which == "lost"
    numbers = [one.number for one in found.questions.asked]
    yield say("ui.eval.rows", count=len(numbers)), _rows(found, numbers, say), not opened


def _contender(found: EvaluationResult, comparison: SideComparison) -> Contender:
    return next(side.contender for side in found.sides if side.contender.name == comparison.other)


def _first_changed(
    found: EvaluationResult, comparison: SideComparison, changed: Any
) -> tuple[str, tuple[int, ...]] | None:
    """Return the first metric that decides, of those that were chosen, with the rows that changed by it."""
    for metric in found.metrics:
        if changed.get(metric.name):
            return metric.name, changed[metric.name]
    return None


def _rows(found: EvaluationResult, numbers: Sequence[int], say: Say) -> list[dict[str, Any]]:
    by_number = {one.number: one for one in found.questions.asked}
    rows = []
    for number in numbers[:ROWS_SHOWN]:
        question = by_number[number]
        cells = []
        for side in found.sides:
            answer = side.answers.get(number)
            marks = list(_marks(found, side, number, say))
            refused = side.refused.get(number)
            cells.append((answer.words if answer is not None else refused or "", marks))
        cells = [
            (say(words.id, **words.values) if hasattr(words, "id") else words, marks)
            for words, marks in cells
        ]
        rows.append(
            {"number": number, "prompt": question.prompt, "expected": question.expected, "cells": cells}
        )
    return rows


def _marks(
    found: EvaluationResult, side: Any, number: int, say: Say
) -> Iterable[tuple[str, bool | None, str]]:
    """Yield (label, whether it is right, value) of a row by each metric; None where a metric does not decide."""
    for metric in found.metrics:
        counts = side.counts[metric.name].get(number)
        if counts is None:
            continue
        value = metric.total(counts)
        label = say(f"metric.{metric.name}")
        if metric.decides:
            part = f"{100 * value:.0f} %" if 0 < value < 1 else ""
            yield label, value >= 1, part
        else:
            yield label, None, f"{100 * value:.0f} %" if metric.is_share else _number(value, 2)
