"""The HTML of the doctor's report: every value escaped, verdicts in words and not by colour alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from studio.core.facts import KernelTest

Say = Callable[..., str]
KINDS = {"ready": "good", "degraded": "warn", "blocked": "bad"}
SIGNS = {"ok": "✓", "note": "i", "warn": "!", "bad": "✗", "skip": "–"}


def report_card(report: Mapping[str, Any], say: Say) -> str:
    """Return the report of planning.doctor_report.judge: the verdict, each check in its order, problems, offers."""
    kind = KINDS[report["verdict"]]
    reasons = "".join(f"<p>{escape(say(reason))}</p>" for reason in report["reasons"])
    head = (
        f'<div class="card note {kind}" data-verdict="{escape(report["verdict"])}">'
        f"<h3>{escape(say('doctor.verdict.' + report['verdict']))}</h3>{reasons}</div>"
    )
    parts = [head, _problems(report["problems"], say), _checks(report["checks"], say)]
    parts += [_kernels(report["facts"].kernel_tests, say), _offers(report["offers"], say)]
    return "".join(parts)


def cause_card(answer: Mapping[str, Any], say: Say) -> str:
    """Return what an error text means (explain_words): one cause and its doubt, or two and what tells them apart."""
    causes = [answer, *([answer["other"]] if answer["other"] else [])]
    lead = ""
    if len(causes) > 1:
        which = say("explain.which", tell=answer["tell"])
        lead = f"<p>{escape(say('explain.unsure'))} {_show(which)}</p>"
    elif answer["doubt"]:
        lead = f"<p>{_show(answer['doubt'])}</p>"
    line = f"<pre>{escape(answer['line'])}</pre>" if answer["line"] else ""
    parts = []
    for number, cause in enumerate(causes, start=1):
        place = f"{number}. " if len(causes) > 1 else ""
        code = f" <code>{escape(cause['code'])}</code>" if cause["code"] else ""
        fixes = "".join(f"<li>{_show(fix)}</li>" for fix in cause["fixes"])
        parts.append(
            f'<li data-cause="{escape(cause["id"])}"><b>{place}{escape(cause["what"])}</b>{code}'
            f"<p>{_show(cause['why'])}</p>{line if number == 1 else ''}<ul>{fixes}</ul></li>"
        )
    return f'<div class="card problems findings">{lead}<ul>{"".join(parts)}</ul></div>'


def _show(words: str) -> str:
    """Return a sentence as HTML, with what stands in backquotes as code."""
    parts = escape(words).split("`")
    if len(parts) % 2 == 0:
        return escape(words)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _problems(problems: list[Mapping[str, Any]], say: Say) -> str:
    if not problems:
        return ""
    rows = []
    for problem in problems:
        # What is set right already asks nothing of the person.
        good = f'<p class="good">{escape(say("ui.doctor.repaired"))}</p>'
        todo = good if problem["repaired"] else f"<p>{escape(say(problem['fix']))}</p>"
        code = f"<code>{escape(problem['code'])}</code>" if problem["code"] else ""
        rows.append(
            f'<li data-problem="{escape(problem["id"])}"><b>{escape(say(problem["title"]))}</b> {code}'
            f'<p class="soft">{escape(say(problem["evidence"]))}</p>'
            f"{todo}</li>"
        )
    title = escape(say("ui.doctor.problems", count=len(problems)))
    return f'<div class="card problems findings"><h3>{title}</h3><ul>{"".join(rows)}</ul></div>'


def _checks(checks: list[Mapping[str, Any]], say: Say) -> str:
    rows = []
    for check in checks:
        verdict = check["verdict"]
        fix = f"<em>{escape(say(check['fix']))}</em>" if check.get("fix") else ""
        rows.append(
            f'<li class="{escape(verdict)}"><i aria-hidden="true">{SIGNS[verdict]}</i>'
            f"<span>{escape(say(check['tried']))}</span>"
            f"<div>{escape(say(check['evidence']))} {fix}</div></li>"
        )
    title = escape(say("ui.doctor.checks"))
    return f'<div class="card"><h3>{title}</h3><ol class="checks">{"".join(rows)}</ol></div>'


def _kernels(tests: tuple[KernelTest, ...], say: Say) -> str:
    if not tests:
        return ""
    rows = "".join(
        f"<tr><td>{escape(test.op)}</td><td>{SIGNS['ok' if test.ok else 'bad']}</td>"
        f"<td>{test.error:.1e}</td><td>{test.twin_ms:.3f}</td><td>{test.kernel_ms:.3f}</td>"
        f"<td>{test.twin_ms / test.kernel_ms:.1f} ×</td></tr>"
        if test.kernel_ms
        else f"<tr><td>{escape(test.op)}</td><td>{SIGNS['bad']}</td><td colspan=4>{escape(test.reason)}</td></tr>"
        for test in tests
    )
    names = ("op", "right", "error", "twin_ms", "kernel_ms", "speed")
    heads = "".join(f"<th>{escape(say('ui.doctor.kernel.' + name))}</th>" for name in names)
    title = escape(say("ui.doctor.kernels"))
    return f'<div class="card kernels"><h3>{title}</h3><table><tr>{heads}</tr>{rows}</table></div>'


def _offers(offers: tuple[Any, ...], say: Say) -> str:
    if not offers:
        return ""
    rows = "".join(
        f"<li><b>{escape(say(offer.title))}</b> {escape(say(offer.why))} <code>{escape(offer.command)}</code></li>"
        for offer in offers
    )
    return f'<div class="card problems"><h3>{escape(say("ui.doctor.offers"))}</h3><ul>{rows}</ul></div>'
