"""The HTML of a data set: every cell as text, tokens told apart without colour, every row accounted for."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import literal, load_catalogue, text
from studio.data.row_codes import RowCode
from studio.services.dataset_report import Counted
from studio.services.dataset_session import Look
from studio.ui.tabs.dataset import cards
from studio.ui.tabs.dataset import example as view
from studio.ui.tabs.dataset.visible_text import mark_text, show_text
from tests.ui.sample_report import (
    EVIL,
    HOSTILE,
    WHOLE,
    make_cut,
    make_example,
    make_measured,
    make_question,
    make_report,
    token,
)


@pytest.fixture(params=["en", "zh-CN"])
def say(request):
    """What a context says, in each language."""
    words = load_catalogue(request.param)
    return lambda message, **values: words.say(
        text(message, **values) if isinstance(message, str) else message
    )


class Reader(HTMLParser):
    """Collects tags and attributes, so that what a browser would make of a card can be looked at."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes


def whole(**changes) -> Look:
    """Return a look over all rows."""
    return Look(
        number=3, state="done", source="/data/chats.csv", report=make_report(**WHOLE | changes), whole=True
    )


def test_no_card_lets_data_become_markup(say):
    report = make_report(columns=(EVIL, "output"), rows=({EVIL: EVIL, "output": EVIL},), mapping={EVIL: EVIL})
    example = make_example()
    html = "".join(
        (
            cards.rows_table(report, lambda role: role, say),
            cards.format_card(whole(encoding=EVIL, container=EVIL), say),
            cards.problems_card(report, say),
            cards.question_cards([make_question("data.mapping." + EVIL, EVIL, "b")], say),
            cards.remote_card(Look(state="remote", source=EVIL), say),
            view.chat_view(example, say),
            view.seen_view(example, (EVIL, "<|im_end|>"), say),
            view.learned_view(example, 4, 2000, say),
        )
    )
    assert html.count("window.caught") > 10
    read = Reader(html)
    assert not {"img", "script", "a"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("href", "src")]


def test_what_shows_nothing_is_named():
    shown = show_text(HOSTILE["nul"])
    assert '<i class="code">0000</i>' in shown and '<i class="code">D800</i>' in shown
    assert "\u202e" not in show_text(HOSTILE["turned"])
    assert show_text(HOSTILE["arabic"]) == HOSTILE["arabic"]
    assert show_text("👩\u200d🚀") == "👩\u200d🚀", "a joiner is part of a letter"
    shown.encode("utf-8")  # a lone surrogate would end the page


def test_long_cells_and_many_columns_stay_small(say):
    names = tuple(f"column {i}" for i in range(500))
    report = make_report(
        columns=names, rows=tuple({name: "x" * 100_000 for name in names} for _ in range(8)),
        mapping={"output": "column 499"},
    )  # fmt: skip
    html = cards.rows_table(report, lambda role: role, say)
    assert len(html) < 400_000
    assert "+99,700" in html and "column 499" in html and "440" in html
    assert html.count("<select") == cards.COLUMNS_SHOWN


def test_the_law_is_one_line_that_adds_up(say):
    line = cards.law_line(WHOLE, say)
    numbers = [int(part.replace(",", "")) for part in re.findall(r"<b>([\d,]+)</b>", line)]
    assert numbers == [1200, 1090, 100, 10] and numbers[0] == sum(numbers[1:])


def test_the_card_says_what_it_is_how_sure_and_what_is_wrong(say):
    card = cards.format_card(whole(), say)
    assert "93%" in card and "cp1252" in card and "CSV" in card and "3.3 MiB" in card and "warn" in card
    assert 'class="card dataset bad"' in cards.format_card(whole(rows_used=0), say)
    refused = StudioError(text("data.prepare.nothing", read=9), literal("Why."), literal("Do."))
    rows = {"rows_read": 9, "rows_used": 7, "rows_refused": 2, "filtered": {}}
    card = cards.format_card(whole(), say, Counted(**rows, refusal=refused))
    assert say(refused.what) in unescape(card) and 'data-do="accept"' in card and "<b>7</b>" in card
    none = Counted(**rows | {"rows_used": 0, "rows_refused": 9}, refusal=refused)
    assert 'data-do="accept"' not in cards.format_card(whole(), say, none), "nothing would be left"
    pairs = Look(report=make_report(format="vision"), state="done")
    assert "bad" in cards.format_card(pairs, say), "what no training learns from is said at once"
    assert "good" in cards.format_card(Look(report=make_report(), state="done"), say)
    assert "warn" in cards.format_card(Look(report=make_report(format=None), state="done"), say)


def test_each_role_stands_over_its_column(say):
    report = make_report()
    heads = re.findall(r"<th.*?</th>", cards.rows_table(report, lambda role: f"[{role}]", say), re.S)
    plays = {}
    for head in heads:
        column = unescape(re.search(r'data-column="([^"]*)"', head)[1])
        plays[column] = re.search(r'<option value="([^"]*)" selected>', head)[1]
    assert plays["instruction"] == "instruction" and plays["output"] == "output" and plays["long"] == ""
    assert list(plays)[:2] == ["instruction", "output"], "columns with a role stand first"


def test_a_question_offers_its_choices(say):
    few = cards.question_cards([make_question("data.encoding", "cp1252", "gb18030")], say)
    assert (
        few.count("<input") == 2 and 'value="cp1252" checked' in few and 'data-field="data.encoding"' in few
    )
    many = cards.question_cards([make_question("data.mapping.output", *map(str, range(20)))], say)
    assert many.count("<option") == 20 and "<input" not in many
    kinds = cards.question_cards([make_question("data.format", "alpaca", "text")], say)
    assert say("knob.data.format.choice.alpaca") in unescape(kinds)


def test_problems_stand_by_code_with_count_examples_and_what_to_do(say):
    html = cards.problems_card(make_report(), say)
    assert html.count("<details") == 2
    first = html[: html.index("</details>")]
    assert "E122" in first and "100" in first and "card problem bad" in first
    assert first.count("<li>") == 2, "the count of the rest is no example"
    assert "98" in first
    assert "good" in cards.problems_card(make_report(problems=[]), say)


def test_progress_is_shown_while_something_is_done(say):
    assert cards.progress_card(Look(state="done"), say) == ""
    card = cards.progress_card(Look(state="measuring", share=0.25), say)
    assert 'aria-valuenow="25"' in card and 'data-do="cancel"' in card
    beside = cards.progress_card(Look(state="measuring"), say, training=True)
    assert say("ui.dataset.working.slows") in beside and say("ui.dataset.working.slows") not in card


def test_a_remote_source_names_its_size_before_it_is_fetched(say):
    asked = cards.format_card(Look(state="remote", source="https://example.org/x.jsonl"), say)
    assert 'data-do="size"' in asked
    known = Look(state="remote", source="https://example.org/x", asked=True, size_bytes=5_000_000)
    known = cards.format_card(known, say)
    assert "4.8 MiB" in known and 'data-do="fetch"' in known and 'data-do="size"' not in known


def test_a_talk_shows_reasoning_calls_and_results(say):
    html = view.chat_view(make_example(), say)
    assert html.count('class="turn ') == 4
    assert "I look &lt;b&gt;closely&lt;/b&gt;." in html and "&quot;at&quot;: &quot;&lt;lamp&gt;&quot;" in html
    assert "turn tool" in html and "turn system" in html
    assert view.chat_view({"messages": [], "text": "plain <b>"}, say).count("&lt;b&gt;") == 1
    turn = [{"role": "assistant", "content": EVIL}]
    pair = view.chat_view({"messages": [], "chosen": turn, "rejected": turn}, say)
    assert pair.count('class="side"') == 2 and "<img" not in pair
    assert "side bad" in view.chat_view({"messages": turn, "label": False}, say)


def test_the_model_sees_control_tokens_and_white_space(say):
    words = "<|im_start|>user\n  two\tends \u00a0<|im_end|>"
    html = mark_text(words, ("<|im_start|>", "<|im_end|>", "<|im"))
    assert html.count('<code class="special">') == 2 and "&lt;|im_start|&gt;</code>" in html
    assert html.count('class="space"') == 2 and html.count('class="tab"') == 1
    assert '<i class="line"></i>\n' in html and 'class="nbsp"' in html


def test_tokens_are_told_apart_without_colour(say):
    example = {"tokens": [token("ask", False), token("A", True), token("B", True), token("gone", True)]}
    html = view.learned_view(example, 3, 2000, say)
    body = html[html.index('<div class="mask"') :]
    assert "<span>ask</span><mark>AB</mark><s>gone</s>" in body
    assert "<code>B</code>" in html, "the last learned token is the last within the limit"
    nothing = view.learned_view(example, 1, 2000, say)
    assert say("ui.dataset.mask.nothing") in unescape(nothing)


def test_many_tokens_are_shown_on_demand(say):
    example = make_example(5000)
    first = view.learned_view(example, 10_000, 2000, say)
    assert "word1990" in first and "word1999" not in first and 'data-do="more"' in first
    assert 'data-do="more"' not in view.learned_view(example, 10_000, 6000, say)


def test_packed_rows_hold_every_example_once_and_no_more_than_the_limit(say):
    lengths = [(60, 1), (50, 2), (40, 3), (30, 4), (20, 5)]
    rows = view.pack_lengths(lengths, 100)
    assert sorted(pair for row in rows for pair in row) == sorted(lengths)
    assert all(sum(size for size, _ in row) <= 100 for row in rows) and len(rows) == 2
    html = view.packed_view([{"tokens": [token("x", True)] * size} for size, _ in lengths], 100, say)
    assert html.count('class="packed"') == 2 and "100%" in html


def test_lengths_have_a_line_at_the_limit_and_its_consequences(say):
    measured = make_measured()
    html = view.lengths_view(measured.histogram, measured.cuts, 512, say)
    assert 'aria-valuenow="512"' in html and '<b data-figure="rows_cut">488</b>' in html
    table = json.loads(unescape(re.search(r'data-cuts="([^"]*)"', html)[1]))
    assert [row for row in table if row[0] == 512] == [view.figures_of(make_cut(512))]
    assert "488" in table[63] and "0" in table[-1]
    low, high = (int(re.search(rf'data-{name}="(\d+)"', html)[1]) for name in ("low", "high"))
    assert 2**low <= 8 and 2**high >= 2048


def test_without_tokens_there_is_no_line(say):
    assert "limit" not in view.lengths_view({}, (), 512, say)
    histogram = make_measured().histogram
    assert 'role="slider"' not in view.lengths_view(histogram, (), 512, say)


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_every_code_has_words(language):
    words = load_catalogue(language)
    assert [code for code in RowCode if not (words.has(code.heading.id) and words.has(code.fix.id))] == []


def test_of_a_pair_both_sides_are_shown_with_what_is_compared(say):
    example = {
        "text": "ask good", "tokens": [token("ask ", False), token("good", True)], "length": 3,
        "rejected_text": f"ask bad {EVIL}",
        "rejected_tokens": [token("ask ", False), token("bad", True), token(EVIL, True)],
    }  # fmt: skip
    for html in (view.learned_view(example, 100, 2000, say), view.seen_view(example, ("ask",), say)):
        better, worse = (html.index(say(f"ui.dataset.chat.{side}")) for side in ("chosen", "rejected"))
        assert better < html.index("good") < worse < html.index("bad") and EVIL not in html
    assert "<mark>bad" in view.learned_view(example, 100, 2000, say)
