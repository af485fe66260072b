"""Two answers and a verdict are a preference, and so are names with rejected in them."""

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.row import Row, RowError
from studio.data.sniff import understand


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
        {"question": "how?", "preferred_output": "well", "non_preferred_output": "badly"},
        {"instruction": "how?", "chosen_text": "well", "rejected_text": "badly"},
        {"messages": [ASKED, {"role": "assistant", "content": "well"}], "rejected_response": "badly"},
        {"messages": [ASKED, {"role": "assistant", "content": "well"}],
         "rejected_messages": [ASKED, {"role": "assistant", "content": "badly"}]},
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
    assert refused.value.code == "E180"
