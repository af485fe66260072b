"""The HTML of the queue: what runs, what waits in which order, what ended badly, and how the queue goes on."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from studio.core.i18n import Text
from studio.ui.runs_view import Say, source_name

FAILED_SHOWN = 3
"""Items that failed are shown until they are taken out, the last ones: some never became a run of the table."""


def queue_card(
    items: Sequence[Any],
    say: Say,
    *,
    reason: Text | None,
    keep_going: bool,
    notice: Text | None = None,
    paused: str = "",
) -> str:
    """Return the queue's items in their order with its two switches.

    `reason`: why it is on hold, None when it is not; `notice`: what is wrong with the queue's own file; `paused`: the
    id of the run that holds.
    """
    held = reason is not None
    running = [item for item in items if item.state == "running"]
    waiting = [item for item in items if item.state == "waiting"]
    failed = [item for item in items if item.state == "failed"][:FAILED_SHOWN]
    rows = [_row(item, say, paused=item.run == paused) for item in running]
    rows += [_row(item, say, place=place, last=len(waiting)) for place, item in enumerate(waiting, start=1)]
    rows += [_row(item, say) for item in failed]
    title, lead = escape(say("ui.queue.title")), escape(say("ui.queue.lead"))
    body = f"<ol>{''.join(rows)}</ol>" if rows else f'<p class="nothing">{escape(say("ui.queue.empty"))}</p>'
    note = f'<p class="held bad" role="alert">{escape(say(notice))}</p>' if notice else ""
    if reason and waiting:
        words = f"{say('ui.queue.held')} {say(reason)}"
        note += f'<p class="held" role="status">{escape(words)}</p>'
    do, words = ("go", "ui.queue.go") if held else ("hold", "ui.queue.hold")
    kind = " primary" if held and waiting else ""
    switch = (
        f'<button type="button" class="say{kind}" data-do="{do}" data-focus="queue hold">{escape(say(words))}</button>'
        if waiting or held
        else ""
    )
    keep = (
        f'<label><input type="checkbox" data-do="keep" data-focus="queue keep"{" checked" if keep_going else ""}> '
        f"{escape(say('ui.queue.keep'))}</label>"
    )
    return (
        f'<section class="card queue" data-keep="{"yes" if keep_going else ""}"><div><h3>{title}</h3>'
        f'<p class="soft">{lead}</p></div><div>{note}{body}<div class="answers">{switch}{keep}</div></div></section>'
    )


def _row(item: Any, say: Say, *, place: int = 0, last: int = 0, paused: bool = False) -> str:
    name = item.name or item.run or say("ui.queue.none")
    parts = (source_name(item.recipe.model.source, say), source_name(item.recipe.data.source, say))
    what = " · ".join(parts)
    problem = f'<small class="bad">{escape(say(item.problem))}</small>' if item.problem else ""
    state = "paused" if paused else "finished" if item.state == "done" else item.state
    words = say("ui.state.paused") if paused else say(f"ui.queue.{item.state}")
    mark = f'<span class="chip {escape(state)}"><i></i>{escape(words)}</span>'
    buttons = ""
    if item.state == "waiting":
        buttons = (
            _button("up", item.id, "↑", say("ui.queue.up", name=name), off=place == 1)
            + _button("down", item.id, "↓", say("ui.queue.down", name=name), off=place == last)
            + _button("drop", item.id, "✕", say("ui.queue.drop", name=name))
        )
    elif item.state == "running":
        buttons = _button("stop", item.run, escape(say("ui.queue.stop")), "")
    else:
        buttons = _button("drop", item.id, "✕", say("ui.queue.drop", name=name))
    number = f"<b>{place}</b>" if place else "<b></b>"
    named = (
        f'<button type="button" class="link" data-do="open" data-value="{escape(item.run)}" '
        f'data-focus="queue open {escape(item.id)}">{escape(name)}</button>'
        if item.run
        else f"<span>{escape(name)}</span>"
    )
    return (
        f'<li data-item="{escape(item.id)}" data-state="{escape(item.state)}">{number}'
        f"<div>{named}<small>{escape(what)}</small>{problem}</div>{mark}"
        f'<div class="moves">{buttons}</div></li>'
    )


def _button(do: str, value: str, shown: str, label: str, *, off: bool = False) -> str:
    """A button whose sign `shown` (HTML made here) stands for the words of `label`."""
    named = f' aria-label="{escape(label)}" title="{escape(label)}"' if label else ""
    return (
        f'<button type="button" class="say" data-do="{do}" data-value="{escape(value)}" '
        f'data-focus="queue {do} {escape(value)}"{named}{" disabled" if off else ""}>{shown}</button>'
    )
