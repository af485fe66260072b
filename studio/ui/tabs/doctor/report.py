"""What the doctor tells: the verdict, each check, problems, offers; verdicts in words and not by colour alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from markupsafe import Markup, escape

from studio.ui.templates import render

Say = Callable[..., str]
KINDS = {"ready": "good", "degraded": "warn", "blocked": "bad"}
SIGNS = {"ok": "✓", "note": "i", "warn": "!", "bad": "✗", "skip": "–"}
KERNEL_COLUMNS = ("op", "right", "error", "twin_ms", "kernel_ms", "speed")


def report_card(report: Mapping[str, Any], say: Say) -> Markup:
    """Return the report of planning.doctor_report.judge: the verdict, each check in its order, problems, offers."""
    return render(
        "tabs/doctor/report.html",
        say,
        report=report,
        kind=KINDS[report["verdict"]],
        signs=SIGNS,
        kernels=report["facts"].kernel_tests,
        columns=KERNEL_COLUMNS,
    )


def cause_card(answer: Mapping[str, Any], say: Say) -> Markup:
    """Return what an error text means (explain_words): one cause and its doubt, or two and what tells them apart."""
    causes = [answer, *([answer["other"]] if answer["other"] else [])]
    which = say("explain.which", tell=answer["tell"]) if len(causes) > 1 else ""
    return render("tabs/doctor/cause.html", say, answer=answer, causes=causes, which=which, show=_show_code)


def _show_code(words: str) -> Markup:
    """Return a sentence as HTML, with what stands in backquotes as code."""
    parts = words.split("`")
    if len(parts) % 2 == 0:
        return escape(words)
    code = Markup("<code>{}</code>")
    return Markup().join(code.format(part) if i % 2 else escape(part) for i, part in enumerate(parts))
