"""Sentences whose words have tags, a word a line."""

from __future__ import annotations

import io

import pytest

from studio.data.containers import tagged_words

NAMES = (
    "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\n\n"
    "Peter NNP B-NP B-PER\nBlack NNP I-NP I-PER\n\n"
) * 3
TREES = (
    "# sent_id = 1\n# text = Don't buy.\n1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tDo\tdo\tAUX\tVBP\t_\t3\taux\t_\t_\n2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_\n"
    "3\tbuy\tbuy\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No\n4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_\n\n"
)


def read(words):
    return [row.values for row in tagged_words.iterate(io.BytesIO(words.encode()), "utf-8", None)]


@pytest.mark.parametrize("suffix", [".conll", ".txt", ".iob"])
def test_a_sentence_is_a_row_and_its_tags_are_columns(suffix):
    assert tagged_words.accept(NAMES.encode(), suffix)
    found = read(NAMES)
    assert len(found) == 6
    assert found[:2] == [
        {"text": "EU rejects German", "tags_2": "NNP VBZ JJ", "tags_3": "B-NP B-VP B-NP", "tags": "B-ORG O B-MISC"},
        {"text": "Peter Black", "tags_2": "NNP NNP", "tags_3": "B-NP I-NP", "tags": "B-PER I-PER"},
    ]  # fmt: skip


def test_tabs_part_words_as_well():
    words = "the\tO\nGold\tB-LOC\nCoast\tI-LOC\n\n" * 4
    assert tagged_words.accept(words.encode(), ".tsv")
    assert read(words)[0] == {"text": "the Gold Coast", "tags": "O B-LOC I-LOC"}


def test_universal_dependencies_say_their_text_and_the_classes_of_words():
    assert tagged_words.accept((TREES * 2).encode(), ".conllu")
    assert read(TREES) == [
        {"text": "Don't buy.", "upos": "AUX PART VERB PUNCT", "lemma": "do not buy ."},
    ]


@pytest.mark.parametrize(
    "words",
    [
        "two words\nand more\n\n" * 9,
        "word\tmeaning\nsalt\twhat the sea has\n" * 9,
        "key O\nvalue O\n\n" * 9,
        "B-ORG\nO\n\n" * 9,
        "the O\nGold B-LOC\n" * 9,
    ],
)
def test_other_lists_of_words_are_none(words):
    assert not tagged_words.accept(words.encode(), ".txt")
