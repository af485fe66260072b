"""Questions of a file: read as training reads it, each row kept, what only a person can say asked."""

from __future__ import annotations

import json

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.questions import read_questions

QUESTION = [{"role": "user", "content": "say 3"}]
ANSWERED = [*QUESTION, {"role": "assistant", "content": "a"}]


def write(path, content):
    path.write_text(content, encoding="utf-8")
    return DatasetSpec(source=str(path))


@pytest.mark.parametrize(
    ("name", "content", "questions", "expected"),
    [
        ("a.jsonl", json.dumps({"messages": ANSWERED}), ["say 3"], ["a"]),
        ("b.jsonl", '{"prompt": "q", "completion": "a"}\n{"prompt": "r", "completion": "b"}\n', ["q", "r"], ["a", "b"]),
        ("c.csv", "prompt,expected\nq one,a\nr two,b\n", ["q one", "r two"], ["a", "b"]),
        ("d.csv", "prompt\nwho is it\nwhat is it\n", ["who is it", "what is it"], [None, None]),
        ("e.txt", "first\n\n  second \n", ["first", "second"], [None, None]),
        ("f.jsonl", '{"question": "q"}\nnot json\n', ["q"], [None]),
        ("g.json", '[{"instruction": "q", "output": "a"}]', ["q"], ["a"]),
        ("h.jsonl", '{"prompt": "q", "chosen": "good", "rejected": "bad"}\n', ["q"], ["good"]),
    ],
)  # fmt: skip
def test_files_of_questions_in_many_forms(tmp_path, name, content, questions, expected):
    found = read_questions(write(tmp_path / name, content))
    assert [one.prompt for one in found.asked] == questions
    assert [one.expected for one in found.asked] == expected
    assert found.name == name


def test_the_last_answer_is_the_expected_one_and_earlier_turns_are_asked_with(tmp_path):
    turns = [{"role": "system", "content": "s"}, *ANSWERED, {"role": "user", "content": "b"}]
    line = json.dumps({"messages": [*turns, {"role": "assistant", "content": "c"}]})
    (one,) = read_questions(write(tmp_path / "a.jsonl", line)).rows
    assert [turn["content"] for turn in one.messages] == ["s", "say 3", "a", "b"] and one.expected == "c"


def test_options_stand_in_the_question_as_training_has_them(tmp_path):
    rows = [{"question": f"Which {i}?", "choices": ["a", "b", "c"], "answer": "B"} for i in range(8)]
    found = read_questions(write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows))))
    assert found.rows[0].prompt == "Which 0?\n\nA. a\nB. b\nC. c" and found.rows[0].expected == "b"


def test_every_row_is_kept_and_says_what_is_wrong_with_it(tmp_path):
    rows = [{"messages": ANSWERED}, {"messages": ANSWERED[1:]}, {"messages": ANSWERED, "id": 7}]
    found = read_questions(write(tmp_path / "a.jsonl", "\n".join([*map(json.dumps, rows), "{"])))
    assert [one.number for one in found.rows] == [1, 2, 3, 4]
    assert [one.problem is None for one in found.rows] == [True, False, True, False]
    assert found.rows[2].values["id"] == 7 and [one.number for one in found.asked] == [1, 3]


def test_an_answer_column_that_is_named_counts(tmp_path):
    spec = write(tmp_path / "a.csv", "frage,loesung\nWarum eins?,12\nWarum zwei?,13\n")
    assert [one.expected for one in read_questions(spec).rows] == [None, None]
    named = DatasetSpec(source=spec.source, mapping={"prompt": "frage", "completion": "loesung"})
    assert [one.expected for one in read_questions(named).rows] == ["12", "13"]


def test_the_hash_is_of_what_is_asked_and_expected(tmp_path):
    def find(content):
        return read_questions(write(tmp_path / "a.jsonl", content)).content_hash

    first = find('{"prompt": "q", "completion": "a", "id": 1}')
    assert first == find('{"prompt": "q", "completion": "a", "id": 2}')
    assert first != find('{"prompt": "q", "completion": "b", "id": 1}')


def test_a_file_without_questions_is_refused(tmp_path):
    spec = write(tmp_path / "none.jsonl", '{"messages": [{"role": "assistant", "content": "a"}]}\n')
    with pytest.raises(StudioError):
        read_questions(spec)
