"""The HTML of the first screen: this machine in words, what it lacks, where to start, what runs, what ran last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from studio.core.facts import MachineFacts
from studio.core.i18n import Text
from studio.ui.cards import size_words
from studio.ui.live import LiveView
from studio.ui.runs_view import Say, data_of, model_of, run_name, slower_mark, sparkline, state_mark, when

MISSING_SHOWN = 3
RUNS_SHOWN = 6
UNFINISHED = ("stopped", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One of the three ways to begin: `do` and `value` of its button (`go` opens a tab), "" where there is none."""

    name: str
    icon: str
    """SVG from assets/icons"""
    title: str
    words: str
    button: str = ""
    do: str = ""
    value: str = ""
    go: str = ""
    primary: bool = False
    busy: bool = False
    """It is being done: not to be pressed again."""


def machine_card(
    machine: MachineFacts | None, advice: Text | None, free_bytes: int, say: Say, picture: str = ""
) -> str:
    """Return what this machine can do in a sentence, and its parts; None while it is still being looked at.

    `picture` is SVG of our own.
    """
    title, lead = escape(say("ui.home.title")), escape(say("ui.home.lead"))
    if machine is None:
        body = f'<p class="advice soft" role="status">{escape(say("ui.home.looking"))}</p>'
    else:
        words = say(advice) if advice else ""
        gpu = ", ".join(f"{one.name} · {one.vram_bytes / 2**30:.0f} GiB" for one in machine.gpus)
        rows = (
            ("graphics", gpu or say("ui.home.graphics.none")),
            ("processor", say("ui.home.cores", cores=machine.cores)),
            ("memory", f"{machine.ram_bytes / 2**30:.0f} GiB"),
            ("disk", size_words(free_bytes)),
        )
        cells = "".join(
            f"<div><dt>{escape(say(f'ui.home.{name}'))}</dt><dd>{escape(value)}</dd></div>"
            for name, value in rows
        )
        body = (f'<p class="advice">{escape(words)}</p>' if words else "") + f"<dl>{cells}</dl>"
    label = escape(say("ui.home.machine"))
    head = f'<div><h2>{title}</h2><p class="lead">{lead}</p></div>'
    return f'<section class="hero" aria-label="{label}">{picture}{head}{body}</section>'


def missing_card(problems: Sequence[Mapping[str, Any]], say: Say, *, restart: bool = False) -> str:
    """Return the worst problems of the doctor's report that are still open, each with a button that mends it.

    `restart`: repairs were switched on that count after a restart of the studio.
    """
    found = [problem for problem in problems if not problem["repaired"]]
    again = (
        f'<div class="mended"><p role="status">{escape(say("ui.home.fixed"))}</p>'
        f'<button type="button" class="say primary" data-do="restart" data-focus="restart">'
        f"{escape(say('ui.home.restart'))}</button></div>"
        if restart
        else ""
    )
    if not found and not restart:
        return f'<p class="all-well"><i aria-hidden="true">✓</i> {escape(say("ui.home.ready"))}</p>'
    rows = []
    for problem in found[:MISSING_SHOWN]:
        if problem["auto"]:
            button = (
                f'<button type="button" class="say primary" data-do="fix" data-value="{escape(problem["repair"])}" '
                f'data-focus="fix {escape(problem["repair"])}">{escape(say("ui.home.fix"))}</button>'
            )
        else:
            button = f'<button type="button" class="say" data-go="doctor">{escape(say("ui.home.details"))}</button>'
        rows.append(
            f'<li class="{escape(problem["severity"])}" data-problem="{escape(problem["id"])}"><div>'
            f"<b>{escape(say(problem['title']))}</b><p>{escape(say(problem['fix']))}</p></div>{button}</li>"
        )
    rest = len(found) - MISSING_SHOWN
    more = (
        f'<button type="button" class="link" data-go="doctor">{escape(say("ui.home.more", count=rest))}</button>'
        if rest > 0
        else ""
    )
    title = f"<h3>{escape(say('ui.home.missing'))}</h3>" if rows else ""
    return f'<section class="card missing">{title}<ul>{"".join(rows)}</ul>{again}{more}</section>'


def starts_card(starts: Sequence[Start], say: Say) -> str:
    """Return the three cards to begin with."""
    cards = "".join(_start(start) for start in starts)
    return f'<section class="starts"><h3>{escape(say("ui.home.start"))}</h3><div>{cards}</div></section>'


def _start(start: Start) -> str:
    button = ""
    if start.button:
        kind = " primary" if start.primary else ""
        act = (
            f'data-go="{escape(start.go)}"'
            if start.go
            else f'data-do="{escape(start.do)}" data-value="{escape(start.value)}"'
        )
        button = (
            f'<button type="button" class="say{kind}" id="home-{start.name}" data-focus="{start.name}" {act}'
            f"{' disabled aria-busy=true' if start.busy else ''}>"
            f"{escape(start.button)}</button>"
        )
    return (
        f'<article class="start" data-start="{start.name}">{start.icon}<h4>{escape(start.title)}</h4>'
        f"<p>{escape(start.words)}</p>{button}</article>"
    )


def pick_continue(entries: Sequence[Any], active: str) -> Any | None:
    """Return the entry that "continue the last run" is about: the one that is on, else the newest that was cut short
    and can go on, else the newest."""
    if not entries:
        return None
    for entry in entries:
        if entry.record.run == active:
            return entry
    able = [entry for entry in entries if entry.record.state in UNFINISHED and entry.resumable.ok]
    return able[0] if able else entries[0]


def continue_start(entry: Any | None, active: str, icon: str, say: Say) -> Start:
    """Return the third start: its button resumes, or its words say why nothing can be resumed."""
    same = {"name": "continue", "icon": icon, "title": say("ui.home.continue")}
    if entry is None:
        return Start(**same, words=say("ui.home.continue.none"))
    record, name = entry.record, run_name(entry.record)
    if record.run == active:
        busy = "ui.home.continue.paused" if record.state == "paused" else "ui.home.continue.busy"
        words, button = say(busy, name=name), say("ui.home.continue.watch")
        return Start(**same, words=words, button=button, do="open", value=record.run)
    if record.state == "finished":
        words, button = say("ui.home.continue.done", name=name), say("ui.home.continue.talk")
        return Start(**same, words=words, button=button, do="chat", value=record.run)
    if not entry.resumable.ok:
        words = say("ui.home.continue.not", name=name, reason=entry.resumable.reason or "")
        return Start(**same, words=words, button=say("ui.home.continue.why"), do="open", value=record.run)
    words = say("ui.home.continue.lead", name=name, step=record.steps, total=record.total_steps or "–")
    if active:
        return Start(**same, words=f"{words} {say('ui.runs.resume.busy')}")
    return Start(**same, words=words, button=say("ui.home.continue.start"), do="resume", value=record.run)


def now_card(entry: Any | None, view: LiveView, waiting: int, say: Say) -> str:
    """Return the run that is on and how far it is; "" without one. assets/home.js keeps bar and words up to date."""
    if entry is None:
        return ""
    share = view.step / view.total_steps if view.total_steps else 0.0
    name = run_name(entry.record)
    more = f'<p class="soft">{escape(say("ui.home.waiting", count=waiting))}</p>' if waiting else ""
    phase = say(f"ui.phase.{view.phase}") if view.phase else say("ui.runs.state.running")
    title = "ui.home.now"
    if entry.record.state == "paused":
        title, phase = "ui.home.now.paused", say("ui.state.paused")
    return (
        f'<section class="card now" data-run="{escape(entry.record.run)}"><div class="what">'
        f"<h3>{escape(say(title))}</h3>"
        f'<b class="name">{escape(name)}</b><span class="soft">{escape(model_of(entry, say))} · '
        f'{escape(data_of(entry, say))}</span>{slower_mark(entry.record, say)}</div><div class="far">'
        f'<div class="bar" role="progressbar" aria-label="{escape(name)}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{share * 100:.0f}"><i style="width:{share:.1%}"></i></div>'
        f'<span class="words">{escape(phase)} · {share:.0%}</span>{more}</div>'
        f'<button type="button" class="say primary" data-do="open" data-value="{escape(entry.record.run)}" '
        f'data-focus="now">{escape(say("ui.home.continue.watch"))}</button></section>'
    )


def last_runs(entries: Sequence[Any], say: Say) -> str:
    """Return the newest runs with their curves; a sentence when there are none."""
    title = escape(say("ui.home.runs"))
    if not entries:
        empty = escape(say("ui.home.runs.none"))
        return f'<section class="card last"><h3>{title}</h3><p class="soft">{empty}</p></section>'
    rows = []
    for entry in entries[:RUNS_SHOWN]:
        record = entry.record
        run, loss = escape(record.run), record.loss
        rows.append(
            f'<li><button type="button" class="run" data-do="open" data-value="{run}" data-focus="open {run}">'
            f'<span class="who"><b>{escape(run_name(record))}</b>'
            f"<small>{escape(model_of(entry, say))} · {escape(data_of(entry, say))}</small>"
            f"{slower_mark(record, say)}</span>"
            f"{sparkline(entry.spark, say)}"
            f'<span class="loss"><small>{escape(say("ui.runs.column.loss"))}</small> '
            f"{f'{loss:.3f}' if loss is not None else '–'}</span>"
            f"{state_mark(record.state, say)}<time>{escape(when(record.created_s))}</time></button></li>"
        )
    all_runs = f'<button type="button" class="link" data-go="runs">{escape(say("ui.home.runs.all"))}</button>'
    return f'<section class="card last"><header><h3>{title}</h3>{all_runs}</header><ol>{"".join(rows)}</ol></section>'
