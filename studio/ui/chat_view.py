"""The HTML of the Chat screen: talks, what is loaded, how a test goes and its table; every value escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from studio.ui.answer_text import show_answer
from studio.ui.cards import Say, size_words, time_words

ROWS_SHOWN = 200
"""More rows of a test's table are in its file alone: a browser takes a second for 2000."""
SIGNS = {"exact": "✓", "alike": "≈", "wrong": "✗"}


def talk_card(
    title: str,
    turns: Sequence[Mapping[str, Any]],
    say: Say,
    *,
    empty: str,
    growing: bool = False,
    examples: Sequence[str] = (),
) -> str:
    """Return a talk as bubbles, an answer with what it took; `growing`: the last answer is still being written.

    A talk that has not begun offers `examples`, which go into the box for questions.
    """
    bubbles = []
    for number, turn in enumerate(turns):
        on = growing and number == len(turns) - 1
        words = str(turn["content"])
        if turn["role"] == "user":
            bubbles.append(f'<div class="bubble mine">{escape(words)}</div>')
            continue
        shown = show_answer(words, say("ui.chat.thought")) or '<span class="wait" aria-hidden="true">…</span>'
        bubbles.append(f'<div class="bubble theirs{" growing" if on else ""}">{shown}</div>')
        if not on:
            bubbles.append(_answer_foot(turn, say))
    body = "".join(bubbles) or _offer(examples, say) or f'<p class="soft empty">{escape(empty)}</p>'
    return (
        f'<section class="talk"><h3>{escape(title)}</h3><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(title)}"><div class="bubbles">{body}</div></div></section>'
    )


def _offer(examples: Sequence[str], say: Say) -> str:
    buttons = "".join(
        f'<button type="button" class="say" data-do="example" data-value="{escape(words)}">'
        f'<bdi translate="no">{escape(words)}</bdi></button>'
        for words in examples
    )
    title = escape(say("ui.chat.examples"))
    return f'<div class="examples"><p class="soft">{title}</p>{buttons}</div>' if buttons else ""


def _answer_foot(turn: Mapping[str, Any], say: Say) -> str:
    """Return what an answer took, and its copy button, which takes the words as the model wrote them."""
    said = []
    if turn.get("stopped"):
        said.append(say("ui.chat.stopped"))
    if turn.get("unfinished"):
        said.append(say("ui.chat.unfinished"))
    if turn.get("tokens"):
        said.append(say("ui.chat.tokens", count=int(turn["tokens"])))
    if turn.get("first_s"):
        said.append(say("ui.chat.first", seconds=f"{turn['first_s']:.2f}"))
    if turn.get("tokens_per_s"):
        said.append(say("ui.chat.speed", speed=f"{turn['tokens_per_s']:.1f}"))
    if turn.get("seed"):
        said.append(say("ui.chat.seed_used", seed=int(turn["seed"])))
    words = escape(" · ".join(said))
    return f'<div class="foot"><span>{words}</span>{copy_button(str(turn["content"]), say)}</div>'


def copy_button(words: str, say: Say) -> str:
    """Return a button that copies `words`; it needs no server."""
    return (
        f'<button type="button" class="link copy" data-copy="{escape(words)}" '
        f'data-copied="{escape(say("ui.chat.copied"))}">{escape(say("ui.chat.copy"))}</button>'
    )


def said_words(talk: Mapping[str, Any], sides: Sequence[str], say: Say) -> str:
    """Return what a screen reader is told once answers are finished."""
    last = [talk[side][-1] for side in sides if talk[side]]
    words = [f"{say(f'ui.chat.{side}')}: {turn['content']}" for side, turn in zip(sides, last, strict=False)]
    return f'<div aria-live="polite" role="status">{escape(" ".join(words))}</div>'


def state_card(
    *,
    run: str,
    loaded: Any,
    waits: str,
    left_s: float | None,
    name: str,
    place: str,
    say: Say,
    training: bool = False,
) -> str:
    """Return whether an answer can be had and what is in memory. `loaded`: a desk.chat.LoadedModel or None.

    `training`: what an answer waits for is a run.
    """
    mark = f'data-run="{escape(run)}"'
    if waits:
        left = say("ui.chat.left", time=time_words(left_s)) if left_s else ""
        button = (
            f'<button type="button" class="say" data-go="training">{escape(say("ui.chat.to_run"))}</button>'
            if training
            else ""
        )
        return (
            f'<div class="model-state waits" {mark}><i></i><span>{escape(waits)} {escape(left)}</span>'
            f"{button}</div>"
        )
    if loaded is None:
        return (
            f'<div class="model-state" {mark}><i></i><span>{escape(say("ui.chat.not_loaded"))}</span></div>'
        )
    words = say(
        "ui.chat.loaded",
        name=name,
        place=place,
        size=size_words(loaded.size_bytes),
        device=loaded.device,
    )
    return (
        f'<div class="model-state on" {mark}><i></i><span>{escape(words)}</span>'
        f'<button type="button" class="say" data-do="unload" data-focus="unload">{escape(say("ui.chat.unload"))}'
        "</button></div>"
    )


# The table of a test --------------------------------------------------------------------------------------------------


def progress_card(phase: str, done: int, total: int, say: Say, *, stop: str) -> str:
    """Return how far a job is, with its Stop button (`data-do` is `stop`)."""
    share = f'<i style="width:{min(1.0, done / total):.1%}"></i>' if total else '<i class="unknown"></i>'
    count = f"{done} / {total}" if total else ""
    return (
        f'<div class="card working"><div class="reading"><span role="status">{escape(phase)}</span>'
        f'<span class="bar">{share}</span><span>{escape(count)}</span></div>'
        f'<button type="button" class="say" data-do="{escape(stop)}" data-focus="{escape(stop)}">'
        f"{escape(say('ui.chat.stop'))}</button></div>"
    )


def table_card(table: Any, say: Say) -> str:
    """Return a desk.table.Table: totals for each side, then the rows, those that differ first."""
    sides = list(table.totals)
    head = "".join(f"<th scope='col'>{escape(say(f'ui.chat.{side}'))}</th>" for side in sides)
    lines = []
    if any(total.expected for total in table.totals.values()):
        lines.append(
            _total_line("ui.test.exact", [_share(t.exact, t.expected) for t in table.totals.values()], say)
        )
        lines.append(
            _total_line("ui.test.alike", [_share(t.alike, t.expected) for t in table.totals.values()], say)
        )
    if any(total.loss is not None for total in table.totals.values()):
        lines.append(_total_line("ui.test.loss", [_number(t.loss, 4) for t in table.totals.values()], say))
        lines.append(
            _total_line("ui.test.perplexity", [_number(t.perplexity, 2) for t in table.totals.values()], say)
        )
    totals = (
        f'<table class="totals"><thead><tr><td></td>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
        if lines
        else ""
    )
    notes = [
        say(
            "test.count.left_out" if table.left_out else "test.count",
            count=len(table.rows),
            left_out=table.left_out,
        )
    ]
    if not table.whole:
        notes.append(say("ui.test.not_whole"))
    if len(table.rows) > ROWS_SHOWN:
        notes.append(say("ui.test.more", shown=ROWS_SHOWN))
    rows = "".join(_test_row(row, sides, say) for row in table.rows[:ROWS_SHOWN])
    columns = [say("ui.test.number"), say("ui.test.prompt"), *(say(f"ui.chat.{side}") for side in sides)]
    columns.append(say("ui.test.expected"))
    heading = "".join(f"<th scope='col'>{escape(name)}</th>" for name in columns)
    return (
        f'<div class="card test"><h3>{escape(table.name)}</h3>{totals}'
        f'<p class="soft">{escape(" · ".join(notes))}</p>'
        f'<div class="rows" tabindex="0" role="region" aria-label="{escape(table.name)}">'
        f"<table><thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _total_line(id: str, values: Sequence[str], say: Say) -> str:
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row" title="{escape(say(f"{id}.help"))}">{escape(say(id))}</th>{cells}</tr>'


def _test_row(row: Any, sides: Sequence[str], say: Say) -> str:
    cells = []
    for side in sides:
        marks = ""
        if side in row.exact:
            kind = "exact" if row.exact[side] else "alike" if row.alike[side] else "wrong"
            sign, said = SIGNS[kind], escape(say(f"ui.test.{kind}.mark"))
            marks = f'<b class="{kind}"><span aria-hidden="true">{sign}</span> {said}</b>'
        loss = row.losses.get(side)
        if loss is not None:
            marks += f"<span>{escape(say('ui.test.row_loss', loss=_number(loss, 3)))}</span>"
        foot = f'<div class="marks">{marks}</div>' if marks else ""
        cells.append(f"<td>{escape(row.answers.get(side, ''))}{foot}</td>")
    expected = escape(row.expected or "–")
    return f"<tr><td>{row.number}</td><td>{escape(row.prompt)}</td>{''.join(cells)}<td>{expected}</td></tr>"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%} ({part} / {whole})" if whole else "–"


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if math.isfinite(value) and value < 1e6 else f"{value:.2g}"
