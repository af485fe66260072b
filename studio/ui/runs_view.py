"""The HTML of the runs: the table with its curves, what can be done with one run, and what differs between several."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from studio.core.i18n import Catalogue, Text, text
from studio.core.knobs import knobs_of
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.planning.slow_paths import say_slower, say_times
from studio.ui.cards import size_words, time_words
from studio.ui.field_badges import show_plainly

Say = Callable[..., str]
HASH_SHOWN = 12
CHUNK = 100
"""Rows that are drawn at once: a browser takes some 40 ms for them."""
WIDTH, HEIGHT = 120, 30
COLUMNS = ("pick", "name", "state", "curve", "eval_loss", "model", "data", "steps", "time", "size", "actions")
NARROW_TOO = ("pick", "name", "state", "curve", "actions")
"""Columns that a phone shows as well."""
KNOBS = {knob.path: knob for knob in knobs_of(Recipe)}
PLAN_KNOBS = {
    "device": "run.device",
    "dtype": "model.precision",
    "attention": "model.attention",
    "quantization": "model.quantization",
    "optimizer": "optim.optimizer",
}
"""Part of a plan -> the setting whose choices name its values."""
KERNELS = {"reference": "PyTorch", "triton": "Triton"}
LETTERS = "ABCDE"
"""What compared runs are called, here and in the chart (assets/runs.js)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What is open below one row: `kind` is actions, rename or again; `differs` only for the last."""

    run: str = ""
    kind: str = "actions"
    differs: tuple[Text, ...] = ()


def sparkline(losses: Sequence[float], say: Say) -> str:
    """Return a small curve of the losses with the last one in words; a dash below two values."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if len(known) < 2:
        return (
            f'<span class="spark soft" role="img" aria-label="{escape(say("ui.runs.curve.none"))}">–</span>'
        )
    low, high = min(known), max(known)
    room = (high - low) or 1.0
    points = [
        (2 + i * (WIDTH - 6) / (len(known) - 1), 3 + (high - loss) / room * (HEIGHT - 6))
        for i, loss in enumerate(known)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    label = escape(say("ui.runs.curve", loss=f"{known[-1]:.3g}"))
    x, y = points[-1]
    area = f"M{points[0][0]:.1f},{HEIGHT} L{path.replace(' ', ' L')} L{x:.1f},{HEIGHT} Z"
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'<path d="{area}"></path><polyline points="{path}"></polyline>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"></circle></svg>'
    )


def run_name(record: RunRecord) -> str:
    """Return what a run is called."""
    return record.name or record.base or record.run


def source_name(source: str, say: Say) -> str:
    """Return a model or data set in short: of a path the last part, a hub id as it is."""
    if source == "demo":
        return say("ui.runs.demo")
    path = source.startswith((".", "~", "/")) or "\\" in source or source.count("/") > 1
    return (
        [part for part in re.split(r"[\\/]", source) if part][-1] if path and source.strip("\\/") else source
    )


def model_of(entry: Any, say: Say) -> str:
    """Return the base model of a shelf's entry."""
    return source_name(entry.recipe.model.source if entry.recipe else entry.record.base, say) or "–"


def data_of(entry: Any, say: Say) -> str:
    """Return the data set of a shelf's entry."""
    return source_name(entry.recipe.data.source, say) if entry.recipe else "–"


def state_mark(state: str, say: Say) -> str:
    """Return a run's state as a coloured dot with its word."""
    return f'<span class="chip {escape(state)}"><i></i>{escape(say(f"ui.runs.state.{state}"))}</span>'


def slower_mark(record: RunRecord, say: Say) -> str:
    """Return how much slower a run is than it could be, the reasons behind it; "" where it is not."""
    if not record.slower:
        return ""
    reasons = " ".join(say(say_slower(one)) for one in record.slower)
    words = say(say_times(record.slower))
    return f'<span class="slower" title="{escape(reasons)}">{escape(words)}</span>'


def when(created_s: float) -> str:
    """Return the local date and time, of today the time alone."""
    then = time.localtime(created_s)
    today = time.strftime("%Y%m%d", then) == time.strftime("%Y%m%d")
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", then)


def matches(entry: Any, words: str, say: Say) -> bool:
    """Return whether every word of `words` stands in the run's name, id, state, model or data."""
    state = say(f"ui.runs.state.{entry.record.state}")
    parts = (run_name(entry.record), entry.record.run, state, model_of(entry, say), data_of(entry, say))
    text = "\n".join(parts).casefold()
    return all(word in text for word in words.casefold().split())


def runs_table(
    entries: Sequence[Any],
    say: Say,
    *,
    total: int,
    shown: int = CHUNK,
    words: str = "",
    panel: Panel,
    active: str,
) -> str:
    """Return the table of the first `shown` of `entries` (those that match `words`, of `total` runs in all).

    `active` is the run that is on, "" without one. One button at the end asks for the next CHUNK rows.
    """
    if not total:
        return f'<div class="nothing">{escape(say("ui.runs.none"))}</div>'
    if not entries:
        return f'<div class="nothing" role="status">{escape(say("ui.runs.none.found", words=words))}</div>'
    count = (
        say("ui.runs.found", count=len(entries), total=total) if words else say("ui.runs.count", count=total)
    )
    heads = "".join(
        f'<th scope="col" class="{name}{_wide(name)}">{escape(say(f"ui.runs.column.{name}"))}</th>'
        for name in COLUMNS
    )
    rows = []
    for entry in entries[:shown]:
        opened = panel if panel.run == entry.record.run else None
        rows.append(_row(entry, say, opened=opened is not None))
        if opened:
            rows.append(_panel(entry, opened, say, active))
    rest = len(entries) - shown
    more = ""
    if rest > 0:
        words = escape(say("ui.runs.more", count=min(rest, CHUNK)))
        more = f'<button type="button" class="say" data-do="more" data-focus="more">{words}</button>'
    return (
        f'<div class="runs"><table aria-label="{escape(say("ui.runs.title"))}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f'<div class="runs-end"><span class="soft" role="status">{escape(count)}</span>{more}</div>'
    )


def _wide(column: str) -> str:
    return "" if column in NARROW_TOO else " wide"


def _row(entry: Any, say: Say, *, opened: bool) -> str:
    record = entry.record
    run, name = escape(record.run), escape(run_name(record))
    loss = entry.best_eval_loss
    total = f" / {record.total_steps}" if record.total_steps and record.steps != record.total_steps else ""
    cells = {
        "pick": f'<input type="checkbox" value="{run}" data-focus="pick {run}" '
        f'aria-label="{escape(say("ui.runs.pick", name=run_name(record)))}">',
        "name": f'<button type="button" class="link" data-do="open" data-value="{run}" data-focus="open {run}">'
        f"{name}</button><small>{escape(when(record.created_s))} · {run}</small>",
        "state": state_mark(record.state, say) + slower_mark(record, say),
        "curve": sparkline(entry.spark, say),
        "eval_loss": f"{loss:.4f}" if loss is not None else "–",
        "model": escape(model_of(entry, say)),
        "data": escape(data_of(entry, say)),
        "steps": f"{record.steps}{total}",
        "time": time_words(entry.took_s) if entry.took_s else "–",
        "size": escape(size_words(entry.size_bytes)),
        "actions": f'<button type="button" class="say menu" data-do="actions" data-value="{run}" '
        f'data-focus="actions {run}" aria-expanded="{"true" if opened else "false"}" '
        f'aria-label="{escape(say("ui.runs.actions", name=run_name(record)))}"><i></i><i></i><i></i></button>',
    }
    body = "".join(f'<td class="{name}{_wide(name)}">{cells[name]}</td>' for name in COLUMNS)
    return f'<tr data-run="{run}"{" class=opened" if opened else ""}>{body}</tr>'


def _button(do: str, run: str, words: str, *, kind: str = "", more: str = "") -> str:
    return (
        f'<button type="button" class="say {kind}" data-do="{do}" data-value="{escape(run)}" '
        f'data-focus="{do} {escape(run)} panel"{more}>{escape(words)}</button>'
    )


def _panel(entry: Any, panel: Panel, say: Say, active: str) -> str:
    """The row below a run's own with what can be done with it."""
    makers = {"rename": _rename, "again": _again}
    body = (
        makers[panel.kind](entry, panel, say, active)
        if panel.kind in makers
        else _actions(entry, say, active)
    )
    return f'<tr class="panel" data-panel="{escape(entry.record.run)}"><td colspan="{len(COLUMNS)}">{body}</td></tr>'


def _actions(entry: Any, say: Say, active: str) -> str:
    record, off = entry.record, " disabled"
    run, on = record.run, record.run == active
    resumable, notes = entry.resumable.ok and not active, []
    if not entry.answers:
        notes.append(say("ui.runs.result.none"))
    if entry.resumable.ok and active and not on:
        notes.append(say("ui.runs.resume.busy"))
    elif not entry.resumable.ok and not on and record.state != "finished":
        reason = say(entry.resumable.reason or "ui.runs.resume.unknown")
        notes.append(say("ui.runs.resume.not", reason=reason))
    if on:
        notes.append(say("ui.runs.delete.active"))
    question = say("ui.runs.delete.sure", name=run_name(record), size=size_words(entry.size_bytes))
    confirm = f' data-confirm="{escape(question)}"{off if on else ""}'
    no_result = "" if entry.answers else off
    parts = [
        _button("open", run, say("ui.runs.open"), kind="primary"),
        _button("chat", run, say("ui.runs.chat"), more=no_result),
        _button("export", run, say("ui.runs.export"), more=no_result),
        _button("resume", run, say("ui.runs.resume"), more="" if resumable else off),
        _button("again", run, say("ui.runs.again"), more="" if entry.recipe else off),
        _button("duplicate", run, say("ui.runs.duplicate"), more="" if entry.recipe else off),
        _button("rename", run, say("ui.runs.rename"), more=off if on else ""),
        _button("delete", run, say("ui.runs.delete"), kind="danger", more=confirm),
    ]
    notes += [say(say_slower(one)) for one in record.slower]
    told = f'<p class="soft">{escape(" ".join(notes))}</p>' if notes else ""
    return f'<div class="answers">{"".join(parts)}</div>{told}'


def _rename(entry: Any, panel: Panel, say: Say, active: str) -> str:
    run, name = entry.record.run, escape(run_name(entry.record))
    return (
        f'<div class="answers" data-form><label>{escape(say("ui.runs.name"))} <input name="name" value="{name}" '
        f'maxlength="80" data-grab="name {escape(run)}" data-focus="name {escape(run)} panel" data-enter></label>'
        f"{_button('save', run, say('ui.runs.save'), kind='primary')}"
        f"{_button('cancel', run, say('ui.runs.cancel'))}</div>"
    )


def _again(entry: Any, panel: Panel, say: Say, active: str) -> str:
    run = entry.record.run
    rows = "".join(f"<li>{escape(say(difference))}</li>" for difference in panel.differs)
    lead = say("ui.runs.again.lead" if rows else "ui.runs.again.same")
    grab = f' data-grab="again {escape(run)}"'
    start = _button("again-start", run, say("ui.runs.again.start"), kind="primary", more=grab)
    first = {"kind": "primary", "more": grab} if active else {}
    queue = _button("again-queue", run, say("ui.runs.again.queue"), **first)
    return (
        f"<p>{escape(lead)}</p>{f'<ul>{rows}</ul>' if rows else ''}"
        f'<div class="answers">{"" if active else start}{queue}{_button("cancel", run, say("ui.runs.cancel"))}</div>'
    )


# Several runs ---------------------------------------------------------------------------------------------------------


def comparison_card(entries: Sequence[Any], comparison: Any, words: Catalogue) -> str:
    """Return results, settings and surroundings of 2 to 5 runs side by side; of the latter two what differs alone."""

    def say(id: str) -> str:
        return words.say(text(id))

    records = [entry.record for entry in entries]
    metrics = dict.fromkeys(name for record in records for name in record.metrics)
    results = [
        (say("ui.runs.column.state"), [say(f"ui.runs.state.{one.state}") for one in records]),
        (say("ui.runs.column.loss"), [_number(one.loss) for one in records]),
        (say("ui.runs.column.eval_loss"), [_number(entry.best_eval_loss) for entry in entries]),
        *((say(f"metric.{name}"), [_number(one.metrics.get(name)) for one in records]) for name in metrics),
        (say("ui.runs.column.steps"), [str(one.steps) for one in records]),
        (say("ui.runs.column.time"), [time_words(entry.took_s) for entry in entries]),
    ]
    settings = [_setting(path, values, words) for path, values in comparison.settings]
    names = [run_name(record) for record in records]
    return "".join(
        _differences(say(f"ui.runs.compare.{kind}"), rows, names, say)
        for kind, rows in (
            ("results", results),
            ("settings", settings),
            ("environment", [_surrounding(name, values, words) for name, values in comparison.environment]),
        )
    )


def _setting(path: str, values: Sequence[Any], words: Catalogue) -> tuple[str, list[str]]:
    """Return a row in words; a run whose recipe cannot be read has no values."""
    knob = KNOBS[path]
    return words.say(knob.label), ["–" if one is None else show_plainly(knob, one, words) for one in values]


def _surrounding(name: str, values: Sequence[Any], words: Catalogue) -> tuple[str, list[str]]:
    """Return a row in words; of a hash what tells two apart."""
    kind, _, part = name.partition(".")
    if kind == "package":
        return part, [str(value or "–") for value in values]
    if part.startswith("kernels."):
        title = text("ui.runs.surroundings.kernel", name=part.removeprefix("kernels."))
        return words.say(title), [KERNELS.get(str(value), str(value or "–")) for value in values]
    if kind == "plan":
        knob = KNOBS[PLAN_KNOBS[part]]
        shown = [show_plainly(knob, value, words) if value else "–" for value in values]
        return words.say(text(f"ui.plan.{part}")), shown
    cut = HASH_SHOWN if name.endswith("_hash") else None
    return words.say(text(f"ui.runs.surroundings.{name}")), [str(value or "–")[:cut] for value in values]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _differences(
    title: str, rows: Sequence[tuple[str, Sequence[str]]], names: Sequence[str], say: Say
) -> str:
    if not rows:
        same = escape(say("ui.runs.compare.same"))
        return f'<div class="card differences"><h3>{escape(title)}</h3><p class="soft">{same}</p></div>'
    heads = "".join(
        f'<th scope="col"><b class="letter">{letter}</b> {escape(name)}</th>'
        for letter, name in zip(LETTERS, names, strict=False)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(value)}</td>" for value in values)
        + "</tr>"
        for name, values in rows
    )
    return (
        f'<div class="card differences"><h3>{escape(title)}</h3><div class="runs"><table><thead><tr><th></th>{heads}'
        f"</tr></thead><tbody>{body}</tbody></table></div></div>"
    )
