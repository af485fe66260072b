"""Two answers and a verdict are a preference, and so are names with rejected in them."""

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.format_detection import understand
from studio.data.row import Row, RowError


def look(row, count=6):
    return understand(list(row), [row] * count, DatasetSpec(source="x"))


def sides(row):
    found = look(row)
    assert found.format.name == "preference" and not found.questions, found
    pair, _ = found.read_row(Row(1, row))
    return pair.chosen[0].content, pair.rejected[0].content, [message.content for message in pair.messages]


ASKED = {"role": "user", "content": "how?"}


@pytest.mark.parametrize(
    "row",
    [
        {"question": "how?", "response_0": "badly", "response_1": "well", "better_response_id": 1},
        {"prompt": "how?", "answer_a": "well", "answer_b": "badly", "winner": "a"},
        {"prompt": "how?", "response_a": "badly", "response_b": "well", "winner": "model_b"},
        {"question": "how?", "answer": "well", "rejected_answer": "badly"},
        {"question": "how?", "response1": "badly", "response2": "well", "preference": "response2"},
        {"question": "how?", "answer_a": "badly", "answer_b": "well", "winner": "B-is-slightly-better"},
        {"question": "how?", "answer_a": "well", "answer_b": "badly", "overall_label": "A>>B"},
        {"prompt": "how?", "safe_answer": "well", "unsafe_answer": "badly"},
        {"question": "how?", "preferred_output": "well", "non_preferred_output": "badly"},
        {"instruction": "how?", "chosen_text": "well", "rejected_text": "badly"},
        {"messages": [ASKED, {"role": "assistant", "content": "well"}], "rejected_response": "badly"},
        {"messages": [ASKED, {"role": "assistant", "content": "well"}],
         "rejected_messages": [ASKED, {"role": "assistant", "content": "badly"}]},
        {"messages": [ASKED, {"role": "assistant", "content": "well"}],
         "rejected_message": {"role": "assistant", "content": "badly"}},
        {"input": "how?", "response_a": "badly", "reward_a": [0.1], "response_b": "well", "reward_b": [0.4]},
    ],
    ids=lambda row: ", ".join(row),
)  # fmt: skip
def test_the_better_answer_is_chosen(row):
    assert sides(row) == ("well", "badly", ["how?"])


def test_a_verdict_that_may_mean_either_is_not_guessed():
    """1 may be the second answer, or say that the first one is better."""
    row = {"prompt": "how?", "ref_A": "well, I think", "ref_B": "badly, I think", "labels": 1}
    assert look(row).questions


def test_a_tie_is_set_aside():
    row = {"prompt": "how?", "response_a": "badly", "response_b": "well", "winner": "model_b"}
    with pytest.raises(RowError) as refused:
        look(row).read_row(Row(1, {**row, "winner": "tie"}))
    assert refused.value.code == "E172"


@pytest.mark.parametrize(("number", "better"), [(-2, "well"), (3, "badly")])
def test_a_number_below_zero_leans_to_the_first(number, better):
    rows = [
        {"prompt": "how?", "response1": "well", "response2": "badly", "overall_preference": one}
        for one in (number, -1, 1, 2, -3)
    ]
    found = understand(list(rows[0]), rows, DatasetSpec(source="x"))
    assert found.format.name == "preference" and not found.questions
    assert found.read_row(Row(1, rows[0]))[0].chosen[0].content == better
    with pytest.raises(RowError) as error:
        found.read_row(Row(1, {**rows[0], "overall_preference": 0}))
    assert error.value.code == "E172"


def test_a_copy_of_both_answers_is_not_offered_as_material():
    def talk(words):
        return [ASKED, {"role": "assistant", "content": words}]

    rows = [
        {
            "side_a_conversation": None,
            "conversation_a": talk(f"It goes well, and it stays so for {i} years."),
            "conversation_b": talk(f"It goes badly, and nobody mends it for {i} years."),
            "winner": "model_a",
            "whole": [
                {"asked": ASKED, "left": talk(f"It goes well, and it stays so for {i} years.")[1]},
                {"right": talk(f"It goes badly, and nobody mends it for {i} years.")[1]},
            ],
        }
        for i in range(8)
    ]
    found = understand(list(rows[0]), rows, DatasetSpec(source="x"))
    assert found.format.name == "preference"
    assert all(question.choices[0] == "" for question in found.questions)


def test_a_text_beside_a_rejected_text_is_the_better_one():
    rows = [
        {"text": f"ask: how {i}?\nsay: well", "rejected_text": f"ask: how {i}?\nsay: badly"} for i in range(6)
    ]
    found = understand(list(rows[0]), rows, DatasetSpec(source="x"))
    assert found.format.name == "preference" and not found.questions
    assert found.read_row(Row(1, rows[0]))[0].chosen[0].content == "well"


def test_what_each_judge_preferred_is_no_first_choice_as_material():
    rows = [
        {
            "prompt": f"how {i}?",
            "answer_a": "It goes well, and it stays so.",
            "answer_b": "badly",
            "winner": "a",
            "individual_preference": f"The first judge of {i} found that the answer on the left is clearer.",
        }
        for i in range(8)
    ]
    found = understand(list(rows[0]), rows, DatasetSpec(source="x"))
    assert found.questions and all(one.choices[0] == "" for one in found.questions)
