"""Metrics: against sacrebleu and rouge-score, whose values are kept, and by hand for what each row says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from studio.core.i18n import LOCALES
from studio.core.metrics import METRICS
from studio.core.metrics.choice import read_choice_letter, read_options
from studio.core.metrics.metric import AnsweredRow, MetricSettings
from studio.core.metrics.normalised import normalise
from studio.core.metrics.number import read_number
from studio.core.metrics.rouge_l import measure_common, split_words

KEPT = json.loads((Path(__file__).parent / "fixtures" / "answer_scores.json").read_text(encoding="utf-8"))
BY_NAME = {metric.name: metric for metric in METRICS}
OPTIONS = "Which fruit?\n\nA. apples\nB. pears\nC. plums"


def score(name, given, expected, prompt="", **settings):
    """The value of one row, None where it says nothing."""
    metric = BY_NAME[name]
    counts = metric.count(
        AnsweredRow(given=given, expected=expected, prompt=prompt), MetricSettings(**settings)
    )
    return None if counts is None else metric.total(counts)


def test_names_are_unique_and_have_words_in_both_languages():
    assert len(BY_NAME) == len(METRICS)
    for tag in ("en", "zh-CN"):
        words = json.loads((LOCALES / f"{tag}.json").read_text(encoding="utf-8"))
        assert not [name for name in BY_NAME if not words.get(f"metric.{name}", "").strip()]


def test_chrf_is_that_of_sacrebleu():
    metric, sums = BY_NAME["chrf"], None
    for row in KEPT["rows"]:
        counts = metric.count(AnsweredRow(given=row["given"], expected=row["expected"]), MetricSettings())
        assert abs(100 * metric.total(counts) - row["chrf"]) < 1e-9, row
        sums = counts if sums is None else tuple(map(sum, zip(sums, counts, strict=True)))
    assert abs(100 * metric.total(sums) - KEPT["corpus_chrf"]) < 1e-9, "of all rows together"


def test_rouge_l_is_that_of_rouge_score_wherever_texts_are_ascii():
    compared = [row for row in KEPT["rows"] if row["rouge_l"] is not None]
    assert len(compared) > 80
    for row in compared:
        assert abs(score("rouge_l", row["given"], row["expected"]) - row["rouge_l"]) < 1e-12, row


def test_rouge_l_counts_words_of_other_scripts():
    assert split_words("Über die Brücke") == ["über", "die", "brücke"]
    assert split_words("我爱 Python3") == ["我", "爱", "python3"]
    assert score("rouge_l", "今天天气很好", "今天天气不好") == pytest.approx(5 / 6)


def test_the_common_subsequence_is_the_longest():
    import random

    draw = random.Random(1)
    for _ in range(60):
        one, other = ([draw.choice("abcd") for _ in range(draw.randint(0, 70))] for _ in range(2))
        row = [0] * (len(other) + 1)
        for sign in one:
            before = 0
            for place, met in enumerate(other, 1):
                before, row[place] = (
                    row[place], before + 1 if sign == met else max(row[place], row[place - 1]),
                )  # fmt: skip
        assert measure_common(one, other) == row[-1]


@pytest.mark.parametrize(
    ("given", "wanted", "exact", "alike"),
    [
        (" it is 1\n", "it is 1", 1, 1),
        ("It is  1.", "it is 1", 0, 1),
        ("ｉt is １", "it is 1", 0, 1),
        ("it is 1, 2", "it is 1 2", 0, 0),
        ("", "", 1, 1),
        ("", "x", 0, 0),
        ('{"a": 1}', '{"a":1}', 0, 0),
    ],
)
def test_what_counts_as_the_expected_answer(given, wanted, exact, alike):
    assert (score("exact", given, wanted), score("normalised", given, wanted)) == (exact, alike)


def test_normalised_words_stay_themselves():
    for words in ("It is  1.", "“Groß!”", "１２３", "  "):
        assert normalise(normalise(words)) == normalise(words)


def test_an_answer_may_hold_the_expected_one():
    assert score("contains", "It is Paris, of course.", "paris") == 1
    assert score("contains", "It is London.", "paris") == 0


def test_a_pattern_is_of_all_rows_or_of_each():
    assert score("regex", "order 12-b", "x", pattern=r"\d+-[a-z]\b") == 1
    assert score("regex", "order 12", "x", pattern=r"\d+-[a-z]\b") == 0
    assert score("regex", "the colour", "colou?r") == 1
    assert score("regex", "anything", "(") is None, "an answer that is no pattern"
    regex = BY_NAME["regex"]
    assert regex.needs_expected(MetricSettings()) and not regex.needs_expected(MetricSettings(pattern="x"))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("1,234.5", 1234.5), ("1.234,5", 1234.5), ("1'234.5", 1234.5), ("1,234", 1234), ("1.234", 1.234),
        ("1\u202f234,5", 1234.5), ("3,5", 3.5), ("0,125", 0.125), ("1.234.567", 1234567), ("1,234,567.89", 1234567.89),
        ("-3", -3), ("grade-3", 3), ("10-5", 5), ("\u22124", -4), ("1e3", 1000), (".5", 0.5), ("1/2", 0.5),
        ("3 / 4", 0.75), (r"\frac{3}{4}", 0.75),
        (r"so \boxed{\frac{1}{2}}, not 7", 0.5), ("steps 1, 2\n#### 72\nbye 3", 72),
        ("The total is $1,200.", 1200), ("３.５", 3.5), ("first 1, 2, then 3.", 3), ("2024-05-06", 6), ("1/0", None),
        ("none", None), ("", None),
    ],
)  # fmt: skip
def test_the_number_that_an_answer_comes_to(words, value):
    found = read_number(words)
    assert (None if found is None else found[0]) == value


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        ("It is 12.", "12", 1), ("It is 13.", "12", 0), ("no idea", "12", 0), ("12", "no number", None),
        ("50 %", "0.5", 1), ("50%", "50", 1), ("0.5", "50%", 1), ("5%", "50%", 0), (r"\boxed{1{,}200}", "1200", 0),
        ("0.333333333", "1/3", 1), ("0.33", "1/3", 0),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_numbers(given, wanted, value):
    assert score("number", given, wanted) == value


def test_how_far_off_a_number_may_be_is_for_the_person_to_say():
    assert score("number", "102", "100") == 0 and score("number", "102", "100", tolerance=0.05) == 1


@pytest.mark.parametrize(
    ("given", "letter"),
    [
        ("B", "B"), ("(b)", "B"), ("B. pears", "B"), ("pears", "B"), ("Pears.", "B"), ("The answer is B.", "B"),
        ("I think plums are the best answer: C", "C"), ("**C**", "C"), (r"\boxed{A}", "A"), ("答案是C。", "C"),
        ("It must be pears, I guess", "B"), ("apples or pears", None), ("Answer: D", None), ("", None),
    ],
)  # fmt: skip
def test_which_option_an_answer_chooses(given, letter):
    assert read_choice_letter(given, read_options(OPTIONS)) == letter


def test_options_are_scored_by_letter_or_words():
    assert score("choice", "B) pears", "pears", OPTIONS) == 1
    assert score("choice", "A", "pears", OPTIONS) == 0
    assert score("choice", "(C)", "C") == 1, "without options in the question"
    assert score("choice", "A", "figs", OPTIONS) is None


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ('{"a": 1, "b": {"c": "x"}, "d": [1, 2]}', 1), ('```json\n{"d":[1,2],"b":{"c":"x"},"a":1.0}\n```', 1),
        ('{"a": true, "b": {"c": "x"}, "d": [1, 2]}', 3 / 4), ('{"a": 1, "b": {"c": "x"}, "d": [1, 2], "e": 0}', 4 / 5),
        ('{"a": 1}', 1 / 4), ("{}", 0), ("no JSON", 0), ("", 0),
    ],
)  # fmt: skip
def test_json_is_compared_field_by_field(given, value):
    assert score("json", given, '{"a": 1, "b": {"c": "x"}, "d": [1, 2]}') == pytest.approx(value)


def test_json_says_nothing_of_rows_that_want_none():
    assert score("json", "{}", "a sentence") is None and score("json", "1", "1") is None
    assert score("json", "{}", "{}") == 1 and score("json", "[" * 500, "{}") == 0


def test_perplexity_weighs_tokens_and_may_be_infinite():
    metric = BY_NAME["perplexity"]
    rows = [
        AnsweredRow(given="", expected="x", loss_nats=nats, loss_tokens=tokens)
        for nats, tokens in ((2.0, 1), (4.0, 5))
    ]
    counts = [metric.count(row, MetricSettings()) for row in rows]
    assert metric.total([sum(part) for part in zip(*counts, strict=True)]) == pytest.approx(math.exp(6 / 6))
    assert metric.total((9999.0, 1.0)) == math.inf
    assert metric.count(AnsweredRow(given="", expected="x"), MetricSettings()) is None


@pytest.mark.parametrize(
    ("expected", "prompt", "names"),
    [
        ("12", "", {"exact", "normalised", "number", "perplexity"}),
        ("Some thought.\n#### 12", "", {"exact", "normalised", "number", "perplexity"}),
        ('{"a": 1}', "", {"exact", "normalised", "json", "perplexity"}),
        ("pears", OPTIONS, {"exact", "normalised", "choice", "perplexity"}),
        ("one two three four five six seven eight 9x", "", {"exact", "normalised", "rouge_l", "chrf", "perplexity"}),
    ],
)  # fmt: skip
def test_metrics_that_suit_the_answers(expected, prompt, names):
    rows = [AnsweredRow(given="", expected=expected, prompt=prompt)] * 3
    assert {metric.name for metric in METRICS if metric.suits(rows)} == names
