"""Transforms: what stays and what the rules left out make up all rows; hashes choose, so that order changes nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.core.errors import StudioError
from studio.core.i18n import LANGUAGES, load_catalogue, text
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.filters import FILTERS
from studio.data.row_stats import collect_traits, read_words
from studio.data.text_splitting import rate_tokens, split_rows, split_tokens
from studio.data.transforms import RULES, apply, count_copies, shuffle

LONG = (
    "the quick brown fox jumps over the lazy dog while seven wizards quietly bake a large round cake for tea"
)


class Rows:
    """Rows in memory, as Converted has them on disk."""

    def __init__(self, train, **splits):
        self.splits = {"train": train, **splits}

    def traits(self, split="train"):
        return collect_traits(self.splits[split])

    def iterate(self, split="train"):
        return enumerate(self.splits[split])


def chat(question: str, answer: str = "yes") -> Conversation:
    return Conversation((Message("user", question), Message("assistant", answer)))


def choose(rows, splits=None, evaluation=None, weight=1.0, seed=42, **fields):
    spec = DatasetSpec(source="x", **fields)
    places = () if evaluation is None else ((evaluation, "train"),)
    return apply(Rows(rows, **(splits or {})), spec, seed=seed, evaluation=places, weight=weight)


def kept(selection) -> list[int]:
    return selection.rows.tolist()


words = st.sampled_from(
    ["", "a", "b", "A", " b ", LONG, LONG + " and more", LONG.replace("fox", "cat"), "sk-" + "a1" * 20]
)
chats = st.lists(st.builds(chat, words, words), max_size=12)
fields = st.fixed_dictionaries(
    {
        "duplicates": st.sampled_from(["keep", "exact", "near"]),
        "overlap": st.sampled_from(["keep", "exact", "near"]),
        "shuffle": st.booleans(),
        "max_rows": st.integers(0, 6),
        "filters": st.fixed_dictionaries(
            {},
            optional={
                "min_answer_characters": st.sampled_from(["0", "1", "50"]),
                "max_characters": st.sampled_from(["0", "10", "1000"]),
                "contains": st.sampled_from(["fox", "a\nb"]),
                "answer_not_contains": st.just("Fox"),
                "without_secrets": st.just("keys"),
            },
        ),
    }
)


@pytest.mark.computing
@settings(max_examples=150, deadline=None)
@given(chats, chats, fields, st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]))
def test_every_row_stays_or_is_counted(rows, evaluation, fields, weight):
    found = choose(rows, {"validation": evaluation}, weight=weight, **fields)
    assert len(found.rows) + sum(found.filtered.values()) == len(rows)
    assert len(set(kept(found))) == len(found.rows) == len(found.copies)
    assert all(count > 0 for count in found.filtered.values())
    assert (found.copies >= 1).all() and (found.copies <= np.ceil(weight)).all()
    assert set(found.filtered) <= {rule.name for rule in FILTERS} | set(RULES)
    if not fields["shuffle"]:
        assert kept(found) == sorted(kept(found))


@settings(max_examples=60, deadline=None)
@given(chats, st.sampled_from(["exact", "near"]))
def test_without_duplicates_nothing_more_is_left_out(rows, which):
    once = [rows[i] for i in kept(choose(rows, duplicates=which))]
    again = choose(once, duplicates=which)
    assert kept(again) == list(range(len(once))) and not again.filtered


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds(chat, st.text(max_size=5), words), max_size=30), st.randoms(), st.floats(0, 2))
def test_hashes_choose_whatever_the_order(rows, random, weight):
    order = list(range(len(rows)))
    random.shuffle(order)
    moved = [rows[i] for i in order]

    def say(rows, selection):
        pairs = zip(kept(selection), selection.copies.tolist(), strict=True)
        return [(" ".join(read_words(rows[i]).split()).casefold(), copies) for i, copies in pairs]

    assert sorted(say(rows, choose(rows, weight=weight))) == sorted(say(moved, choose(moved, weight=weight)))
    assert say(rows, choose(rows, shuffle=True)) == say(moved, choose(moved, shuffle=True))
    taken = choose(rows, shuffle=True, max_rows=5), choose(moved, shuffle=True, max_rows=5)
    assert say(rows, taken[0]) == say(moved, taken[1])


def test_weights_take_their_share():
    hashes = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64)
    for weight in (0, 0.1, 0.5, 0.999, 1, 2, 2.25):
        copies = count_copies(hashes, weight)
        assert copies.mean() == pytest.approx(weight, abs=0.015)
        assert set(copies.tolist()) <= {int(weight), int(np.ceil(weight))}
    assert (count_copies(hashes, 0.2) <= count_copies(hashes, 0.5)).all(), "more weight only adds rows"


def test_shuffling_depends_on_the_seed_only():
    hashes = np.repeat(np.arange(50, dtype=np.uint64), 4)
    orders = [shuffle(hashes, seed).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == list(range(200)) for order in orders)
    assert shuffle(hashes[:0], 1).tolist() == []
    runs = np.count_nonzero(np.diff(hashes[orders[0]].astype(np.int64)) == 0)
    assert runs < 20, "copies do not stay together"


def test_duplicates_the_first_stays():
    rows = [chat(LONG), chat("other"), chat(LONG.upper()), chat(LONG + " now"), chat(LONG + " now", "no")]
    assert kept(choose(rows, duplicates="exact")) == [0, 1, 3, 4]
    near = choose(rows, duplicates="near")
    assert kept(near) == [0, 1] and near.filtered == {"duplicate": 1, "near_duplicate": 2}


def test_what_was_compared_before_is_not_read_again(tmp_path):
    rows = [chat(LONG), chat("b"), chat(LONG + " now"), chat(LONG + " too")]
    spec = DatasetSpec(source="x", duplicates="near", overlap="near")
    first = apply(Rows(rows, test=[chat(LONG + " too")]), spec, cache=tmp_path)
    heard: list[int] = []
    again = apply(Rows(rows, test=[chat(LONG + " too")]), spec, cache=tmp_path, on_rows=heard.append)
    assert first.filtered == again.filtered == {"overlap": 1, "near_overlap": 2} and not heard
    other = apply(Rows(rows, test=[chat("b")]), spec, cache=tmp_path, on_rows=heard.append)
    assert other.filtered == {"overlap": 1, "near_duplicate": 2} and heard
    assert {path.suffix for path in tmp_path.iterdir()} == {".npy"}


def test_a_row_that_a_filter_left_out_makes_no_other_a_duplicate():
    rows = [chat(LONG, "no"), chat(LONG, "yes")]
    found = choose(rows, duplicates="near", filters={"answer_not_contains": "no"})
    assert kept(found) == [1] and found.filtered == {"answer_not_contains": 1}


def test_overlap_with_every_split_and_a_source_of_its_own():
    rows = [chat("a"), chat(LONG + " x"), chat("c"), chat("d")]
    splits = {"validation": [chat("A ")], "test": [chat("zzz"), chat(LONG)]}
    own = Rows([chat("c")])
    assert kept(choose(rows, splits, own)) == [0, 1, 2, 3]
    exact = choose(rows, splits, own, overlap="exact")
    assert kept(exact) == [1, 3] and exact.filtered == {"overlap": 2}
    near = choose(rows, splits, own, overlap="near")
    assert kept(near) == [3] and near.filtered == {"overlap": 2, "near_overlap": 1}
    assert kept(choose(rows, overlap="near")) == [0, 1, 2, 3], "nothing is evaluated on"


def test_rows_for_evaluation_pass_the_filters_only():
    table = Rows([], validation=[chat("a"), chat("a"), chat("bb")])
    spec = DatasetSpec(
        source="x", duplicates="near", max_rows=1, shuffle=True, filters={"max_characters": "4"}
    )
    found = apply(table, spec, "validation")
    assert kept(found) == [0, 1] and found.filtered == {"max_characters": 1}


FILTERED = {
    "min_characters": ("5", [0, 1, 3]),
    "max_characters": ("5", [2]),
    "min_answer_characters": ("1", [0, 1, 2]),
    "max_answer_characters": ("3", [0, 2, 3]),
    "min_turns": ("3", [1]),
    "max_turns": ("2", [0, 2, 3]),
    "without_secrets": ("all", [0, 2, 3]),
    "contains": ("WEATHER\nnothing else", [0]),
    "not_contains": ("weather", [1, 2, 3]),
    "answer_not_contains": ("me@", [0, 2, 3]),
}


@pytest.mark.parametrize("rule", FILTERS, ids=lambda rule: rule.name)
def test_each_filter(rule):
    more = (Message("user", "and?"), Message("assistant", "write me@example.org"))
    rows = [chat("how is the weather"), chat("hello")._replace(messages=chat("hello").messages + more)]
    rows += [chat("a"), chat("weak tea", " ")]
    value, wanted = FILTERED[rule.name]
    found = choose(rows, filters={rule.name: value})
    assert kept(found) == wanted and found.filtered == {rule.name: 4 - len(wanted)}


@pytest.mark.parametrize(
    "filters", [{"min_length": "3"}, {"min_turns": "-1"}, {"contains": " \n"}, {"without_secrets": "no"}]
)
def test_a_filter_that_cannot_be_is_refused_in_words(filters, english):
    with pytest.raises(StudioError) as refusal:
        choose([chat("a")], filters=filters)
    for part in (refusal.value.what, refusal.value.why, refusal.value.fix):
        assert english(part) != part.id and "{" not in english(part)


def test_every_rule_has_its_words():
    for language in LANGUAGES:
        catalogue = load_catalogue(language)
        for name in (*RULES, *(rule.name for rule in FILTERS)):
            assert "7" in catalogue.say(text(f"data.rule.{name}", rows=7)), name
        for rule in FILTERS:
            assert catalogue.has(rule.label.id)


# Pieces --------------------------------------------------------------------------------------------------------------

VOCABULARY = ["a", " b", ".", "\n", "3", '!"', " ", "。", "é"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=80), st.integers(1, 20))
def test_pieces_are_the_text(ids, limit):
    edges = split_tokens(np.array(ids, dtype=np.int64), rate_tokens(VOCABULARY), limit)
    sizes = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == len(ids)
    assert ((sizes > 0) & (sizes <= limit)).all()
    assert (sizes[:-1] >= limit // 2).all()


@pytest.mark.parametrize(
    "words, limit, pieces",
    [
        ("a|a|\n|a|a|a", 4, ["aa\n", "aaa"]),
        ("a|a|.| b|a|a", 4, ["aa.", " baa"]),
        ("a|3|.|3| b|a|a", 5, ["a3.3", " baa"]),
        ("a|a|。|a|a|a", 4, ["aa。", "aaa"]),
        ("a|a|a|a|a", 2, ["aa", "aa", "a"]),
        ("a|.| b|\n|a|a| b|a", 5, ["a. b\n", "aa ba"]),
        ('a|!"| b| b|a', 3, ['a!"', " b ba"]),
    ],
)
def test_pieces_end_where_a_reader_would_end_them(words, limit, pieces):
    ids = np.array([VOCABULARY.index(word) for word in words.split("|")])
    edges = split_tokens(ids, rate_tokens(VOCABULARY), limit)
    assert [
        "".join(VOCABULARY[i] for i in ids[a:b]) for a, b in zip(edges, edges[1:], strict=False)
    ] == pieces


def test_pieces_of_many_rows():
    ids, edges = np.zeros(12, np.int32), np.array([0, 3, 3, 10, 12])
    found = split_rows(ids, edges, np.array([2, 0, 1, 3]), rate_tokens(VOCABULARY), 3)
    assert [part.tolist() for part in found] == [[2, 2, 2, 0, 3], [0, 3, 6, 0, 0], [3, 6, 7, 3, 2]]
