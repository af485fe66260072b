"""Each reward of the library: what it gives, where it says nothing, what it cannot be made to do."""

import dataclasses
import sys

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.core.knob import knobs_of
from studio.core.recipe import RewardSpec
from studio.engine.guarded_code.pool import Failed
from studio.engine.rewards import REWARDS, make_reward, open_rewards
from studio.engine.rewards.code import Code
from studio.engine.rewards.reward import Answered
from tests.hub.test_chat_client import say, server  # noqa: F401 - a fixture


def answered(answer, prompt="q", /, *, tokens=0, **columns):
    turns = ({"role": "user", "content": prompt},)
    return Answered(prompt=turns, answer=answer, columns=columns, length_tokens=tokens)


def judge(name, options, one):
    return make_reward(RewardSpec(name=name, options=options)).judge(one)


TAGGED = "<think>because</think><answer>4</answer>"
OPTIONS_ASKED = "Which?\nA) red\nB) blue"


@pytest.mark.parametrize(
    ("name", "options", "one", "score"),
    [
        ("exact", {}, answered("Lisbon. ", answer="lisbon"), 1),
        ("exact", {"to_the_letter": True}, answered("lisbon", answer="Lisbon"), 0),
        ("exact", {"tag": "answer"}, answered(TAGGED, answer="4"), 1),
        ("exact", {"tag": "answer"}, answered("4", answer="4"), 0),
        ("exact", {"column": "gold"}, answered("4", gold="4", answer="5"), 1),
        ("exact", {}, answered("4"), None),
        ("number", {}, answered("so it is 1,234.", solution="... #### 1234"), 1),
        ("number", {}, answered(r"\boxed{\frac{1}{2}}", answer="0.5"), 1),
        ("number", {"tolerance": 0.1}, answered("3.1", answer="3.14159"), 1),
        ("number", {}, answered("3.1", answer="3.14159"), 0),
        ("number", {}, answered("none", answer="3"), 0),
        ("number", {}, answered("3", answer="three"), None),
        ("choice", {}, answered("The answer is B", OPTIONS_ASKED, answer="B"), 1),
        ("choice", {}, answered("red", OPTIONS_ASKED, answer="B"), 0),
        ("contains", {}, answered("it is in Lisbon now", answer="lisbon"), 1),
        ("contains", {"words": ["a", "z"]}, answered("abc"), 0.5),
        ("contains", {"forbidden": ["sorry"]}, answered("Sorry, no"), 0),
        ("contains", {"forbidden": ["sorry"]}, answered("yes"), 1),
        ("json", {}, answered('{"a": 1, "b": 2}', answer='{"a": 1, "b": 3}'), 0.5),
        ("json", {"valid": 0.2}, answered('{"a": 1, "b": 2}', answer='{"a": 1, "b": 3}'), 0.6),
        ("json", {}, answered("```json\n{\"a\": 1}\n```", answer='{"a": 1}'), 1),
        ("json", {}, answered("no", answer='{"a": 1}'), 0),
        ("json", {}, answered('{"a": 1}', answer="no JSON"), None),
        ("json", {"keys": ["a", "b"]}, answered('{"a": 1}'), 0.5),
        ("json", {"keys": ["a"]}, answered("[1]"), 0),
        ("tags", {}, answered(TAGGED), 1),
        ("tags", {}, answered("<think>a</think> <answer>b</answer> and more"), 0),
        ("tags", {}, answered("<answer>b</answer><think>a</think>"), 0),
        ("tags", {}, answered("<think>a<think>b</think><answer>c</answer>"), 0),
        ("tags", {}, answered("a</think><answer>c</answer>"), 0),
        ("tags", {"opened_before": True}, answered("a</think><answer>c</answer>"), 1),
        ("tags", {"tags": ["sql"]}, answered("<sql>select 1"), 0),
        ("length", {"tokens": 100}, answered("", tokens=100), 1),
        ("length", {"tokens": 100}, answered("", tokens=150), 0.5),
        ("length", {"tokens": 100, "shape": "near"}, answered("", tokens=75), 0.75),
        ("length", {"tokens": 100, "shape": "overlong"}, answered("", tokens=80), 0),
        ("length", {"tokens": 100, "shape": "overlong"}, answered("", tokens=90), -0.5),
        ("length", {"tokens": 100, "shape": "overlong", "cache_tokens": 100}, answered("", tokens=50), -0.5),
        ("length", {"tokens": 100, "shape": "overlong"}, answered("", tokens=999), -1),
        ("cosine", {"tokens": 100}, answered("4", tokens=0, answer="4"), 1),
        ("cosine", {"tokens": 100}, answered("4", tokens=50, answer="4"), 0.75),
        ("cosine", {"tokens": 100}, answered("4", tokens=100, answer="4"), 0.5),
        ("cosine", {"tokens": 100}, answered("4", tokens=150, answer="4"), 0.5),
        ("cosine", {"tokens": 100}, answered("5", tokens=0, answer="4"), -1),
        ("cosine", {"tokens": 100}, answered("5", tokens=50, answer="4"), -0.75),
        ("cosine", {"tokens": 100}, answered("5", tokens=150, answer="4"), -0.5),
        ("cosine", {"tokens": 100}, answered("4", tokens=10), None),
        ("cosine", {"tag": "answer"}, answered("4", tokens=0, answer="4"), -1),
        ("cosine", {"right_by": "exact", "right_short": 3}, answered("Lisbon.", tokens=0, answer="lisbon"), 3),
        ("cosine", {"right_by": "choice"}, answered("The answer is B", OPTIONS_ASKED, answer="B"), 1),
        ("repetition", {"words": 2}, answered("a b c d"), 0),
        ("repetition", {"words": 1}, answered("no no no no"), -0.75),
        ("repetition", {"words": 2}, answered("好的好的好的"), -0.6),
        ("repetition", {}, answered("short"), 0),
        ("language", {}, answered("это да", "что?"), 1),
        ("language", {}, answered("abcd 好好好好", "what?"), 0.5),
        ("language", {}, answered("好", "これは何ですか"), 1),
        ("language", {"script": "chinese"}, answered("all English"), 0),
        ("language", {}, answered("42", "what?"), None),
    ],
)  # fmt: skip
def test_score(name, options, one, score):
    found = judge(name, options, one)
    assert found == (score if score is None else pytest.approx(score))


def score_all(name, options, answers, folder):
    with open_rewards([RewardSpec(name=name, options=options)], folder=folder, seed=1) as rewards:
        return [one.per_reward[0] for one in rewards.score(answers)]


def test_regex_searches_or_matches_all_of_it(tmp_path):
    rows = [answered("say 42"), answered("42")]
    assert score_all("regex", {"pattern": r"\d+"}, rows, tmp_path) == [1, 1]
    assert score_all("regex", {"pattern": r"\d+", "whole": True}, rows, tmp_path) == [0, 1]
    assert score_all("regex", {}, [answered("ab", answer="^a"), answered("ab")], tmp_path) == [1, None]


@pytest.mark.computing
def test_a_pattern_that_never_ends_costs_its_row(tmp_path):
    options = {"pattern": "(a+)+$"}
    assert score_all("regex", options, [answered("a"), answered("a" * 60 + "b")], tmp_path) == [1, None]


def test_what_is_no_pattern_is_refused(tmp_path):
    with pytest.raises(StudioError) as caught:
        score_all("regex", {"pattern": "(("}, [], tmp_path)
    assert "((" in str(caught.value)


ADD = "```python\ndef add(a, b):\n    return a + b\n```"
ASSERTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]


@pytest.mark.parametrize(
    ("answer", "columns", "score"),
    [
        (ADD, {"test_list": ASSERTS}, 1),
        (ADD.replace("a + b", "3"), {"test_list": ASSERTS}, 0.5),
        ("no code", {"test_list": ASSERTS}, 0),
        (ADD, {"test": "def check(candidate):\n    assert candidate(1, 1) == 2", "entry_point": "add"}, 1),
        ("print(int(input()) * 2)", {"tests": '{"inputs": ["2", "5"], "outputs": ["4", "11"]}'}, 0.5),
        (ADD, {"tests": '["assert add(1, 1) == 2"]'}, 1),
        (ADD, {}, None),
        ("import os\nos._exit(0)", {"test_list": ASSERTS}, 0),
        ("raise SystemExit", {"test_list": ASSERTS}, 0),
        ("while True: pass", {"test_list": ASSERTS}, 0),
        ("x = bytearray(10 * 2**30)", {"test_list": ASSERTS}, 0),
        ("import socket\nsocket.create_connection(('127.0.0.1', 9))", {"test_list": ASSERTS}, 0),
        ("import builtins\nbuiltins.AssertionError = ZeroDivisionError\ndef add(a, b): return 9",
         {"test_list": ASSERTS}, 0),
    ],
)  # fmt: skip
@pytest.mark.computing
@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_tests_of_code(answer, columns, score, tmp_path):
    rows = [answered(answer, **columns), answered(ADD, test_list=ASSERTS)]
    assert score_all("tests", {"row_s": 2.0}, rows, tmp_path) == [score, 1]


@pytest.mark.parametrize(
    ("said", "score", "notes"),
    [("Good. Score: 8", 0.8, ()), ("I cannot tell.", None, ("judge: unread: I cannot tell.",))],
)
def test_judge_scores_by_its_rubric(server, tmp_path, said, score, notes):  # noqa: F811
    address = server(completions=(200, say(said)))
    options = {"address": address, "model": "big", "rubric": "Is it a capital?"}
    with open_rewards([RewardSpec(name="judge", options=options)], folder=tmp_path, seed=1) as rewards:
        (found,) = rewards.score([answered("Lisbon", "Where?", answer="Lisbon")])
    assert found.per_reward == (score,) and found.notes == notes
    asked = server.seen[-1][2]["messages"][0]["content"]
    assert "Is it a capital?" in asked and "Where?" in asked and "Lisbon" in asked


def test_judge_that_does_not_answer_is_a_note(server, tmp_path):  # noqa: F811
    options = {"address": server(completions=(500, b"broken")), "model": "big", "rubric": "r"}
    with open_rewards([RewardSpec(name="judge", options=options)], folder=tmp_path, seed=1) as rewards:
        (found,) = rewards.score([answered("x")])
    assert (
        found.per_reward == (None,)
        and found.notes[0].startswith("judge: unreachable: ")
        and "500" in found.notes[0]
    )


def test_judge_without_rubric_is_refused(tmp_path):
    with pytest.raises(StudioError):
        score_all("judge", {"address": "http://127.0.0.1:9"}, [], tmp_path)


def test_every_reward_and_option_has_words_in_both_languages():
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        wanted = [f"reward.{kind.name}{part}" for kind in (*REWARDS, Code) for part in ("", ".about")]
        for kind in (*REWARDS, Code):
            for knob in knobs_of(kind):
                wanted += [f"reward.option.{knob.path}", f"reward.option.{knob.path}.help"]
                wanted += [f"reward.option.{knob.path}.{choice}" for choice in knob.choices]
        assert not [id for id in wanted if not words.has(id)]


def test_every_failure_has_words():
    kinds = Failed.__dataclass_fields__
    assert list(kinds) == ["kind", "detail"]
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        for kind in ("raised", "timeout", "memory", "exited", "not_finite", "wrong_length", "wrong_type", "unloaded",
                     "unreachable", "unread"):  # fmt: skip
            assert words.has(f"reward.failed.{kind}")


def test_names_are_unique_and_options_have_defaults():
    names = [kind.name for kind in REWARDS]
    assert len(set(names)) == len(names)
    for kind in REWARDS:
        assert dataclasses.is_dataclass(kind) and kind() == kind()
