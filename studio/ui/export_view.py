"""The HTML of the Export screen: the forms, what each takes, how writing goes, what was written; escaped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from typing import Any

from studio.services.exports import Estimate, ExportItem, loading_lines
from studio.ui.cards import Say, size_words
from studio.ui.chat_view import copy_button

LATER = ("gguf", "hub")
"""What later versions bring, shown so that nobody looks for it."""
FILES_SHOWN = 12


def target_cards(estimates: Sequence[Estimate], say: Say, *, busy: bool, waits: str, run: str = "") -> str:
    """Return a card for each form with what it will take, and those that come later; `waits`: why none can be now."""
    cards = [_target_card(one, say, busy=busy or bool(waits)) for one in estimates]
    cards += [_later_card(name, say) for name in LATER]
    note = f'<p class="card note warn">{escape(waits)}</p>' if waits else ""
    return f'{note}<div class="targets" data-run="{escape(run)}">{"".join(cards)}</div>'


def _target_card(found: Estimate, say: Say, *, busy: bool) -> str:
    name = found.target
    rows = ""
    if found.size_bytes:
        pairs = [
            (
                say("ui.export.size"),
                say(
                    "ui.export.of_free", size=size_words(found.size_bytes), free=size_words(found.disk_bytes)
                ),
            )
        ]
        if found.memory_bytes:
            pairs.append(
                (
                    say("ui.export.memory"),
                    say(
                        "ui.export.of_free",
                        size=size_words(found.memory_bytes),
                        free=size_words(found.free_bytes),
                    ),
                )
            )
        rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in pairs)
        rows = f"<dl>{rows}</dl>"
    problem = f'<p class="flag bad">{escape(say(found.problem))}</p>' if found.problem is not None else ""
    off = " disabled" if busy or found.problem is not None else ""
    id = "export-start" if name == "adapter" else f"export-start-{name}"
    return (
        f'<section class="card target"><h3>{escape(say(f"ui.export.{name}"))}</h3>'
        f"<p>{escape(say(f'ui.export.{name}.help'))}</p>{rows}{problem}"
        f'<button type="button" class="say primary" id="{id}" data-do="export" data-value="{escape(name)}"{off}>'
        f"{escape(say('ui.export.start'))}</button></section>"
    )


def _later_card(name: str, say: Say) -> str:
    return (
        f'<section class="card target later"><h3>{escape(say(f"ui.export.{name}"))} '
        f"<small>{escape(say('ui.export.later'))}</small></h3><p>{escape(say(f'ui.export.{name}.help'))}</p></section>"
    )


def result_card(item: ExportItem, say: Say, *, local: bool) -> str:
    """Return what was written: path, size, files, that it was checked, and the lines that load it."""
    names = [*item.files[:FILES_SHOWN], *(["…"] if len(item.files) > FILES_SHOWN else [])]
    files = "".join(f"<li><code>{escape(name)}</code></li>" for name in names)
    return (
        f'<section class="card good written" data-name="{escape(item.name)}"><h3>{escape(say("ui.export.done"))}</h3>'
        f"{_path(item, say)}"
        f"<p>{escape(say('ui.export.checked', size=size_words(item.size_bytes)))}</p>"
        f"<details><summary>{escape(say('ui.export.files', count=len(item.files)))}</summary><ul>{files}</ul></details>"
        f"{_lines(item, say)}{_buttons(item, say, local=local)}</section>"
    )


def _path(item: ExportItem, say: Say) -> str:
    path = str(item.path)
    return f'<p class="path"><code>{escape(path)}</code> {copy_button(path, say)}</p>'


def _lines(item: ExportItem, say: Say) -> str:
    lines = "\n".join(loading_lines(item))
    if not lines:
        return ""
    return (
        f'<div class="code"><p>{escape(say("ui.export.lines"))} {copy_button(lines, say)}</p>'
        f'<pre tabindex="0"><code>{escape(lines)}</code></pre></div>'
    )


def _buttons(item: ExportItem, say: Say, *, local: bool) -> str:
    shown = (
        f'<button type="button" class="say" data-do="open" data-value="{escape(item.name)}" '
        f'data-focus="open-{escape(item.name)}">{escape(say("ui.export.open"))}</button>'
        if local
        else ""
    )
    if not item.ours:
        return f'<div class="answers">{shown}</div>'
    question = escape(say("ui.export.delete.sure", name=item.name, size=size_words(item.size_bytes)))
    delete = escape(say("ui.export.delete"))
    return (
        f'<div class="answers">{shown}<button type="button" class="say" data-do="delete" '
        f'data-value="{escape(item.name)}" data-confirm="{question}">{delete}</button></div>'
    )


def items_card(items: Sequence[ExportItem], say: Say, *, local: bool) -> str:
    """Return the exports that lie in the workspace, newest first."""
    if not items:
        return f'<p class="soft">{escape(say("ui.export.none"))}</p>'
    parts = []
    for item in items:
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.written_s))
        said = " · ".join((say(f"ui.export.{item.target}"), size_words(item.size_bytes), day))
        parts.append(
            f'<details class="export"><summary><b>{escape(item.run)}</b> '
            f"<span>{escape(said)}</span></summary>{_path(item, say)}"
            f"{_lines(item, say)}{_buttons(item, say, local=local)}</details>"
        )
    return f'<div class="exports">{"".join(parts)}</div>'


def working_card(phase: str, written_bytes: int, total_bytes: int, say: Say, *, stopping: bool) -> str:
    """Return how far an export is."""
    share = min(1.0, written_bytes / total_bytes) if total_bytes else 0.0
    bar = f'<i style="width:{share:.1%}"></i>' if written_bytes else '<i class="unknown"></i>'
    count = (
        say("ui.export.written", done=size_words(written_bytes), total=size_words(total_bytes))
        if total_bytes
        else ""
    )
    stop = escape(say("ui.chat.stop"))
    button = f'<button type="button" class="say" data-do="stop" data-focus="stop">{stop}</button>'
    if stopping:
        button = f'<span class="soft">{escape(say("ui.export.stopping"))}</span>'
    return (
        f'<div class="card working"><div class="reading"><span role="status">{escape(phase)}</span>'
        f'<span class="bar">{bar}</span><span>{escape(count)}</span></div>{button}</div>'
    )


def stopped_card(say: Say) -> str:
    """Return that an export was stopped and nothing stayed behind."""
    return f'<div class="card note"><p>{escape(say("ui.export.stopped"))}</p></div>'


def error_card(words: Any) -> str:
    """Return what went wrong, as sentences."""
    return f'<div class="card note bad" role="alert"><p>{escape(str(words))}</p></div>'
