"""Answers that a row only points to: two places in the text beside the question."""

from __future__ import annotations

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.cut_answers import find_cut
from studio.data.format_detection import understand
from studio.data.reshape import find_reshapes
from studio.data.row import Row, RowError, list_columns

TEXT = (
    "The old ferry of number {n} goes at {time} from the pier behind the fish market, every day but Sunday."
)


def make(n, *, end=0, names=("answer_start", "answer_end")):
    """Return a row; `end` is added to its last place."""
    time = f"{n + 1} in the morning"
    passage = TEXT.format(n=n, time=time)
    first = passage.index(time)
    places = dict(zip(names, (first, first + len(time) + end), strict=True))
    return {"context": passage, "question": f"When does the ferry of number {n} go?", **places}


def read(rows):
    rows = [Row(number, one) for number, one in enumerate(rows, start=1)]
    steps, _ = find_reshapes(DatasetSpec(source="x"), rows, "jsonl")
    for step in steps:
        rows = list(step.apply(rows))
    found = understand(list_columns(rows), [row.values for row in rows], DatasetSpec(source="x"))
    return steps, found, rows


@pytest.mark.parametrize(
    "names", [("answer_start", "answer_end"), ("start", "end"), ("span_start", "span_end")]
)
@pytest.mark.parametrize("end", [0, -1])  # the letter behind the answer, or its last one
def test_places_in_a_text_are_its_words(names, end):
    steps, found, rows = read([make(n, end=end, names=names) for n in range(8)])
    assert [step.note.id for step in steps] == ["data.reshape.cut"]
    assert (found.format.name, found.questions) == ("prompt_completion", ())
    conversation, _ = found.read_row(rows[2])
    assert conversation.messages[-1].content == "3 in the morning"
    assert conversation.messages[0].content.startswith("The old ferry of number 2")


def test_places_that_point_nowhere_are_set_aside():
    cases = [make(n) for n in range(8)]
    cases[3] |= {"answer_start": -1, "answer_end": -1}
    steps, found, rows = read(cases)
    assert steps
    with pytest.raises(RowError):
        found.read_row(rows[3])


def test_numbers_of_something_else_are_no_places():
    cut_words = [make(n) | {"answer_start": 5 + n, "answer_end": 11 + n} for n in range(8)]
    assert find_cut(tuple(cut_words[0]), cut_words) is None
    answered = [make(n) | {"answer": "at noon"} for n in range(8)]
    assert find_cut(tuple(answered[0]), answered) is None
    seconds = [{"start": n, "end": n + 2, "text": "We go now, she said."} for n in range(8)]
    assert find_cut(tuple(seconds[0]), seconds) is None
