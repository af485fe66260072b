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
    if file.endswith("csv"):
        assert "data.table.second_header" in str(report)
