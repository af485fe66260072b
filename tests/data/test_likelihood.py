"""How likely two columns are a question and its answer: names, cells and places together."""

import pytest

from studio.data.columns import measure_columns
from studio.data.likelihood import rank_pairs

ASKED = [f"How many barrels does the mill of Torben number {n} grind a day?" for n in range(12)]
TOLD = [f"It grinds {n + 3} barrels a day, unless the brook behind the mill is frozen." for n in range(12)]
CODE = [f"def grind(barrels):\n    total = {n}\n    return total + sum(barrels)" for n in range(12)]


def rank(given="", /, **columns):
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return rank_pairs([*measure_columns([*columns], rows).values()], given)


def test_questions_stand_before_what_asks_nothing_also_without_names():
    first = rank(aa=ASKED, bb=TOLD)[0]
    assert (first.question, first.answer) == ("aa", "bb") and first.likelihood > 0.8
    assert rank(aa=TOLD, bb=ASKED)[0].likelihood < first.likelihood


def test_names_count_against_the_place():
    cells = {"root_cause": TOLD, "log": [words.upper() for words in TOLD]}
    first = rank(**cells)[0]
    assert (first.question, first.answer) == ("log", "root_cause")


def test_all_pairs_together_are_certain_and_each_answers_a_question_that_is_known():
    pairs = rank(question=ASKED, answer=TOLD, notes=CODE)
    assert len(pairs) == 6 and sum(pair.likelihood for pair in pairs) == pytest.approx(1)
    assert {pair.question for pair in rank("question", question=ASKED, answer=TOLD, notes=CODE)} == {
        "question"
    }


def test_two_answers_of_a_kind_are_never_likely():
    pairs = rank(question=ASKED, first=TOLD, second=[words.lower() for words in TOLD])
    assert pairs[0].likelihood < 0.75


def test_ids_are_neither_and_without_words_there_is_no_pair():
    assert rank(id=[str(n) for n in range(12)], score=[*range(12)]) == []
