"""Near duplicates: against brute force over all pairs, exact in what is reported, the same in every process."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from studio.data.near_duplicates import (
    LEADERS,
    count_clusters,
    cut_shingles,
    find_near,
    measure_jaccard,
    sketch,
)

WORDS = [f"{a}{b}{c}" for a in ("ka", "lo", "mi", "ru", "te") for b in "aeiou" for c in ("", "n", "st", "rm")]


def make_texts(count: int, seed: int = 0, length: int = 60) -> list[str]:
    """Half of the texts are copies of an earlier one with some, mostly few, of their words changed."""
    random = np.random.default_rng(seed)
    texts: list[list[str]] = []
    for i in range(count):
        if i > 10 and random.random() < 0.5:
            words = list(texts[int(random.integers(0, i))])
            for _ in range(int(random.exponential(2.5))):
                words[int(random.integers(0, len(words)))] = str(random.choice(WORDS))
        else:
            words = [
                str(word) for word in random.choice(WORDS, int(random.integers(length // 3, length * 2)))
            ]
        texts.append(words)
    return [" ".join(words) for words in texts]


def shingle_set(words: str) -> set[tuple[str, ...]]:
    split = words.casefold().split()
    return {tuple(split[i : i + 5]) for i in range(max(len(split) - 4, 1))} if split else set()


def jaccard(one: set, other: set) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


@pytest.fixture(scope="module")
def brute():
    """(texts, {(row, earlier row): Jaccard similarity} of all pairs above 0.5)"""
    texts = make_texts(2000)
    sets = [shingle_set(words) for words in texts]
    holders: dict[tuple, list[int]] = {}
    pairs: dict[tuple[int, int], float] = {}
    for row, shingles in enumerate(sets):
        for other in {each for shingle in shingles for each in holders.get(shingle, ())}:
            if (found := jaccard(shingles, sets[other])) > 0.5:
                pairs[row, other] = found
        for shingle in shingles:
            holders.setdefault(shingle, []).append(row)
    return texts, pairs


def test_against_brute_force(brute):
    texts, pairs = brute
    links = find_near(sketch(texts))
    assert (links[:, 1] < links[:, 0]).all() and len(set(links[:, 0])) == len(links)
    assert min(pairs[row, earlier] for row, earlier in links.tolist()) >= 0.8
    found = set(links[:, 0].tolist())
    for bound, recall in ((0.9, 0.995), (0.8, 0.95)):
        wanted = {row for (row, _), similarity in pairs.items() if similarity >= bound}
        assert len(wanted) > 100
        assert len(wanted & found) >= recall * len(wanted)


def test_similarity_is_exact(brute):
    texts, pairs = brute
    some = list(pairs)[:300] + [(5, 3), (100, 7)]
    found = measure_jaccard(sketch(texts), np.array(some))
    wanted = [jaccard(shingle_set(texts[i]), shingle_set(texts[j])) for i, j in some]
    assert np.allclose(found, wanted, atol=1e-12)


def test_shingles_are_those_of_the_words():
    texts = make_texts(50) + [
        "",
        "one",
        "one two three four",
        "A  b\tC d\ne F",
        "Straße und MASSE und Straße und Masse",
    ]
    hashes, edges = cut_shingles(texts)
    for i, words in enumerate(texts):
        own = hashes[edges[i] : edges[i + 1]]
        assert len(own) == len(shingle_set(words)) and (np.diff(own.astype(np.int64)) > 0).all()
    alike, edges = cut_shingles(["The  quick BROWN fox jumps over", "the quick brown\nfox jumps OVER "])
    assert np.array_equal(alike[: edges[1]], alike[edges[1] :])


def test_characters_are_the_words_of_scripts_without_spaces():
    one = "今天天气很好我们一起去公园散步然后去吃饭吧因为时间还早"
    _, edges = cut_shingles([one, "weather 今天 is 很好"])
    assert np.diff(edges).tolist() == [len(one) - 4, 2]  # six: weather 今 天 is 很 好
    texts = [
        one * 2 + "以及更多的内容可以比较",
        one * 2 + "以及更多的内容可以比校",
        "完全不同的一句话说的是别的事情没有关系",
    ]
    assert find_near(sketch(texts)).tolist() == [[1, 0]]


def test_empty_texts_are_no_duplicates_and_short_ones_only_of_themselves():
    texts = ["", "  ", "yes", "Yes ", "no", "yes sir", ""]
    assert find_near(sketch(texts)).tolist() == [[3, 2]]
    assert find_near(sketch([])).shape == (0, 2)
    assert find_near(sketch(["", ""])).shape == (0, 2)


def test_many_copies_of_one_text_are_one_cluster():
    base = make_texts(1, length=100)[0].split() * 2
    texts = [" ".join([*base, f"number{i}"]) for i in range(20 * LEADERS)]
    links = find_near(sketch(texts))
    assert len(links) == len(texts) - 1 and count_clusters(links) == 1


def test_a_row_is_compared_with_several_of_its_bucket():
    one, other = make_texts(1, length=90)[0], make_texts(1, seed=5, length=90)[0]
    found = sketch([one, other, other + " more"])
    crowded = dataclasses.replace(found, bands=np.zeros_like(found.bands))
    assert find_near(crowded).tolist() == [[2, 1]]


def test_with_a_boundary_only_rows_across_it_are_linked():
    text, other = make_texts(1, length=90)[0], make_texts(1, seed=5, length=90)[0]
    links = find_near(sketch([text, other, text + " more", text + " more", other + " x y"]), first=2)
    assert links.tolist() == [[2, 0], [3, 0], [4, 1]]
    assert find_near(sketch([text, text]), first=0).shape == (0, 2)


def test_take_keeps_what_is_compared():
    texts = make_texts(200, seed=3)
    rows = np.arange(0, 200, 2)
    taken = find_near(sketch(texts).take(rows))
    assert taken.tolist() == find_near(sketch([texts[i] for i in rows])).tolist() and len(taken) > 5


def test_the_order_of_batches_changes_nothing(monkeypatch):
    texts = make_texts(300, seed=4)
    whole = sketch(texts)
    heard: list[int] = []
    monkeypatch.setattr("studio.data.near_duplicates.BATCH_CHARACTERS", 700)
    parted = sketch(iter(texts), heard.append)
    assert len(heard) > 10 and heard[-1] == 300
    for name in ("shingles", "edges", "bands", "signatures"):
        assert np.array_equal(getattr(whole, name), getattr(parted, name))


def test_every_process_finds_the_same():
    code = (
        "import hashlib; from tests.data.test_near_duplicates import make_texts\n"
        "from studio.data.near_duplicates import find_near, sketch\n"
        "s = sketch(make_texts(300)); d = hashlib.sha256(s.shingles.tobytes() + s.bands.tobytes())\n"
        "d.update(find_near(s).tobytes()); print(d.hexdigest())"
    )
    root = str(Path(__file__).resolve().parents[2])
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "12345")
    }
    assert len(answers) == 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_equal_minima_estimate_what_two_rows_share(share):
    """Their share is that of the hashes in common, within three standard deviations."""
    from studio.data.near_duplicates import PERMUTATIONS, draw_permutations, hash_minima

    both = np.random.default_rng(0).permutation(2**20)[:3000].astype(np.uint32) * np.uint32(2654435761)
    common = round(1000 * 2 * share / (1 + share))
    rows = both[:1000], both[1000 - common : 2000 - common]
    ours = hash_minima(np.concatenate(rows), np.array([0, 0, 1000, 2000]), draw_permutations())
    assert abs((ours[1] == ours[2]).mean() - share) < 3 * (share * (1 - share) / PERMUTATIONS) ** 0.5
    assert (ours[0] == 0xFFFFFFFF).all()
