"""What is told of one example (as chat, as the model sees it, as it is learned) and of all lengths."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from studio.ui.cards import Say, note_card
from studio.ui.quantities import count_words
from studio.ui.tabs.dataset.visible_text import mark_text, show_text
from studio.ui.templates import render

TEXT_CHARACTERS = 20_000
TOKENS_SHOWN = 2000
"""More tokens are shown on demand: a browser takes 0.3 s for 2000 spans."""
ARGUMENT_CHARACTERS = 4000
KINDS = {"trained": "mark", "context": "span", "cut": "s"}
"""How a token is learned -> the tag that shows it."""


def chat_view(example: Mapping[str, Any], say: Say) -> Markup:
    """Return an example's turns as bubbles, with reasoning, tool calls and results; of a pair both answers."""
    messages = example.get("messages", ())
    if not messages and not example.get("chosen"):
        text = example.get("text", "")
        if not text:
            return note_card(say("ui.dataset.example.none"))
        return render("tabs/dataset/plain.html", show=show_text, words=text, letters=TEXT_CHARACTERS)
    return render(
        "tabs/dataset/chat.html",
        say,
        example=example,
        show=show_text,
        write=_write_arguments,
        letters=TEXT_CHARACTERS,
        argument_letters=ARGUMENT_CHARACTERS,
    )


def _write_arguments(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False, indent=1, default=str)


def seen_view(example: Mapping[str, Any], specials: Sequence[str], say: Say) -> Markup:
    """Return the rendered text, its control tokens framed and its white space marked; of a pair both sides."""
    if not example.get("text") or not example.get("tokens"):
        return _without_tokens(say)
    sides = [
        (side, mark_text(words[:TEXT_CHARACTERS], specials), max(0, len(words) - TEXT_CHARACTERS))
        for side, words, _ in _sides_of(example)
    ]
    return render("tabs/dataset/seen.html", say, sides=sides)


def _sides_of(example: Mapping[str, Any]) -> list[tuple[str, str, Sequence[Mapping[str, Any]]]]:
    """Return (name, text, tokens) of an example, whose name is "", or of both sides of a pair."""
    first = example.get("text", ""), example.get("tokens", ())
    if not example.get("rejected_tokens"):
        return [("", *first)]
    return [("chosen", *first), ("rejected", example["rejected_text"], example["rejected_tokens"])]


def learned_view(example: Mapping[str, Any], limit: int, shown: int, say: Say) -> Markup:
    """Return the tokens as they are learned from: trained, context, or beyond the limit; neighbours of one kind joined.

    At most `shown` tokens of a side; a button asks for more. Of a pair what is trained is what is compared.
    """
    if not example.get("tokens"):
        return _without_tokens(say)
    sides = [(side, tokens, *_join_kinds(tokens, limit, shown)) for side, _, tokens in _sides_of(example)]
    longest = max(len(tokens) for _, tokens, *_ in sides)
    more = min(TOKENS_SHOWN, longest - shown)
    trained = [token["text"] for token in sides[0][1][:limit] if token["trained"]]
    counts = {kind: sum(found[kind] for *_, found in sides) for kind in KINDS}
    return render(
        "tabs/dataset/learned.html",
        say,
        sides=[(side, runs) for side, _, runs, _ in sides],
        counts=[(kind, count) for kind, count in counts.items() if count or kind != "cut"],
        last=mark_text(trained[-1], ()) if trained else None,
        tags=KINDS,
        more=more,
        beyond=max(0, example.get("length", 0) - longest) if more <= 0 else 0,
        show=show_text,
    )


def _join_kinds(
    tokens: Sequence[Mapping[str, Any]], limit: int, shown: int
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Return the first `shown` tokens as stretches of one kind, and how many tokens there are of each."""
    runs: list[tuple[str, list[str]]] = []
    counts = dict.fromkeys(KINDS, 0)
    for i, token in enumerate(tokens):
        kind = "cut" if i >= limit else "trained" if token["trained"] else "context"
        counts[kind] += 1
        if i < shown:
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(token["text"])
    return [(kind, "".join(words)) for kind, words in runs], counts


def packed_view(examples: Sequence[Mapping[str, Any]], limit: int, say: Say) -> Markup:
    """Return how the shown examples stand together in rows of `limit` tokens: best fit, the longest first."""
    lengths = [(min(len(one.get("tokens", ())), limit), i + 1) for i, one in enumerate(examples)]
    rows = pack_lengths([pair for pair in lengths if pair[0]], limit)
    if not rows:
        return Markup()
    full = sum(size for row in rows for size, _ in row) / (len(rows) * limit)
    return render("tabs/dataset/packed.html", say, rows=rows, full=full, limit=limit)


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
) -> Markup:
    """Return the histogram of all lengths with a limit line to drag, and what the limit does.

    `histogram`: edges (ascending, one more than counts), counts, p50, p95, max. `cuts`: a studio.services Cut for each
    limit that the line can stand at, ascending; none without a tokenizer, then there is no line. `now`: the Cut at
    `limit` itself, which a person may have typed.
    """
    if not histogram or not sum(histogram["counts"]):
        return _without_tokens(say)
    low, high = _axis(histogram, cuts)
    tallest = max(histogram["counts"])
    bars = [
        (
            _place(start, low, high),
            100 - _place(end, low, high),
            100 * rows / tallest,
            f"{start:,} – {end:,}: {rows:,}",
        )
        for start, end, rows in zip(
            histogram["edges"], histogram["edges"][1:], histogram["counts"], strict=False
        )
        if rows
    ]
    longest = f"{say('ui.dataset.lengths.longest')} {histogram['max']:,}"
    cut = now or nearest(cuts, limit)
    return render(
        "tabs/dataset/lengths.html",
        say,
        low=low,
        high=high,
        cuts=cuts,
        limit=limit,
        table=json.dumps([figures_of(cut) for cut in cuts]),
        facts=[*(f"{name} {histogram[name]:,}" for name in ("p50", "p95")), longest],
        bars=bars,
        ticks=[(_place(2**power, low, high), _short(2**power)) for power in range(low, high + 1)],
        # Beyond the axis the line waits at its end.
        place=min(100.0, max(0.0, _place(limit, low, high))),
        figures=list(zip(FIGURES, figures_of(cut), strict=True))[1:] if cut is not None else [],
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


def _without_tokens(say: Say) -> Markup:
    return note_card(say("ui.dataset.tokens.none"))


def count(number: float) -> str:
    """Return a count as a person reads it: exact while short."""
    return f"{number:,.0f}" if abs(number) < 1e6 else count_words(int(number))
