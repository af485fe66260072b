"""The HTML of what a data set is: format, questions, rows with roles, problems; every cell escaped, no handler."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.data.pipeline import UNTRAINED
from studio.data.templates.fitting import WORDED
from studio.ui.cards import facts_card, note_card, size_words

Say = Callable[..., str]
CELL_CHARACTERS = 300
COLUMNS_SHOWN = 60
"""More columns than that are named, not shown; those with a role come first."""
EXAMPLES_SHOWN = 5
"""Of each problem."""
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Characters that show nothing, or turn the text around them; tab and line break have marks of their own."""


def show_text(words: str, limit: int = 0) -> str:
    """Return `words` as HTML that shows exactly them: escaped, what is invisible named, what is too long counted."""
    rest = len(words) - limit if limit else 0
    words = words[:limit] if rest > 0 else words
    shown = HIDDEN.sub(lambda found: f"\0{ord(found[0]):04X}\1", words)
    shown = re.sub("\0([0-9A-F]{4,6})\1", r'<i class="code">\1</i>', escape(shown))
    return shown + (f'<i class="more">+{rest:,}</i>' if rest > 0 else "")


def refusal_card(error: StudioError, say: Say) -> str:
    """Return the three sentences of a refusal."""
    return note_card(" ".join(say(part) for part in (error.what, error.why, error.fix)), "bad")


def format_card(look: Any, say: Say, counted: Any = None) -> str:
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
    title = say(f"knob.data.format.choice.{report['format']}") if known else say("ui.dataset.unclear")
    sure = f'<span class="sure">{report.get("confidence", 0.0):.0%}</span>' if known else ""
    reason = say(report["reason"]) if report.get("reason") else ""
    facts = [part for part in (report.get("container", "").upper(), report.get("encoding", "")) if part]
    if report.get("size_bytes"):
        facts.append(size_words(report["size_bytes"]))
    body = f"<h3>{escape(title)} {sure}<small>{escape(' · '.join(facts))}</small></h3>"
    body += f"<p>{escape(reason)}</p>" if reason else ""
    body += "".join(f"<p>{escape(say(note))}</p>" for note in report.get("source_notes", ()))
    if look.whole:
        body += law_line(report, say)
    refused = counted.refusal if counted is not None else None
    trouble = [" ".join(say(part) for part in (refused.what, refused.why, refused.fix))] if refused else []
    if report.get("format") in UNTRAINED:
        parts = ("data.kind.untrained", "data.kind.untrained.why", "data.kind.untrained.fix")
        trouble.append(" ".join(say(id, format=report["format"]) for id in parts))
    if error is not None:
        trouble.append(" ".join(say(part) for part in (error.what, error.why, error.fix)))
    body += "".join(f'<p class="trouble" role="alert">{escape(words)}</p>' for words in trouble)
    if refused and 0 < counted.rows_refused < counted.rows_read and counted.rows_used:
        go_on = say("ui.dataset.accept", rows=f"{counted.rows_used:,}")
        body += f'<div class="answers">{button(go_on, "accept")}</div>'
    kind = "bad" if trouble else _kind(look, report, known)
    rows = ' data-rows="1"' if "rows" in report else ""
    return f'<div class="card dataset {kind}" data-state="{escape(look.state)}"{rows}>{body}</div>'


def _kind(look: Any, report: Mapping[str, Any], known: bool) -> str:
    if look.whole and known and not report["rows_used"]:
        return "bad"
    if not known or report.get("needs_answer") or report.get("rows_quarantined"):
        return "warn"
    return "good"


def law_line(report: Mapping[str, Any], say: Say) -> str:
    """Return the law as one line: rows read = used + set aside + left out, each rule by name."""
    filtered = {rule: rows for rule, rows in (report.get("rows_filtered") or {}).items() if rows}
    parts = [
        ("used", report["rows_used"]),
        ("quarantined", report["rows_quarantined"]),
        ("filtered", sum(filtered.values())),
    ]
    terms = " + ".join(
        f'<span data-part="{name}"><b>{rows:,}</b> {escape(say(f"ui.dataset.law.{name}"))}</span>'
        for name, rows in parts
    )
    rules = "".join(
        f"<li>{escape(say(f'data.rule.{rule}', rows=rows))}</li>" for rule, rows in filtered.items()
    )
    rules = f'<ul class="rules">{rules}</ul>' if rules else ""
    read = f"<b>{report['rows_read']:,}</b> {escape(say('ui.dataset.law.read'))}"
    return f'<p class="law">{read} = {terms}</p>{rules}'


def remote_card(look: Any, say: Say) -> str:
    """Return what would be fetched, and the button for it: nothing connects before."""
    source = show_text(look.source, 200)
    size = size_words(look.size_bytes) if look.size_bytes else ""
    told = "ui.dataset.remote.size" if size else "ui.dataset.remote.unknown"
    asked = f'<p class="law">{escape(say(told, size=size))}</p>' if look.asked else ""
    if look.state != "remote" or look.report.get("needs_answer"):
        buttons = ""
    elif not look.asked:
        buttons = button(say("ui.dataset.remote.ask"), "size", primary=True)
    else:
        buttons = button(say("ui.dataset.remote.fetch", size=size), "fetch", primary=True)
    return (
        f'<div class="card dataset warn" data-state="remote"><h3>{escape(say("ui.dataset.remote"))}</h3>'
        f"<p><code>{source}</code></p>{asked}<p>{escape(say('ui.dataset.remote.why'))}</p>"
        f'<div class="answers">{buttons}</div></div>'
    )


def button(words: str, do: str, *, primary: bool = False, **data: str) -> str:
    """Return a button that assets/dataset.js reports as {"do": do, **data}."""
    extra = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
    kind = "primary" if primary else "plain"
    return f'<button type="button" class="say {kind}" data-do="{do}"{extra}>{escape(words)}</button>'


def progress_card(look: Any, say: Say, *, training: bool = False) -> str:
    """Return how far the background work is, with the button that ends it; "" when there is none.

    `training`: a run is on, which the work slows down: to half its speed on two cores.
    """
    if not look.working:
        return ""
    share = f"{look.share:.0%}"
    moving = look.share > 0
    doing = escape(say(f"ui.dataset.working.{look.state}"))
    slows = f"<small>{escape(say('ui.dataset.working.slows'))}</small>" if training else ""
    bar = f'<i style="width:{look.share * 100:.1f}%"></i>' if moving else '<i class="unknown"></i>'
    return (
        f'<div class="reading" data-state="{look.state}"><span role="status">'
        f"{doing} {share if moving else ''}</span>"
        f'<div class="bar" role="progressbar" aria-label="{doing}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{look.share * 100:.0f}">{bar}</div>{button(say("ui.dataset.cancel"), "cancel")}'
        f"{slows}</div>"
    )


def question_cards(questions: Sequence[Mapping[str, Any]], say: Say) -> str:
    """Return each open question with its choices and a button; the recipe's field in `field` takes the answer."""
    cards = []
    for number, asked in enumerate(questions):
        field = asked.get("field") or "data.format"
        choices = [str(choice) for choice in asked.get("choices", ())]
        cards.append(
            f'<fieldset class="card question warn" data-field="{escape(field)}" '
            f'data-key="{escape(field + say(asked["question"]))}">'
            f"<legend>{escape(say('ui.dataset.question'))}</legend><p>{escape(say(asked['question']))}</p>"
            f'{_choices(field, choices, asked.get("names") or (), number, say)}<div class="answers">'
            f"{button(say('ui.dataset.use'), 'answer', primary=True, field=field)}</div></fieldset>"
        )
    return "".join(cards)


def _choices(field: str, choices: Sequence[str], named: Sequence[Any], number: int, say: Say) -> str:
    """Few choices as radio buttons, many as a drop-down; `named` says what each of them means."""
    names = [(choice, name_choice(field, choice, say)) for choice in choices]
    if named:
        names = [(choice, say(name)) for choice, name in zip(choices, named, strict=True)]
    if len(names) > 6:
        options = "".join(
            f'<option value="{escape(value)}">{show_text(name, 80)}</option>' for value, name in names
        )
        label = escape(say("ui.dataset.question"))
        return f'<select aria-label="{label}" data-focus="question-{number}">{options}</select>'
    return '<div class="choices">' + "".join(
        f'<label><input type="radio" name="question-{number}" value="{escape(value)}"{" checked" if not i else ""}> '
        f"<span>{show_text(name, 80)}</span></label>"
        for i, (value, name) in enumerate(names)
    ) + "</div>"  # fmt: skip


def name_choice(field: str, choice: str, say: Say) -> str:
    """Return a choice's name: formats and templates have one in words; encodings and columns are names already."""
    if field == "data.template":
        return say(f"data.template.fits.{'words' if choice in WORDED else 'tokens'}", name=choice)
    return say(f"knob.data.format.choice.{choice}") if field == "data.format" else choice


def rows_table(report: Mapping[str, Any], name_role: Callable[[str], str], say: Say) -> str:
    """Return the head's rows; above each column stands a drop-down with the role that it plays."""
    plays = {column: role for role, column in (report.get("mapping") or {}).items()}
    columns = [str(name) for name in report.get("columns", ())]
    shown = sorted(columns, key=lambda name: name not in plays)[
        :COLUMNS_SHOWN
    ]  # sorted() keeps the file's order
    heads = "".join(
        f'<th scope="col">{_role_choice(column, plays.get(column, ""), report, name_role, say, i)}'
        f"<div>{show_text(column, 60)}</div></th>"
        for i, column in enumerate(shown)
    )
    cells = (
        [f"<td><div>{show_text(str(row.get(column, '')), CELL_CHARACTERS)}</div></td>" for column in shown]
        for row in report.get("rows", ())
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    rest = len(columns) - len(shown)
    note = f'<p class="soft">{escape(say("ui.dataset.columns.more", count=f"{rest:,}"))}</p>' if rest else ""
    return (
        f'<div class="rows" tabindex="0" role="region" aria-label="{escape(say("ui.dataset.tab.rows"))}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _role_choice(
    column: str, role: str, report: Mapping[str, Any], name_role: Callable[[str], str], say: Say, number: int
) -> str:
    roles = list(dict.fromkeys([*report.get("roles", ()), *([role] if role else [])]))
    options = [("", say("ui.dataset.role.none")), *((one, name_role(one)) for one in roles)]
    inner = "".join(
        f'<option value="{escape(value)}"{" selected" if value == role else ""}>{escape(name)}</option>'
        for value, name in options
    )
    label = escape(say("ui.dataset.role", column=literal(column[:60])))
    used = ' class="used"' if role else ""
    return (
        f'<select data-do="role" data-column="{escape(column)}" data-focus="role-{number}"{used} '
        f'data-key="{escape(f"{role} = {column}")}" '
        f'aria-label="{label}">{inner}</select>'
    )


def problems_card(report: Mapping[str, Any], codes: Mapping[str, Any], say: Say) -> str:
    """Return the problems by code: title, how many rows, examples with their line, and what to do. `codes`: CODES."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for problem in report.get("problems", ()):
        groups.setdefault(problem["code"], []).append(problem)
    if not groups:
        return note_card(say("ui.dataset.problems.none"), "good")
    cards = []
    for number, found in sorted(groups.items()):
        code = codes.get(number)
        count = sum(problem.get("count", 1) for problem in found)
        placed = [problem for problem in found if "line" in problem][:EXAMPLES_SHOWN]
        examples = "".join(f"<li>{show_text(say(problem['message']), 320)}</li>" for problem in placed)
        effect = code.effect if code else "noted"
        kind = "bad" if effect == "refused" else "warn"
        title = say(code.title) if code else say("ui.dataset.problems.other")
        fix = f'<p class="fix">{escape(say(code.fix))}</p>' if code else ""
        rest = count - len(placed)
        more = (
            f'<p class="soft">{escape(say("ui.dataset.problems.more", count=f"{rest:,}"))}</p>'
            if rest
            else ""
        )
        cards.append(
            f'<details class="card problem {kind}" open data-code="{escape(number)}">'
            f"<summary><code>{escape(number)}</code> <b>{escape(title)}</b>"
            f'<span class="badge">{escape(say(f"ui.dataset.effect.{effect}", count=f"{count:,}"))}</span></summary>'
            f"{fix}<ul>{examples}</ul>{more}</details>"
        )
    return "".join(cards)


def findings_card(report: Mapping[str, Any], say: Say) -> str:
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
        return ""
    items = "".join(f"<li>{escape(words)}</li>" for words in (*secrets, *notes))
    return facts_card(say("ui.dataset.found"), rows, f'<ul class="rules">{items}</ul>' if items else "")


def prepared_card(report: Mapping[str, Any], say: Say) -> str:
    """Return what each chosen rule left out, by its count; "" before all rows are known."""
    rules = report.get("rows_filtered") or {}
    lines = "".join(f"<li>{escape(say(f'data.rule.{rule}', rows=rows))}</li>" for rule, rows in rules.items())
    return f'<ul class="rules">{lines}</ul>' if lines else ""
