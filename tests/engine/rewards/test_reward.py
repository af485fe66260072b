"""Scores of answers: the weighted sum, who says nothing, who fails, and when a run is stopped for it."""

import math

import pytest

from studio.core.errors import RecipeError, StudioError
from studio.core.i18n import load_catalogue
from studio.core.recipe import RewardSpec
from studio.engine.rewards import make_reward, open_rewards
from studio.engine.rewards.given_answer import find_expected, take_part
from studio.engine.rewards.reward import Answered, Failed, RewardSet, name_apart


def answered(answer, prompt="q", /, **columns):
    return Answered(prompt=({"role": "user", "content": prompt},), answer=answer, columns=columns)


class Says:
    def __init__(self, name, *scores):
        self.name, self.scores = name, scores

    def score(self, answers):
        return [self.scores[i % len(self.scores)] for i in range(len(answers))]


def test_total_is_the_weighted_sum(tmp_path):
    specs = [
        RewardSpec(name="exact", weight=2.0),
        RewardSpec(name="contains", weight=0.5, options={"words": ["Lisbon"]}),
    ]
    with open_rewards(specs, folder=tmp_path, seed=1) as rewards:
        assert rewards.names == ("exact", "contains") and rewards.weights == (2.0, 0.5)
        scores = rewards.score(
            [answered("Lisbon.", answer="lisbon"), answered("in Lisbon", answer="Rome"), answered("Lisbon")]
        )
    assert [one.per_reward for one in scores] == [(1.0, 1.0), (0.0, 1.0), (None, 1.0)]
    assert [one.total for one in scores] == [2.5, 0.5, 0.5]


def test_an_answer_that_could_not_be_judged_is_left_out_and_noted():
    rewards = RewardSet(
        [Says("a", 1.0), Says("b", Failed("raised", "KeyError: 'x'"), math.nan, None)], [1, 1]
    )
    first, second, third = rewards.score([answered("x")] * 3)
    assert math.isnan(first.total) and first.per_reward == (1.0, None)
    assert first.notes == ("b: raised: KeyError: 'x'",)
    assert math.isnan(second.total) and second.notes == ("b: not_finite: nan",)
    assert third.total == 1.0 and third.notes == ()


def test_more_than_a_fifth_failing_stops_with_the_row_at_hand():
    bad = Failed("raised", "ZeroDivisionError: division by zero")
    rewards = RewardSet([Says("mine", 1.0, 1.0, 1.0, bad)], [1])
    with pytest.raises(StudioError) as caught:
        rewards.score([answered(f"answer {i}", f"question {i}") for i in range(24)])
    assert caught.value.exit_code == 1
    for language in ("en", "zh-CN"):
        said = load_catalogue(language).say(caught.value.why)
        assert "ZeroDivisionError: division by zero" in said and "answer 23" in said and "question 23" in said


def test_one_in_a_hundred_goes_on():
    rewards = RewardSet([Says("mine", *[1.0] * 99, Failed("raised", "x"))], [1])
    scores = [one for _ in range(10) for one in rewards.score([answered("a")] * 100)]
    assert sum(bool(one.notes) for one in scores) == 10


def test_unknown_names_and_options_are_refused_by_name():
    with pytest.raises(StudioError) as caught:
        make_reward(RewardSpec(name="exakt"))
    assert "exakt" in str(caught.value) and "exact" in str(caught.value)
    with pytest.raises(RecipeError):
        make_reward(RewardSpec(name="exact", options={"colum": "x"}))


def test_names_are_told_apart():
    assert name_apart(["regex", "exact", "regex", "regex"]) == ("regex", "exact", "regex_2", "regex_3")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"answer": "4"}, "4"),
        ({"reward_model": {"style": "rule", "ground_truth": "72"}}, "72"),
        ({"Ground Truth": 12}, "12"),
        ({"fields": {"a": 1}}, None),
        ({"answer": " "}, None),
    ],
)
def test_given_answer_is_found(columns, expected):
    assert find_expected(columns) == expected


def test_thinking_and_tags():
    assert take_part("<think>it is 5</think> 6 ") == "6"
    assert take_part("a<answer>1</answer> b <answer> 2 </answer>", "answer") == "2"
    assert take_part("<answer>1", "answer") is None
