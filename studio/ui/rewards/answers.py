"""The table of a run's answers: what was asked and said, what each reward gave, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from studio.services.run_answers import WHICH, AnswerFilter, AnswersPage
from studio.ui.cards import Say
from studio.ui.templates import render

ROWS_SHOWN = 100
SHOWN_CHARACTERS = 2000
MOST_WORDS = 200


def read_filter(said: object) -> AnswerFilter:
    """Return what a page wants to see; whatever is not of that form counts for nothing."""
    found: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
    step, which = str(found.get("step", "")), str(found.get("which", ""))
    return AnswerFilter(
        step=int(step) if step.isdecimal() and len(step) < 10 else 0,
        which=which if which in WHICH else "all",
        words=str(found.get("words", ""))[:MOST_WORDS].strip(),
    )


def answers_card(page: AnswersPage | None, say: Say) -> Markup:
    """Return the table of one step's answers; nothing for a run that draws none."""
    if page is None:
        return Markup("")
    rows = [
        {
            "row": one.get("row"),
            "prompt": str(one.get("prompt", ""))[-SHOWN_CHARACTERS:],
            "answer": str(one.get("answer", ""))[:SHOWN_CHARACTERS],
            "scores": [_number(one["scores"].get(name)) for name in page.names],
            "total": _number(one.get("total")),
            "advantage": _number(one.get("advantage"), signed=True),
            "rises": _sign(one.get("advantage")),
            "length": one.get("length_tokens"),
            "ended": bool(one.get("ended")),
            "notes": " ".join(map(str, one.get("notes") or ()))[:SHOWN_CHARACTERS],
        }
        for one in page.rows[:ROWS_SHOWN]
    ]
    return render(
        "rewards/answers.html",
        say,
        step=page.step,
        last=page.steps[-1],
        earlier=max((one for one in page.steps if one < page.step), default=0),
        later=min((one for one in page.steps if one > page.step), default=0),
        count=page.count,
        shown=len(page.rows),
        more=len(page.rows) > ROWS_SHOWN,
        names=page.names,
        rows=rows,
    )


def _number(value: object, *, signed: bool = False) -> str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "–"
    return f"{value:+.2f}" if signed else f"{value:.3g}"


def _sign(value: object) -> str:
    if not isinstance(value, (int, float)) or not value:
        return ""
    return "up" if value > 0 else "down"
