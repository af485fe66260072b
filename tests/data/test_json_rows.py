"""Rows are found in whatever object a JSON file is, and talks where they are lists instead of objects."""

import io
import json

import pytest

from studio.data.containers import json_document, json_lines
from studio.data.containers.json_rows import find_rows

ROWS = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(3)]
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def read(value, indent=None) -> list:
    data = json.dumps(value, indent=indent).encode()
    return [
        row.values if row.problem is None else row.problem.code
        for row in json_document.iterate(io.BytesIO(data), "utf-8")
    ]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "value",
    [
        {"columns": ["question", "answer"], "index": [0, 1, 2], "data": [list(row.values()) for row in ROWS]},
        {"features": [{"name": "question"}], "rows": [{"row_idx": i, "row": row} for i, row in enumerate(ROWS)]},
        {f"id_{i}": row for i, row in enumerate(ROWS)},
        {"meta": {"made": "here"}, "talks": {f"id_{i}": row for i, row in enumerate(ROWS)}},
        {"dataset": {"name": "x", "examples": ROWS}},
        {"took": 3, "hits": {"total": 3, "hits": ROWS}},
        {"question": {str(i): row["question"] for i, row in enumerate(ROWS)},
         "answer": {str(i): row["answer"] for i, row in enumerate(ROWS)}},
        {"version": "1", "data": ROWS},
    ],
)  # fmt: skip
def test_rows_of_an_object(value, indent):
    assert read(value, indent) == ROWS


def test_a_notebook_is_one_text():
    cells = [{"cell_type": "markdown", "source": ["# Quay\n"]}, {"cell_type": "code", "source": "moor()"}]
    assert read({"cells": cells, "nbformat": 4}) == [{"text": "# Quay\n\nmoor()"}]


def test_the_texts_of_a_program_are_rows_by_their_names():
    texts = {f"page.{n}": f"Moor at quay {n}." for n in range(12)}
    assert read(texts)[3] == {"key": "page.3", "value": "Moor at quay 3."}


def test_a_square_table_is_read_by_its_columns():
    value = {"columns": ["a", "b"], "index": [0, 1], "data": [[1, 2], [3, 4]]}
    assert read(value) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(
    "value",
    [
        {"question": "q", "answer": "a"},
        {"messages": TALK},
        {"request": {"messages": TALK}, "response": {"id": 1}},
        {"chosen": TALK, "rejected": TALK, "prompt": TALK},
        {"chat": {"title": "t", "messages": TALK}},
        {"id": 1, "a": {"x": 1}, "b": {"y": 2}, "c": {"z": 3}},
    ],
)
def test_an_object_that_is_a_row(value):
    assert find_rows(value) is None and read(value) == [value]


def test_talks_under_their_ids_and_answers_under_their_questions():
    assert read({f"talk {i}": TALK for i in range(3)}) == [{"messages": TALK}] * 3
    texts = {f"Is this number {i}?": f"It is {i}." for i in range(3)}
    assert read(texts)[1] == {"column_1": "Is this number 1?", "column_2": "It is 1."}
    assert read({"name": "x", "place": "y", "time": "z"}) == [{"name": "x", "place": "y", "time": "z"}]


def test_lists_of_lists():
    for talk in (TALK, ["hi", "hello"], [["hi", "hello"]]):
        assert read([talk, talk]) == read([talk, talk], 1) == [{"messages": talk}] * 2
    assert read([[1, 2], TALK]) == ["E101", {"messages": TALK}]


def test_a_file_that_is_one_talk():
    assert read(TALK) == [{"messages": TALK}]
    table = [turn | {"thread": 1} for turn in TALK]
    assert read(table) == table


@pytest.mark.parametrize("talk", [TALK, ["hi", "hello"], [["hi", "hello"], ["so", "no"]]])
def test_lines_that_are_talks(talk):
    line = json.dumps(talk).encode()
    assert json_lines.accept(line + b"\n" + line, ".jsonl") and json_lines.accept(
        line + b"\n" + line, ".json"
    )
    assert json_lines.accept(line, ".jsonl") and not json_lines.accept(line, ".json")
    rows = list(json_lines.iterate(io.BytesIO(line + b"\n" + line + b"\n[1, 2]"), "utf-8"))
    assert [row.values for row in rows] == [{"messages": talk}] * 2 + [{}]
    assert [(row.line, row.row, row.offset) for row in rows] == [
        (1, 1, 0),
        (2, 2, len(line) + 1),
        (3, 3, 2 * len(line) + 2),
    ]


def test_a_line_that_is_a_table_is_none():
    assert not json_lines.accept(b'[{"a": 1}, {"a": 2}]', ".jsonl")


def test_an_export_that_names_its_people_first():
    messages = [{"sender_name": "Jo", "content": f"That is the {i}th message here."} for i in range(9)]
    people = [{"name": "Jo"}, {"name": "Mo"}, {"name": "Flo"}]
    assert read({"participants": people, "messages": messages, "title": "Jo and Mo"}) == messages
    other = [{"note": f"Another list of long words, number {i}."} for i in range(9)]
    assert "E101" in read({"messages": messages, "notes": other})


def test_splits_whose_rows_are_lists():
    train, test = [["How far?", "far"], ["How deep?", "deep"]], [["How old?", "old"], ["How new?", "new"]]
    assert read({"test": test, "oos_train": test, "train": train}) == [
        {"messages": train[0]},
        {"messages": train[1]},
        "E101",
        "E101",
    ]
    assert read({"east": train, "west": test}) != read({"train": train, "test": test})


def test_lists_of_texts_and_objects_in_lists_of_their_own():
    assert read(["One text.", "Another."]) == [{"text": "One text."}, {"text": "Another."}]
    assert read([json.dumps(row) for row in ROWS]) == ROWS
    assert read([[row] for row in ROWS]) == ROWS
    assert (
        read([{**turn, "annotation": [{"label": ""}]} for turn in TALK])[0]["messages"][0]["content"] == "hi"
    )


def test_json_that_was_written_twice_is_read_twice():
    inner = json.dumps(ROWS)
    assert read(inner) == ROWS
    assert read(json.dumps({"data": ROWS})) == ROWS
    assert json_document.accept(json.dumps(inner).encode(), ".json")
    assert not json_document.accept(b'"only words"', ".json")


PAIRS = [["Is it far?", "Two miles."], ["Is there a boat?", "At noon."]]


def test_two_records_under_codes_are_rows_and_two_sides_are_none():
    record = {"reply": "Thank you for the kind words.", "stars": "FIVE"}
    assert read({"AbFvOqkgfVSen1": record, "AbFvOql3CfBoX7": record}) == [record, record]
    sides = {"question": {"en": "Is it far?"}, "answer": {"en": "Two miles."}}
    assert read(sides) == [sides]


def test_questions_with_their_answers_under_numbers_are_rows_and_other_pairs_are_talks():
    value = {"0": PAIRS, "1": PAIRS[:1], "2": PAIRS[1:]}
    assert read(value)[:2] == [{"column_1": asked, "column_2": said} for asked, said in PAIRS]
    assert len(read(value)) == 4
    told = [["Come in.", "I am in."], ["Sit down.", "I sit."]]
    assert [len(row) for row in read({"0": told, "1": told[:1], "2": told})] == [1, 1, 1]


def test_rows_under_codes_in_groups_have_the_name_of_their_group():
    row = {"id": "k-1742660309", "content": "Steps first, then the whole."}
    assert read({"Advice": {"k-1742660309": row}, "Questions": {"k-1742660309": row}}) == [
        {"group": "Advice", **row},
        {"group": "Questions", **row},
    ]
    talk = {"title": "new", "messages": TALK}
    assert read({"1741408135": {"conv-1741408135": talk, "conv-1741408240": talk}, "1741408283": {
        "conv-1741408283": talk}}) == [talk] * 3  # fmt: skip


def test_texts_under_names_of_files_are_rows():
    texts = {"law.pdf": "The law says it.", "visas.docx": "A visa is a stamp.", "more.txt": "There is more."}
    assert read(texts) == [{"file": name, "text": words} for name, words in texts.items()]


def test_pieces_of_documents_have_a_source_and_examples_of_classes_a_class():
    piece = "The barge lay at the quay, and its crew sewed the torn sail. " * 5
    books = {"The sail of Brenn": [piece] * 3, "The mill": [piece] * 2, "The tide": [piece]}
    assert {*read(books)[0]} == {"source", "text"}
    asked = {
        "greeting": ["Good day to you"] * 2,
        "leaving": ["See you next week"],
        "thanks": ["Thanks a lot, all"],
    }
    assert {*read(asked)[0]} == {"class", "text"}


def test_a_question_with_a_list_of_its_options_is_one_row():
    value = {
        "stem": "Which of these lines has no point in common with the other one, as it is drawn above?",
        "options": [{"id": "a", "content": "the first"}, {"id": "b", "content": "the second"}],
        "rationale": "The second is right, since both rise by four and begin three apart from each other.",
    }
    assert read(value) == [value]
    assert read({"about": "Made in Brenn by hand", "version": "1.0", "data": ROWS}) == ROWS


def test_pretty_objects_that_open_with_a_list_are_no_lines():
    pretty = b'{"messages":[\n  {"role":"user","content":"hi"}\n]}\n'
    assert not json_lines.accept(pretty * 2, ".jsonl")
    assert json_lines.accept(json.dumps({"messages": TALK}).encode() + b"\n{}", ".jsonl")
