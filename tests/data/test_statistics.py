"""Statistics: what is counted equals what was put in, over all rows; traits fold case and white space, nothing else."""

import json
import random
import string

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.data.conversation import Conversation, Message, ToolCall
from studio.data.lengths import Lengths
from studio.data.row_stats import (
    RowTraits,
    collect_traits,
    count_answer,
    fold,
    hash_folded,
    join_traits,
    read_answers,
    read_talk,
    read_words,
)
from studio.data.statistics import balance_labels, measure
from studio.data.unicode_scripts import SCRIPTS, count_scripts


def chat(*contents: str, system: str = "") -> Conversation:
    front = (Message("system", system),) if system else ()
    roles = ("user", "assistant")
    return Conversation((*front, *(Message(roles[i % 2], words) for i, words in enumerate(contents))))


def reader(rows: list[Conversation]):
    return lambda: enumerate(rows)


def make_words(count: int, seed: int) -> str:
    source = random.Random(seed)
    return " ".join("".join(source.choices(string.ascii_lowercase, k=6)) for _ in range(count))


@pytest.fixture(scope="module")
def rows() -> list[Conversation]:
    """40 different chats; then two exact copies, two near ones, and one with a key."""
    base = [chat(make_words(20, i), make_words(30, 1000 + i), system="Be kind. " * 20) for i in range(40)]
    first = base[3].messages
    copy = chat(first[1].content.upper(), " " + first[2].content.replace(" ", "\n "), system="Be kind. " * 20)
    near = chat(base[7].messages[1].content + " please", base[7].messages[2].content)
    leak = chat("my key", "sk-" + "aB3" * 16 + " and joe@example.org")
    return [*base, base[5], copy, near, near._replace(messages=near.messages[:-1]), leak]


def test_counts(rows):
    found = measure(reader(rows), lines=[10 * i for i in range(len(rows))])
    assert found.rows == 45 and found.empty == 1
    assert found.repeats.exact.tolist() == [[40, 5], [41, 3]]
    assert found.repeats.near.tolist() == [[42, 7]] and found.repeats.clusters == 1
    assert found.turns == {1: 1, 2: 44}
    assert found.labels is None and found.overlap is None and found.tokens is None
    assert found.characters.total == sum(len(m.content) for row in rows for m in row.messages)
    stats = found.to_dict()
    assert stats["exact_duplicates"] == 2 and stats["near_duplicates"] == 1
    assert stats["duplicate_examples"] == [[400, 50], [410, 30]] and stats["near_duplicate_examples"] == [
        [420, 70]
    ]
    assert [(one["kind"], one["rows"], one["lines"]) for one in stats["secrets"]] == [
        ("openai", 1, [440]),
        ("email", 1, [440]),
    ]
    assert "overlap" not in stats and "labels" not in stats and "tokens" not in stats


@pytest.mark.parametrize("language", LANGUAGES)
def test_as_json_it_shows_no_secret_and_every_text_has_words(rows, language):
    catalogue = load_catalogue(language)
    stats = measure(reader(rows), read_evaluation=reader(rows[:3]), near=False).to_dict()
    words = json.dumps(catalogue.say_all(stats), ensure_ascii=False)
    assert "sk-a" not in words and "joe@" not in words
    assert "data." not in words and stats["near_duplicates"] is None and stats["overlap"]["near"] is None


def test_with_lengths(rows):
    full = np.arange(10, 10 + len(rows))
    lengths = Lengths(full, full // 2, full, full - full // 2, np.ones(60, np.int64))
    stats = measure(reader(rows), lengths=lengths, max_length=20, near=False).to_dict()
    assert stats["unit"] == "tokens" and stats["tokens"]["max"] == full.max()
    assert stats["at_limit"]["rows_cut"] == int((full > 20).sum())
    assert 0 < stats["at_limit"]["packing_efficiency"] <= 1 and 0 <= stats["at_limit"]["padding"] < 1
    assert stats["tokens"]["trained_share"] == lengths.trained_share
    json.dumps(stats["tokens"])


def test_overlap_with_evaluation(rows):
    evaluation = [
        rows[1],
        chat(rows[7].messages[1].content, rows[7].messages[2].content + " indeed"),
        chat("a", "b"),
    ]
    found = measure(reader(rows), read_evaluation=reader(evaluation))
    assert found.overlap.exact.tolist() == [[1, 0]]
    assert found.overlap.near.tolist() == [[7, 1], [42, 1]]
    assert found.to_dict()["overlap"] | {"lines": 0, "near_lines": 0} == {
        "exact": 1,
        "near": 2,
        "lines": 0,
        "near_lines": 0,
    }


def test_too_many_rows_are_compared_only_when_asked(rows, monkeypatch):
    monkeypatch.setattr("studio.data.duplicates.NEAR_ROWS", 10)
    found = measure(reader(rows))
    assert found.repeats.near is None and found.repeats.reason.id == "data.near.many"
    assert len(found.repeats.exact) == 2
    assert measure(reader(rows), near=True).repeats.near.tolist() == [[42, 7]]


def test_nothing_to_count():
    found = measure(reader([]), read_evaluation=reader([]))
    assert found.rows == 0 and found.to_dict()["near_duplicates"] == 0


@pytest.mark.computing
@given(st.integers(0, 5000), st.integers(0, 5000))
@example(1, 5000)
@example(4, 3)
def test_label_weights_bring_the_ratio_into_the_range(desirable, undesirable):
    found = balance_labels(desirable, undesirable)
    if not desirable or not undesirable:
        assert found is None or found.desirable_weight is found.undesirable_weight is None
        return
    ratio = desirable * found.desirable_weight / (undesirable * found.undesirable_weight)
    assert 1 <= ratio <= 4 / 3 + 1e-12
    assert min(found.desirable_weight, found.undesirable_weight) == 1


def test_labels_are_counted():
    row = chat("a", "b")._replace(kind="kto")
    found = measure(reader([row._replace(label=True)] * 2 + [row._replace(label=False)])).labels
    assert (found.desirable, found.undesirable) == (2, 1)


# Traits --------------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
@example("ß", "SS")
@example("a\x1c b", "A\u2003B")
def test_folding_is_the_same_by_either_way(one, other):
    assert fold(one) == " ".join(one.split()).casefold()
    same = fold(one) == fold(other)
    assert (hash_folded(chat("q", one)) == hash_folded(chat("q", other))) == same


def test_what_tells_rows_apart():
    call = Message("assistant", "", tool_calls=(ToolCall("f", {"x": 1}),))
    rows = [
        chat("a b", "c"),
        chat("a", "b c"),
        chat("a b c"),
        chat("ab", "c"),
        chat("a b", "c", system="s"),
        Conversation(text="a b c", kind="text"),
        chat("a b", "c")._replace(kind="kto", label=True),
        chat("a b", "c")._replace(kind="kto", label=False),
        Conversation((*chat("a b").messages, call)),
        Conversation((*chat("a b").messages, call._replace(tool_calls=(ToolCall("f", {"x": 2}),)))),
        Conversation(
            chat("a").messages,
            kind="preference",
            chosen=chat("", "b").messages,
            rejected=chat("", "c").messages,
        ),
        Conversation(
            chat("a").messages,
            kind="preference",
            chosen=chat("", "c").messages,
            rejected=chat("", "b").messages,
        ),
        Conversation(kind="tokens", token_ids=(1, 2)),
        Conversation(kind="tokens", token_ids=(1, 2), labels=(-100, 2)),
    ]
    hashes = [hash_folded(row) for row in rows]
    assert len(set(hashes)) == len(rows)
    assert hash_folded(chat(" A\tb", "C\n")) == hashes[0]


def test_words_answers_and_talk():
    row = Conversation(
        (
            Message("system", "S"),
            Message("user", "Q"),
            Message("assistant", "A", reasoning="R", tool_calls=(ToolCall("f", {"x": 1}),)),
            Message("assistant", " "),
        )
    )
    assert read_words(row) == "S\nQ\nR\nA\nf {'x': 1}\n "
    assert read_talk(row).startswith("Q\n") and len(read_answers(row)) == 2
    assert count_answer(row) == len("R\nA\nf {'x': 1}")
    text = Conversation(text="long text", kind="text")
    assert read_words(text) == read_talk(text) == "long text" and count_answer(text) == 9
    assert read_talk(Conversation(kind="tokens", token_ids=(5, 6))) == "5 6"


def test_batches_join_to_the_whole(rows):
    whole = collect_traits(rows)
    parts = join_traits([collect_traits(rows[:7]), collect_traits(rows[7:8]), collect_traits(rows[8:])])
    for name in RowTraits.__slots__:
        one, other = getattr(whole, name), getattr(parts, name)
        assert np.array_equal(one, other) and one.dtype == other.dtype, name


def test_scripts():
    letters = count_scripts(
        ["Hello, wörld × 2", "Привет мир!", "你好世界", "こんにちは カタカナ", "", "12345 + 6"]
    )
    found = {SCRIPTS[i]: int(n) for i, n in enumerate(letters) if n}
    assert found == {"Latin": 10, "Cyrillic": 9, "Han": 4, "Kana": 9}
    assert measure(reader([chat("abc", "Где")]), near=False).scripts == {"Latin": 0.5, "Cyrillic": 0.5}
