"""What is told of a dataset: format, questions, rows with roles, problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.data.pipeline import UNTRAINED
from studio.data.row_codes import find_code
from studio.data.templates.fitting import WORDED
from studio.ui.cards import facts_card, note_card
from studio.ui.quantities import size_words
from studio.ui.tabs.dataset.visible_text import show_text
from studio.ui.templates import render

Say = Callable[..., str]
CELL_CHARACTERS = 300
COLUMNS_SHOWN = 60
"""More columns than that are named, not shown; those with a role come first."""
EXAMPLES_SHOWN = 5
"""Of each problem."""


def refusal_card(error: StudioError, say: Say) -> Markup:
    """Return the three sentences of a refusal."""
    return note_card(" ".join(say(part) for part in (error.what, error.why, error.fix)), "bad")


def format_card(look: Any, say: Say, counted: Any = None) -> Markup:
    """Return what the data is and why the studio thinks so, and the law: where every row went.

    `look`: the desk's Look; `counted`: what a run makes of the rows under the limits of now, where that is known.
    """
    report = look.report
    if counted is not None:
        rows = {"rows_read": counted.rows_read, "rows_used": counted.rows_used}
        report = {
            **report,
            **rows,
            "rows_quarantined": counted.rows_refused,
            "rows_filtered": counted.filtered,
        }
    if look.state in ("remote", "asking", "fetching"):
        return remote_card(look, say)
    if not report:
        return refusal_card(look.error, say) if look.error else note_card(say("ui.dataset.none"))
    error = look.error or report.get("refusal")
    known = bool(report.get("format"))
    facts = [part for part in (report.get("container", "").upper(), report.get("encoding", "")) if part]
    if report.get("size_bytes"):
        facts.append(size_words(report["size_bytes"]))
    refused = counted.refusal if counted is not None else None
    trouble = [" ".join(say(part) for part in (refused.what, refused.why, refused.fix))] if refused else []
    if report.get("format") in UNTRAINED:
        parts = ("data.kind.untrained", "data.kind.untrained.why", "data.kind.untrained.fix")
        trouble.append(" ".join(say(id, format=report["format"]) for id in parts))
    if error is not None:
        trouble.append(" ".join(say(part) for part in (error.what, error.why, error.fix)))
    some_refused = refused and 0 < counted.rows_refused < counted.rows_read
    return render(
        "tabs/dataset/format.html",
        say,
        look=look,
        report=report,
        kind="bad" if trouble else _kind(look, report, known),
        known=known,
        title=say(f"knob.data.format.choice.{report['format']}") if known else say("ui.dataset.unclear"),
        facts=facts,
        law=law_line(report, say) if look.whole else "",
        trouble=trouble,
        usable=counted.rows_used if some_refused else 0,
    )


def _kind(look: Any, report: Mapping[str, Any], known: bool) -> str:
    if look.whole and known and not report["rows_used"]:
        return "bad"
    if not known or report.get("needs_answer") or report.get("rows_quarantined"):
        return "warn"
    return "good"


def law_line(report: Mapping[str, Any], say: Say) -> Markup:
    """Return the law as one line: rows read = used + set aside + left out, each rule by name."""
    filtered = {rule: rows for rule, rows in (report.get("rows_filtered") or {}).items() if rows}
    parts = [
        ("used", report["rows_used"]),
        ("quarantined", report["rows_quarantined"]),
        ("filtered", sum(filtered.values())),
    ]
    rules = list(filtered.items())
    return render("tabs/dataset/law.html", say, read=report["rows_read"], parts=parts, rules=rules)


def remote_card(look: Any, say: Say) -> Markup:
    """Return what would be fetched, and the button for it: nothing connects before."""
    size = size_words(look.size_bytes) if look.size_bytes else ""
    return render("tabs/dataset/remote.html", say, look=look, size=size, show=show_text)


def progress_card(look: Any, say: Say, *, training: bool = False) -> Markup:
    """Return how far the background work is, with the button that ends it; "" when there is none.

    `training`: a run is on, which the work slows down: to half its speed on two cores.
    """
    return render("tabs/dataset/progress.html", say, look=look, training=training)


def question_cards(questions: Sequence[Mapping[str, Any]], say: Say) -> Markup:
    """Return each open question with its choices and a button; the recipe's field in `field` takes the answer."""
    described = [
        {
            "field": (field := asked.get("field") or "data.format"),
            "words": say(asked["question"]),
            "choices": _name_choices(field, asked, say),
        }
        for asked in questions
    ]
    return render("tabs/dataset/questions.html", say, questions=described, show=show_text)


def _name_choices(field: str, asked: Mapping[str, Any], say: Say) -> list[tuple[str, str]]:
    """Return (value, name) of each choice; a question may name its own."""
    choices = [str(choice) for choice in asked.get("choices", ())]
    if asked.get("names"):
        return [(choice, say(name)) for choice, name in zip(choices, asked["names"], strict=True)]
    return [(choice, name_choice(field, choice, say)) for choice in choices]


def name_choice(field: str, choice: str, say: Say) -> str:
    """Return a choice's name: formats and templates have one in words; encodings and columns are names already."""
    if field == "data.template":
        return say(f"data.template.fits.{'words' if choice in WORDED else 'tokens'}", name=choice)
    return say(f"knob.data.format.choice.{choice}") if field == "data.format" else choice


def rows_table(report: Mapping[str, Any], name_role: Callable[[str], str], say: Say) -> Markup:
    """Return the head's rows; above each column stands a drop-down with the role that it plays."""
    plays = {column: role for role, column in (report.get("mapping") or {}).items()}
    columns = [str(name) for name in report.get("columns", ())]
    shown = sorted(columns, key=lambda name: name not in plays)[
        :COLUMNS_SHOWN
    ]  # sorted() keeps the file's order
    rows = [[str(row.get(column, "")) for column in shown] for row in report.get("rows", ())]
    return render(
        "tabs/dataset/rows.html",
        say,
        columns=[_describe_column(column, plays.get(column, ""), report, name_role, say) for column in shown],
        rows=rows,
        rest=len(columns) - len(shown),
        show=show_text,
        letters=CELL_CHARACTERS,
    )


def _describe_column(
    column: str, role: str, report: Mapping[str, Any], name_role: Callable[[str], str], say: Say
) -> dict[str, Any]:
    roles = list(dict.fromkeys([*report.get("roles", ()), *([role] if role else [])]))
    return {
        "name": column,
        "role": role,
        "roles": [("", say("ui.dataset.role.none")), *((one, name_role(one)) for one in roles)],
        "label": say("ui.dataset.role", column=literal(column[:60])),
    }


def problems_card(report: Mapping[str, Any], say: Say) -> Markup:
    """Return the problems by code: title, how many rows, examples with their line, and what to do."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for problem in report.get("problems", ()):
        groups.setdefault(problem["code"], []).append(problem)
    if not groups:
        return note_card(say("ui.dataset.problems.none"), "good")
    described = [_describe_problem(number, found) for number, found in sorted(groups.items())]
    return render("tabs/dataset/problems.html", say, problems=described, show=show_text)


def _describe_problem(number: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    code = find_code(number)
    count = sum(problem.get("count", 1) for problem in found)
    placed = [problem for problem in found if "line" in problem][:EXAMPLES_SHOWN]
    return {
        "number": number,
        "effect": code.effect if code else "noted",
        "title": code.heading if code else "ui.dataset.problems.other",
        "fix": code.fix if code else None,
        "count": count,
        "examples": [problem["message"] for problem in placed],
        "rest": count - len(placed),
    }


def findings_card(report: Mapping[str, Any], say: Say) -> Markup:
    """Return what was counted over all rows besides: repeats, overlap, empty answers, ratings, secrets, notes."""
    stats = report.get("stats") or {}
    overlap = stats.get("overlap") or {}
    counts = {name: stats.get(name) for name in ("exact_duplicates", "near_duplicates", "empty")}
    counts |= {f"overlap_{name}": overlap.get(name) for name in ("exact", "near")}
    rows = [(say(f"ui.dataset.found.{name}"), f"{rows:,}") for name, rows in counts.items() if rows]
    share = (stats.get("tokens") or {}).get("trained_share")
    if share is not None:
        rows.insert(0, (say("ui.dataset.found.trained"), f"{share:.0%}"))
    labels = stats.get("labels")
    if labels:
        rows.append((say("ui.dataset.found.labels"), f"{labels['desirable']:,} : {labels['undesirable']:,}"))
    secrets = [
        say("ui.dataset.found.secret", kind=one["message"], rows=f"{one['rows']:,}", line=one["lines"][0])
        for one in stats.get("secrets", ())
        if one["rows"] and one["lines"]
    ]
    notes = [
        say(f"data.note.{name}", rows=rows) for name, rows in (report.get("notes") or {}).items() if rows
    ]
    if stats.get("near_duplicates_reason"):
        notes.append(say(stats["near_duplicates_reason"]))
    if not rows and not secrets and not notes:
        return Markup()
    return facts_card(say("ui.dataset.found"), rows, [*secrets, *notes])


def prepared_card(report: Mapping[str, Any], say: Say) -> Markup:
    """Return what each chosen rule left out, by its count; "" before all rows are known."""
    rules = list((report.get("rows_filtered") or {}).items())
    return render("tabs/dataset/rules.html", say, rules=rules)
