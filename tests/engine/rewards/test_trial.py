"""Rewards tried before training: who wins, what is told, what is refused with which reason."""

import math

import pytest

from studio.core.i18n import load_catalogue
from studio.core.recipe import RewardSpec
from studio.engine.rewards import open_rewards
from studio.engine.rewards.reward import Answered, RewardSet
from studio.engine.rewards.trial import TrialRow, count_bins, try_rewards

ROWS = 12


def rows(*samples, answers=range(ROWS)):
    found = []
    for number, answer in enumerate(answers, 1):
        asked = Answered(
            prompt=({"role": "user", "content": "q"},), answer=str(answer), columns={"answer": str(answer)}
        )
        drawn = tuple(
            Answered(
                prompt=asked.prompt, answer=one.format(answer), columns=asked.columns, length_tokens=len(one)
            )
            for one in samples
        )
        found.append(TrialRow(number=number, asked=asked, samples=drawn))
    return found


def attempt(tmp_path, name, given, options=None, compares=True):
    with open_rewards([RewardSpec(name=name, options=options or {})], folder=tmp_path, seed=1) as rewards:
        return try_rewards(rewards, given, compares=compares)


def code(tmp_path, words):
    path = tmp_path / "mine.py"
    path.write_text(words, encoding="utf-8")
    return f"file:{path}"


def english(message):
    return load_catalogue("en").say(message)


def test_a_reward_that_tells_right_from_wrong_is_not_refused(tmp_path):
    trial = attempt(tmp_path, "exact", rows("{}", "wrong, and long"))
    assert trial.refused is None and trial.wins == 1.0 and trial.compared == ROWS and trial.form == "{}"
    assert trial.sampled == 2 * ROWS and trial.mean == 0.5 and trial.equal_groups == 0.0
    assert (
        trial.histogram.counts[0] == trial.histogram.counts[-1] == ROWS
        and sum(trial.histogram.counts) == 2 * ROWS
    )
    assert trial.deviation == pytest.approx(math.sqrt(0.5)) and trial.length_correlation == pytest.approx(
        -1.0
    )
    assert trial.repeatable and trial.failed == 0 and trial.seconds_per_call > 0
    kinds = {case.kind: case.scores.total for case in trial.cases if case.row == 1}
    assert kinds["given"] == 1 and kinds["other"] == 0 and kinds["empty"] == 0


def test_a_reward_that_gives_all_the_same_is_refused(tmp_path):
    trial = attempt(
        tmp_path, code(tmp_path, "def f(completions, **more): return [1.0 for c in completions]"), rows()
    )
    assert "12 of 12" in english(trial.refused) and trial.wins == 0.0


def test_a_reward_the_wrong_way_round_is_refused(tmp_path):
    words = "def f(completions, answer, **more): return [float(c != a) for c, a in zip(completions, answer)]"
    assert "12 of 12" in english(attempt(tmp_path, code(tmp_path, words), rows()).refused)


def test_a_reward_may_want_the_answer_in_a_form_of_its_own(tmp_path):
    words = (
        "import re\n"
        "def f(completions, answer, **more):\n"
        "    found = [re.search('<answer>(.*)</answer>', c) for c in completions]\n"
        "    return [float(m.group(1) == a) for m, a in zip(found, answer)]\n"
    )
    trial = attempt(tmp_path, code(tmp_path, words), rows())
    assert trial.refused is None and trial.form == "<answer>{}</answer>" and trial.wins == 1.0
    assert "NoneType" in english(trial.warnings[0]), "empty and cut answers it cannot take"
    trial = attempt(tmp_path, code(tmp_path, words), rows("{}", "x"))
    assert "24 of 24" in english(trial.refused), "and its model writes no such form"


def test_what_only_judges_form_is_told_and_not_refused(tmp_path):
    trial = attempt(tmp_path, "length", rows("{}"), {"tokens": 5}, compares=False)
    assert trial.refused is None and "form alone" in english(trial.warnings[0])


def test_nothing_to_compare_with_is_refused(tmp_path):
    trial = attempt(tmp_path, "number", rows("{}", answers=["red", "green"]))
    assert "No reward judges any" in english(trial.refused)
    assert "no row" in english(attempt(tmp_path, "exact", []).refused)


def test_rows_that_all_have_one_answer_cannot_be_compared(tmp_path):
    trial = attempt(tmp_path, "exact", rows("{}", answers=["yes", "yes"]))
    assert (
        trial.wins is None
        and trial.refused is None
        and "no given answers that differ" in english(trial.warnings[0])
    )


def test_a_reward_that_always_fails_is_refused_with_its_words(tmp_path):
    trial = attempt(tmp_path, code(tmp_path, "def f(completions, **more): return [1 / 0]"), rows())
    assert "ZeroDivisionError: division by zero (line 1)" in english(trial.refused)


def test_groups_without_variance_are_told(tmp_path):
    trial = attempt(tmp_path, "exact", rows("wrong", "also wrong"))
    assert trial.equal_groups == 1.0 and any("100 %" in english(one) for one in trial.warnings)


def test_length_and_chance_are_told(tmp_path):
    words = "import time\ndef f(completions, **more): return [len(c) + time.perf_counter() % 1e-3 for c in completions]"
    trial = attempt(
        tmp_path, code(tmp_path, words), rows("{0}", "{0}{0}", "long, longer, {0}"), compares=False
    )
    told = " ".join(map(english, trial.warnings))
    assert "Longer answers score higher" in told and "second call" in told and not trial.repeatable


def test_histogram():
    assert count_bins([]) is None
    assert count_bins([2.0, 2.0]).counts == (2,)
    found = count_bins([0.0, 0.05, 0.5, 1.0])
    assert found.counts == (2, 0, 0, 0, 0, 1, 0, 0, 0, 1)


def test_clock_is_asked_around_the_samples_alone():
    class Slow:
        name = "slow"
        now = 0.0

        def score(self, answers):
            self.now += len(answers)
            return [1.0] * len(answers)

    slow = Slow()
    trial = try_rewards(RewardSet([slow], [1]), rows("a", "b"), compares=False, clock=lambda: slow.now)
    assert trial.seconds_per_call == 1.0
