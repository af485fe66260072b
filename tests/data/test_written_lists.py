"""Lists and objects that a table holds as text: passages, answers, turns."""

from __future__ import annotations

import csv

import pytest

from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.formats.written_lists import open_written

PASSAGES = ["The ferry goes at noon.", 'It\'s the "old" pier, behind the fish market.']


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        (str(PASSAGES), PASSAGES),
        ("['one' 'two'\n 'three']", ["one", "two", "three"]),
        ("array(['one', 'two'], dtype=object)", ["one", "two"]),
        ("{'text': array(['noon'], dtype=object), 'at': array([4])}", {"text": ["noon"], "at": [4]}),
        ("['one', 'two'", None),
        ("[citation needed]", None),
        ("{name}", None),
        ("['one'] and more", None),
    ],
)  # fmt: skip
def test_a_list_is_read_as_it_was_written(cell, found):
    assert open_written(cell) == found


@pytest.mark.parametrize("write", [str, lambda cells: f"[{cells[0]!r}\n {cells[1]!r}]"])
def test_passages_are_shown_as_words(tmp_path, write):
    path = tmp_path / "asked.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("question", "passages", "answer"))
        for n in range(6):
            passages = [f"{n}. {one}" for one in PASSAGES]
            rows.writerow(
                (f"When does ferry {n} go?", write(passages), "It goes at noon, from the old pier.")
            )
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert found["needs_answer"] == []
    read = found["preview"][0]["messages"][0]["content"]
    assert read == f"0. {PASSAGES[0]}\n0. {PASSAGES[1]}\n\nWhen does ferry 0 go?"


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_lists_of_questions_and_answers_are_one_talk_and_that_is_told(tmp_path, language):
    path = tmp_path / "talks.jsonl"
    row = '{"questions": ["When does ferry %d go?", "And back?"], "answers": ["At noon.", "At six."]}\n'
    path.write_text("".join(row % n for n in range(6)), encoding="utf-8")
    found = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    turns = [turn["content"] for turn in found["preview"][0]["messages"]]
    assert turns == ["When does ferry 0 go?", "At noon.", "And back?", "At six."]
    reason = load_catalogue(language).say(found["reason"])
    told = {"en": "questions and answers hold as many questions as answers a row", "zh-CN": "依次问答的对话"}
    assert told[language] in reason and "several answers" not in reason
