"""Data for other trainings is refused with the true reason; data that only looks like it is not."""

import pytest

from studio.core.errors import StudioError
from studio.data.other_tasks import refuse_foreign

STEPS = ["Seven crates hold seven times four.", "That makes twenty eight."]
SEARCH = {
    "query": "when does it go",
    "pos": ["It goes at noon."],
    "neg": ["Fish is sold here.", "The pier is old."],
}
RATED = {"question": "How many?", "label": {"steps": [{"completions": [{"text": STEPS[0], "rating": 1}]}]}}
TOOLS = [{"name": "ask_tide", "description": "Says when it is high", "parameters": {}}]
CALLS = {"id": "7", "question": [[{"role": "user", "content": "When is it high?"}]], "function": TOOLS}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (SEARCH, "search"),
        ({"prompt": "How many?", "completions": STEPS, "labels": [True, False]}, "steps"),
        (RATED, "steps"),
        (CALLS, "unanswered"),
    ],
)
def test_refused(row, kind):
    with pytest.raises(StudioError) as error:
        refuse_foreign(tuple(row), [row] * 5)
    assert error.value.what.id == f"data.foreign.{kind}"


@pytest.mark.parametrize(
    "row",
    [
        {**SEARCH, "answer": "At noon."},
        {"query": "when", "pos": ["It goes at noon."]},
        {"text": STEPS[0], "words": ["Seven", "crates"], "labels": [0, 1]},
        {"question": "Which?", "choices": STEPS, "labels": [3, 8]},
        {**CALLS, "answer": "At six."},
        {"problem": "How many?", "solution": STEPS[1], "generations": STEPS, "correctness": [True, False]},
        {"prompt": [{"role": "user", "content": "When?"}], "reward_model": {"ground_truth": "6"}},
    ],
)
def test_not_refused(row):
    refuse_foreign(tuple(row), [row] * 5)


@pytest.mark.parametrize("judgement", ["rating", "label"])
def test_steps_with_their_ratings_inside_are_refused(judgement):
    row = {"problem": "How many?", "steps": [{"step": one, judgement: 1} for one in STEPS]}
    with pytest.raises(StudioError) as error:
        refuse_foreign(tuple(row), [row] * 5)
    assert error.value.what.id == "data.foreign.steps"


def test_checked_attempts_beside_a_talk_are_not_judged_steps():
    talk = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": STEPS[1]}]
    row = {"generations": STEPS, "correctness": [True, False], "messages": talk}
    refuse_foreign(tuple(row), [row] * 5)
