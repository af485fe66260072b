"""The HTML of one example (as chat, as the model sees it, as it is learned) and of all lengths; pure, all escaped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from studio.ui.cards import Say, count_words, note_card
from studio.ui.dataset_cards import button, show_text

TEXT_CHARACTERS = 20_000
TOKENS_SHOWN = 2000
"""More tokens are shown on demand: a browser takes 0.3 s for 2000 spans."""
ARGUMENT_CHARACTERS = 4000
MARKS = (
    ("\t", '<i class="tab"></i>\t'),
    ("\n", '<i class="line"></i>\n'),
    ("\u00a0", '<i class="nbsp"></i>\u00a0'),
)
SPACES = re.compile(" {2,}|^ +| +$", re.MULTILINE)
KINDS = ("trained", "context", "cut")


def chat_view(example: Mapping[str, Any], say: Say) -> str:
    """Return an example's turns as bubbles, with reasoning, tool calls and results; of a pair both answers."""
    messages = example.get("messages", ())
    if not messages and not example.get("chosen"):
        text = example.get("text", "")
        return f'<div class="mask">{show_text(text, TEXT_CHARACTERS)}</div>' if text else _nothing(say)
    parts = [_bubble(message, say) for message in messages]
    for name in ("chosen", "rejected"):
        if example.get(name):
            parts.append(f'<div class="side">{escape(say(f"ui.dataset.chat.{name}"))}</div>')
            parts += [_bubble(message, say) for message in example[name]]
    if example.get("label") is not None:
        kind = "good" if example["label"] else "bad"
        parts.append(f'<div class="side {kind}">{escape(say(f"ui.dataset.chat.{kind}"))}</div>')
    return f'<div class="turns">{"".join(parts)}</div>'


def _bubble(message: Mapping[str, Any], say: Say) -> str:
    role = message["role"] if message["role"] in ("system", "user", "assistant", "tool") else "user"
    name = f" · {show_text(message['name'], 60)}" if message.get("name") else ""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    parts = []
    if reasoning:
        title = escape(say("ui.dataset.chat.reasoning"))
        parts.append(f'<div class="thought"><b>{title}</b>{show_text(reasoning, TEXT_CHARACTERS)}</div>')
    if message["content"]:
        parts.append(f"<div>{show_text(str(message['content']), TEXT_CHARACTERS)}</div>")
    for call in message.get("tool_calls", ()):
        function = call["function"] if "function" in call else call
        arguments = json.dumps(function["arguments"], ensure_ascii=False, indent=1, default=str)
        title = escape(say("ui.dataset.chat.call"))
        parts.append(
            f'<div class="call"><b>{title} <code>{show_text(function["name"], 80)}</code></b>'
            f"<pre>{show_text(arguments, ARGUMENT_CHARACTERS)}</pre></div>"
        )
    body = "".join(parts) or f'<div class="soft">{escape(say("ui.dataset.chat.empty"))}</div>'
    return f'<div class="turn {role}"><span>{escape(say(f"ui.dataset.chat.{role}"))}{name}</span>{body}</div>'


def seen_view(example: Mapping[str, Any], specials: Sequence[str], say: Say) -> str:
    """Return the rendered text, its control tokens framed and its white space marked."""
    words = example.get("text", "")
    if not words or not example.get("tokens"):
        return _without_tokens(say)
    clipped, rest = words[:TEXT_CHARACTERS], max(0, len(words) - TEXT_CHARACTERS)
    more = f'<i class="more">+{rest:,}</i>' if rest else ""
    legend = f'<p class="legend"><code class="special">…</code> {escape(say("ui.dataset.seen.special"))}'
    legend += f' <i class="line"></i> {escape(say("ui.dataset.seen.space"))}</p>'
    return f'{legend}<div class="mask seen" tabindex="0">{mark_text(clipped, specials)}{more}</div>'


def mark_text(words: str, specials: Iterable[str]) -> str:
    """Return `words` as HTML with the special tokens in it framed and white space visible."""
    found = [special for special in specials if special and special in words]
    if not found:
        return _mark_space(words)
    pattern = "|".join(re.escape(special) for special in sorted(found, key=len, reverse=True))
    pieces = re.split(f"({pattern})", words)
    return "".join(
        f'<code class="special">{show_text(piece)}</code>' if i % 2 else _mark_space(piece)
        for i, piece in enumerate(pieces)
    )


def _mark_space(words: str) -> str:
    out, last = [], 0
    for found in SPACES.finditer(words):
        out += [show_text(words[last : found.start()]), '<i class="space"></i> ' * len(found[0])]
        last = found.end()
    shown = "".join([*out, show_text(words[last:])])
    for character, mark in MARKS:
        shown = shown.replace(character, mark)
    return shown


def learned_view(example: Mapping[str, Any], limit: int, shown: int, say: Say) -> str:
    """Return the tokens as they are learned from: trained, context, or beyond the limit; neighbours of one kind joined.

    At most `shown` tokens; a button asks for more.
    """
    tokens = example.get("tokens", ())
    if not tokens:
        return _without_tokens(say)
    runs: list[tuple[str, list[str]]] = []
    counts = dict.fromkeys(KINDS, 0)
    for i, token in enumerate(tokens):
        kind = "cut" if i >= limit else "trained" if token["trained"] else "context"
        counts[kind] += 1
        if i < shown:
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(token["text"])
    body = "".join(_span(kind, "".join(words)) for kind, words in runs)
    legend = "".join(
        f"<span>{_span(kind, say(f'ui.dataset.mask.{kind}'))} {counts[kind]:,}</span>"
        for kind in KINDS
        if counts[kind] or kind != "cut"
    )
    trained = [token["text"] for token in tokens[:limit] if token["trained"]]
    last = f"<code>{mark_text(trained[-1], ())}</code>" if trained else ""
    note = f"{escape(say('ui.dataset.mask.last' if trained else 'ui.dataset.mask.nothing'))} {last}"
    rest = min(TOKENS_SHOWN, len(tokens) - shown)
    more = button(say("ui.dataset.more", count=rest), "more") if rest > 0 else ""
    beyond = max(0, example.get("length", 0) - len(tokens))
    body += f'<i class="more">+{beyond:,}</i>' if beyond and rest <= 0 else ""
    return (
        f'<p class="legend">{legend}</p><div class="mask" tabindex="0">{body}</div>'
        f'<p class="soft">{note}</p>{more}'
    )


def _span(kind: str, words: str) -> str:
    inner = show_text(words)
    return {"trained": f"<mark>{inner}</mark>", "cut": f"<s>{inner}</s>"}.get(kind, f"<span>{inner}</span>")


def packed_view(examples: Sequence[Mapping[str, Any]], limit: int, say: Say) -> str:
    """Return how the shown examples stand together in rows of `limit` tokens: best fit, the longest first."""
    lengths = [(min(len(one.get("tokens", ())), limit), i + 1) for i, one in enumerate(examples)]
    rows = pack_lengths([pair for pair in lengths if pair[0]], limit)
    if not rows:
        return ""
    bars = "".join(
        '<div class="packed">'
        + "".join(
            f'<i style="width:{100 * size / limit:.2f}%" title="{size:,}">{name}</i>' for size, name in row
        )
        + "</div>"
        for row in rows
    )
    full = sum(size for row in rows for size, _ in row) / (len(rows) * limit)
    lead = say("ui.dataset.packed.lead", rows=len(rows), share=f"{full:.0%}")
    return f"<h3>{escape(say('ui.dataset.packed'))}</h3><p class='lead'>{escape(lead)}</p>{bars}"


def pack_lengths(lengths: Sequence[tuple[int, int]], limit: int) -> list[list[tuple[int, int]]]:
    """Return (tokens, number) pairs in rows of at most `limit` tokens, each in the fullest row that has room."""
    rows: list[list[tuple[int, int]]] = []
    for size, name in sorted(lengths, reverse=True):
        room = [row for row in rows if sum(part for part, _ in row) + size <= limit]
        if room:
            max(room, key=lambda row: sum(part for part, _ in row)).append((size, name))
        else:
            rows.append([(size, name)])
    return rows


def lengths_view(
    histogram: Mapping[str, Any], cuts: Sequence[Any], limit: int, say: Say, now: Any = None
) -> str:
    """Return the histogram of all lengths with a limit line to drag, and what the limit does.

    `histogram`: edges (ascending, one more than counts), counts, p50, p95, max. `cuts`: a studio.services Cut for each
    limit that the line can stand at, ascending; none without a tokenizer, then there is no line. `now`: the Cut at
    `limit` itself, which a person may have typed.
    """
    if not histogram or not sum(histogram["counts"]):
        return _without_tokens(say)
    low, high = _axis(histogram, cuts)
    tallest = max(histogram["counts"])
    bars = "".join(
        f'<i style="left:{_place(start, low, high):.2f}%;right:{100 - _place(end, low, high):.2f}%;'
        f'height:{100 * rows / tallest:.2f}%" title="{start:,} – {end:,}: {rows:,}"></i>'
        for start, end, rows in zip(
            histogram["edges"], histogram["edges"][1:], histogram["counts"], strict=False
        )
        if rows
    )
    ticks = "".join(
        f'<span style="left:{_place(2**power, low, high):.2f}%">{_short(2**power)}</span>'
        for power in range(low, high + 1)
    )
    facts = " · ".join(f"{name} {histogram[name]:,}" for name in ("p50", "p95"))
    facts += f" · {say('ui.dataset.lengths.longest')} {histogram['max']:,}"
    body = f'<div class="plot"><div class="bars">{bars}</div>{_line(cuts, limit, low, high, say)}</div>'
    lead = say("ui.dataset.lengths.lead" if cuts else "ui.dataset.lengths.plain")
    head = f'<p class="legend">{escape(lead)} <span>{escape(facts)}</span></p>'
    table = [figures_of(cut) for cut in cuts]
    figures = _figures(now or nearest(cuts, limit), say)
    return (
        f'<div class="lengths" data-low="{low}" data-high="{high}" data-cuts="{escape(json.dumps(table))}">'
        f'{head}{body}<div class="axis" aria-hidden="true">{ticks}</div>{figures}</div>'
    )


FIGURES = ("limit", "rows_cut", "answers_cut", "left_out", "lost", "packing")


def figures_of(cut: Any) -> list[str | int]:
    """Return what the page shows of one limit, in the order of FIGURES."""
    lost = cut.tokens_lost / cut.tokens if cut.tokens else 0.0
    packing = f"{cut.packing:.0%}" if cut.packing is not None else "–"
    numbers = [f"{cut.rows_cut:,}", f"{cut.answers_cut:,}", f"{cut.rows_left_out:,}"]
    return [cut.limit_tokens, *numbers, f"{count(cut.tokens_lost)} ({lost:.1%})", packing]


def nearest(cuts: Sequence[Any], limit: int) -> Any:
    """Return the cut whose limit is nearest to `limit`; None where there is none."""
    return min(cuts, key=lambda cut: abs(cut.limit_tokens - limit), default=None)


def _figures(cut: Any, say: Say) -> str:
    if cut is None:
        return ""
    values = figures_of(cut)
    cells = "".join(
        f"<div><span>{escape(say(f'ui.dataset.lengths.{name}'))}</span>"
        f'<b data-figure="{name}">{escape(str(value))}</b></div>'
        for name, value in zip(FIGURES[1:], values[1:], strict=True)
    )
    return f'<div class="figures" aria-live="polite">{cells}</div>'


def _line(cuts: Sequence[Any], limit: int, low: int, high: int, say: Say) -> str:
    """The limit's line; beyond the axis it waits at its end."""
    if not cuts:
        return ""
    place = min(100.0, max(0.0, _place(limit, low, high)))
    return (
        f'<div class="limit" role="slider" tabindex="0" data-focus="limit" style="left:{place:.2f}%" '
        f'aria-label="{escape(say("ui.dataset.lengths.limit"))}" aria-valuemin="{cuts[0].limit_tokens}" '
        f'aria-valuemax="{cuts[-1].limit_tokens}" aria-valuenow="{limit}"><b>{limit:,}</b></div>'
    )


def _axis(histogram: Mapping[str, Any], cuts: Sequence[Any]) -> tuple[int, int]:
    """Whole powers of two around all lengths: doubled lengths stand equally far apart, so that a long tail has room."""
    shortest = min((e for e, c in zip(histogram["edges"], histogram["counts"], strict=False) if c), default=8)
    low = max(3, math.floor(math.log2(max(8, shortest))))
    longest = max([histogram["max"], *([cuts[-1].limit_tokens] if cuts else [])])
    return low, max(low + 2, math.ceil(math.log2(max(8, longest))))


def _place(length: float, low: int, high: int) -> float:
    return 100.0 * min(1.0, max(0.0, (math.log2(max(length, 1)) - low) / (high - low)))


def _short(length: int) -> str:
    return f"{length // 1024}K" if length >= 1024 else str(length)


def _nothing(say: Say) -> str:
    return note_card(say("ui.dataset.example.none"))


def _without_tokens(say: Say) -> str:
    return note_card(say("ui.dataset.tokens.none"))


def count(number: float) -> str:
    """Return a count as a person reads it: exact while short."""
    return f"{number:,.0f}" if abs(number) < 1e6 else count_words(int(number))
