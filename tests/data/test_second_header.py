"""A second line that names or describes the columns of a table is no row; a line of a row is none of the two."""

import csv

import pytest

from studio.core.recipe import DatasetSpec
from studio.data.containers.second_header import drop_headers
from studio.data.dataset_report import describe

SHEEP = "Anna Bella Clara Dunja Edda Fanny Gerda Hanna Ilse Jette".split()
ROWS = [
    [f"Who shears {name} this spring?", f"{name} is shorn by the farmer of house {n} in May.", "wool", str(n)]
    for n, name in enumerate(SHEEP)
]
NAMES = ["question", "answer", "topic", "score"]


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (["Input", "Output", "", ""], NAMES, NAMES),
        (["Talk", "", "About", ""], NAMES, NAMES),
        (NAMES, ["text", "text", "string", "number"], NAMES),
        (NAMES, ["文本", "文本", "字符串", "数字"], NAMES),
        (["问题", "回答", "x", "y"], ["question", "answer", "of", "how much"], ["问题", "回答", "x", "y"]),
        (["Kysymys", "Vastaus", "Aihe", "Pisteet"], NAMES, NAMES),
        (
            NAMES,
            ['{"ImportId":"QID1"}', '{"ImportId":"QID2"}', '{"ImportId":"QID3"}', '{"ImportId":"end"}'],
            NAMES,
        ),
        (
            ["A", "", "B", ""],
            ["question", "answer"] * 2,
            ["A question", "A answer", "B question", "B answer"],
        ),
    ],
)
def test_a_second_line_of_names(first, second, names):
    rows = [[*row[:2], *row[:2]] for row in ROWS] if second[2] == "question" else ROWS
    assert drop_headers(first, [second, *rows]) == (names, 1)


def test_what_describes_columns_of_numbers_and_a_line_below():
    rows = [[*row, str(n * 3)] for n, row in enumerate(ROWS)]
    notes = ["What was asked", "What was said", "Of what", "From 0 to 9", "How many sheep"]
    first = [*NAMES, "sheep"]
    assert drop_headers(first, [notes, *rows]) == (first, 1)
    assert drop_headers(first, [notes, ["text", "text", "text", "int", "int"], *rows]) == (first, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NAMES, ROWS[0]),
        (NAMES, ["Shear?", "May", "wool", "n/a"]),  # a short row: its topic comes again
        (NAMES, ["Shear?", "May", "milk", "none"]),
        (NAMES, ["", "answer", "", ""]),
        (["", *NAMES[1:]], ["0", *ROWS[0][1:]]),  # the numbers of rows have no name
        (["question", "answer", "topic", ""], ["Shear?", "May", "milk", "late"]),
    ],
)
def test_a_row_is_a_row(first, second):
    assert drop_headers(first, [second, *ROWS[1:]])[1] == 0


@pytest.mark.parametrize(
    ("age", "score"),
    [
        ("n.a.", "#N/A"),
        ("#N/A", "pending"),
        ("n.a.", "n.a."),
        ("unrated", "few"),
        ("free", "five"),
        ("无", "tbd"),
    ],
)
@pytest.mark.parametrize("told", [ROWS[0][:2], ["Shear?", "May"]])
def test_a_row_without_its_numbers_is_a_row(told, age, score):
    rows = [[*row[:2], str(n * 11), str(n)] for n, row in enumerate(ROWS[1:])]
    assert drop_headers(["question", "answer", "age", "score"], [[*told, age, score], *rows])[1] == 0


def test_the_questions_of_a_survey_above_its_ids_are_no_row():
    full = ["What do you ask the farmer?", "What does the farmer say to you?", "Of what?", "How many sheep?"]
    ids = ['{"ImportId":"QID1"}', '{"ImportId":"QID2"}', '{"ImportId":"QID3"}', '{"ImportId":"end"}']
    assert drop_headers(["Q1", "Q2", "Q3", "Q4"], [full, ids, *ROWS]) == (["Q1", "Q2", "Q3", "Q4"], 2)


def test_units_are_no_row():
    rows = [[*row[:2], str(n * 11), str(n)] for n, row in enumerate(ROWS)]
    first = ["question", "answer", "age", "score"]
    assert drop_headers(first, [["", "", "years", "points"], *rows]) == (first, 1)


@pytest.mark.parametrize(
    ("first", "rows"),
    [
        (["英文", "中文"], ["date 日期", "boolean 布尔", "tree 树", "stack 栈", "heap 堆", "queue 队列"]),
        (["英文", "中文"], ["text 文本", "string 字符串", "tree 树", "stack 栈", "heap 堆", "queue 队列"]),
        (["word", "part"], ["string list", "number array", "apple noun", "run verb", "blue adjective"]),
        (["code", "type"], ["text number", "date bool", "x int", "y str", "z float"]),
        (["word", "other"], ["string text", "int number", "lamb sheep", "ewe sheep", "ram sheep"]),
    ],
)
def test_a_glossary_of_types_is_no_line_of_types(first, rows):
    assert drop_headers(first, [row.split() for row in rows]) == (first, 0)


@pytest.mark.parametrize(
    ("types", "cells"),
    [
        (["text", "text", "date", "bool"], ["2024-05-01", "true"]),
        (["string", "string", "json", "category"], ['{"a": 1}', "wool"]),
    ],
)
def test_types_that_the_cells_prove(types, cells):
    assert drop_headers(NAMES, [types, *([*row[:2], *cells] for row in ROWS)]) == (NAMES, 1)


@pytest.mark.parametrize("file", ["table.csv", "table.xlsx"])
def test_a_table_with_two_lines_of_names(tmp_path, file):
    path, lines = tmp_path / file, [NAMES, ["text", "text", "text", "number"], *ROWS]
    if file.endswith("csv"):
        with path.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows(lines)
    else:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for line in lines:
            book.active.append(line)
        book.save(path)
    report = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    assert report["rows_read"] == report["rows_used"] == 10 and not report["needs_answer"]
    assert report["preview"][0]["messages"][0]["content"] == ROWS[0][0]
    assert [note.values["line"] for note in report["source_notes"]] == [2]
    assert {note.id for note in report["source_notes"]} == {"data.table.second_header"}


def test_each_line_that_is_no_row_is_named(tmp_path):
    path = tmp_path / "table.csv"
    lines = [NAMES, ["What", "Said", "Of", "From 0 to 9"], ["text", "text", "text", "number"], *ROWS]
    lines = [[*line, line[-1] if n else "sheep"] for n, line in enumerate(lines)]
    lines[1][-1] = "How many sheep"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(lines)
    report = describe(DatasetSpec(source=str(path)), cache=tmp_path / "cache")
    told = [note.values["line"] for note in report["source_notes"] if note.id == "data.table.second_header"]
    assert told == [2, 3] and report["rows_read"] == 10
