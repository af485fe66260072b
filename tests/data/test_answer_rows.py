"""A column a label, and a row an option."""

from __future__ import annotations

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.answer_rows import find_flagged, find_offered
from studio.data.reshape import find_reshapes
from studio.data.row import Row

WORDS = [f"the keeper of light number {n} wrote a long letter about the sea and the rain" for n in range(8)]


def reshape(values):
    rows = [Row(number, one) for number, one in enumerate(values, start=1)]
    steps, _ = find_reshapes(DatasetSpec(source="x"), rows, "csv")
    for step in steps:
        rows = list(step.apply(rows))
    return steps, [row.values for row in rows]


def flag(n, *, yes="1", no="0"):
    return {
        "id": n, "comment": WORDS[n], "rude": yes if n % 2 else no, "threat": yes if n == 3 else no, "spite": no,
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [{}, {"yes": "True", "no": "False"}, {"yes": 1, "no": 0}, {"yes": "x", "no": "0"}]
)
def test_columns_of_labels_become_one(words):
    steps, found = reshape([flag(n, **words) for n in range(8)])
    assert [step.columns for step in steps] == [("rude", "threat", "spite")]
    assert [one["labels"] for one in found[:4]] == ["none", "rude", "none", "rude, threat"]
    assert found[0] == {"id": 0, "comment": WORDS[0], "labels": "none"}


@pytest.mark.parametrize(
    "more",
    [
        {"answer": "It is a letter of a keeper who has been alone for long."},
        {"sentiment": "bad"},
        {"rude": "2"},
        {"comment": "short"},
    ],
)
def test_flags_beside_something_else_stay_as_they_are(more):
    rows = [{**flag(n), **more} for n in range(8)]
    if "sentiment" in more:
        rows = [{**one, "sentiment": ["bad", "good"][n % 2]} for n, one in enumerate(rows)]
    assert find_flagged(list(rows[0]), rows) is None


def test_what_is_noted_of_a_row_is_no_label():
    rows = [{"text": WORDS[n], "is_test": "0", "has_image": str(n % 2), "verified": "0"} for n in range(8)]
    assert find_flagged(list(rows[0]), rows) is None


def offer(values):
    return [
        {
            "qid": str(n),
            "question": f"What is {n} and one?",
            "choice": f"{n + more}",
            "is_correct": str(int(more == 1)),
        }
        for n, shown in enumerate(values)
        for more in range(shown)
    ]


def test_rows_of_options_become_questions():
    rows = offer([3, 4, 2])
    steps, found = reshape(rows)
    assert len(steps) == 1 and len(found) == 3
    assert found[1] == {
        "qid": "1", "question": "What is 1 and one?", "options": ["1", "2", "3", "4"], "answer": "2"
    }  # fmt: skip


def test_all_right_options_are_the_answer():
    rows = offer([3, 3, 3, 3, 3])
    rows[0]["is_correct"] = "1"
    found = reshape(rows)[1]
    assert found[0]["answer"] == "0; 1" and found[1]["answer"] == "2"


@pytest.mark.parametrize("change", ["alone", "all_right", "same_option", "apart"])
def test_what_is_no_list_of_options_stays(change):
    rows = offer([3, 3, 3])
    if change == "alone":
        rows = rows[::3] * 3
    if change == "all_right":
        rows = [{**one, "is_correct": "1"} for one in rows]
    if change == "same_option":
        rows = [{**one, "choice": "7"} for one in rows]
    if change == "apart":
        rows = rows[::3] + rows[1::3] + rows[2::3]
    assert find_offered(list(rows[0]), rows) is None


def test_broken_rows_pass():
    from studio.core.i18n import literal
    from studio.data.row import broken_row
    from studio.data.row_codes import RowCode

    steps, _ = reshape(offer([3, 3, 3]))
    broken = broken_row(1, RowCode.UNREADABLE, literal("x"), row=1, offset=0, raw=b"")
    assert list(steps[0].apply([broken])) == [broken]
