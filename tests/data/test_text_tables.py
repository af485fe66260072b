"""Tables in text files, tables whose quotation marks do not match, tables without a header, splits in one file."""

import io
import json

import pytest

from studio.data.containers import delimited
from studio.data.containers.container import ReadOptions
from studio.data.containers.csv_dialect import find_layout
from studio.data.containers.json_rows import find_rows, name_splits
from studio.data.line_reader import LineReader

ASKED = ["Who mends nets in Sund?", "When does the ferry go?", "What costs a crab?", "Where is the ice kept?",
         "How deep is the old dock?", "Why is the bell rung?"]  # fmt: skip
SAID = [
    "Old Marit does.",
    "At six, and at noon.",
    "Nine crowns.",
    "Below the smithy.",
    "Four fathoms.",
    "For fog.",
]


def read(text, container=delimited.CSV):
    return list(container.iterate(io.BytesIO(text.encode()), "utf-8", ReadOptions()))


def layout(text):
    return delimited.read_layout(LineReader(io.BytesIO(text.encode()), "utf-8"), ReadOptions(), ",")[0]


@pytest.mark.parametrize("sign", ["|", "\t"])
def test_a_text_whose_lines_are_cut_alike_is_a_table(tell, tmp_path, sign):
    path = tmp_path / "talk.txt"
    lines = [f"{one}{sign}{other}" for one, other in zip(ASKED, SAID, strict=True)]
    path.write_text("\n".join([f"question{sign}answer", *lines]) + "\n", encoding="utf-8")
    assert delimited.TSV.accepts(path.read_bytes(), ".txt")
    rows = read(path.read_text(), delimited.TSV)
    assert [row.values["answer"] for row in rows] == SAID


@pytest.mark.parametrize(
    "lines",
    [
        ["| a | b |", "|---|---|", "| 1 | 2 |", "| 3 | 4 |", "| 5 | 6 |", "| 7 | 8 |"],
        ["true || false", "this || that", "one || two", "six || ten", "up || down", "in || out"],
        ["Some text.", "With one | in it.", "And more.", "Still more.", "The end.", "No, this."],
    ],
)
def test_other_bars_make_no_table(lines):
    assert not delimited.TSV.accepts("\n".join(lines).encode() + b"\n", ".txt")


def test_a_text_below_names_of_columns_is_a_table():
    head = b"question,answer\n" + "\n".join(f'"{q}","{a}"' for q, a in zip(ASKED, SAID, strict=True)).encode()
    assert delimited.CSV.accepts(head, ".txt")
    assert not delimited.CSV.accepts(b"Question, and answer it well.\nThe sea, the sun, the sand.\n", ".txt")


def test_marks_within_marks_are_read_where_the_cells_are_as_many():
    text = 'q,a,note\n"Say it","He said\nthe "N/A" mark, which\nis fine",ok\nplain,row,x\n'
    rows = read(text)
    assert [row.problem for row in rows] == [None, None]
    assert rows[0].values["a"] == 'He said\nthe "N/A" mark, which\nis fine'


def test_marks_within_marks_swallow_no_rows():
    rows = read('q,a,note\n"a "b" c,1,2\nx,y,z\n"d","e","f"\n')
    assert [row.problem is None for row in rows] == [False, True, True]


def test_cells_between_apostrophes():
    text = "'question','answer'\n" + "".join(
        f"'{q}','{a}, they say, that''s all'\n" for q, a in zip(ASKED, SAID, strict=True)
    )
    assert layout(text).quote == "'"
    assert read(text)[1].values == {"question": ASKED[1], "answer": f"{SAID[1]}, they say, that's all"}
    assert layout("q,a\nit's,fine\nthat's,ok\ndon't,go\n").quote == '"'


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (
            [
                "なつのうみ,夏の海",
                "ふゆのそら,冬の空",
                "はるのかぜ,春の風",
                "あきのよる,秋の夜",
                "うみのかぜ,海の風",
            ],
            False,
        ),
        (
            ["よみ,漢字", "ふゆのそら,冬の空", "はるのかぜ,春の風", "あきのよる,秋の夜", "うみのかぜ,海の風"],
            True,
        ),
        (
            ["word,meaning", "ebb,low water", "quay,landing place", "skiff,small boat", "tar,black pitch"],
            True,
        ),
        (  # short sentences above long ones
            [
                "What does a mooring line do?,It holds the boat.",
                "Term: spring line.,A line that runs from the bow aft so that the boat moves neither ahead nor astern.",
                "Why is slack left in it?,The tide rises and falls by some metres twice a day and the boat with it.",
                "Term: fender.,What hangs between the hull and the quay so that neither of the two wears the other.",
            ],
            False,
        ),
        (
            [
                "What do you do on deck?,Why do you like it there?",
                "I splice the ropes.,The wind comes from the sea and smells of salt and tar.",
                "I scrub the planks.,Nobody asks me for anything until the work is done there.",
                "I coil the lines.,It is the only place on the ship where one can be alone.",
            ],
            True,
        ),
    ],
)
def test_a_first_row_like_the_others_names_nothing(rows, named):
    records = [(number, row.split(",")) for number, row in enumerate(rows, start=1)]
    found = find_layout(
        lambda delimiter, spaced, quote='"': records if delimiter == "," else [], ReadOptions()
    )
    assert bool(found.header_line) is named


def test_splits_of_one_file_are_used_as_such(tell, tmp_path):
    rows = [{"question": one, "answer": other} for one, other in zip(ASKED, SAID, strict=True)]
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"test": rows[:1], "train": rows[1:5], "dev": rows[5:]}), encoding="utf-8")
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    report = describe(DatasetSpec(source=str(path)))
    assert {name: split["rows_read"] for name, split in report["splits"].items()} == {
        "train": 4,
        "validation": 1,
        "test": 1,
    }
    assert report["rows_used"] == 4 and report["problems"] == []
    assert any("splits" in note.id for note in report["source_notes"])


def test_objects_of_lists_that_are_no_splits():
    rows = [{"q": one, "a": other} for one, other in zip(ASKED, SAID, strict=True)]
    assert name_splits({"train": rows, "training": rows}) == {}
    assert name_splits({"dev": rows, "test": rows}) == {"train": "dev", "test": "test"}
    found = find_rows({"harbour": rows[:2], "boats": rows[2:]})
    assert found[0] == {"class": "harbour", **rows[0]} and len(found) == 6
    assert (
        find_rows({"people": [{"id": 1, "name": "Odd"}], "boats": [{"length": 3, "tons": 4, "built": 1900}]})
        is None
    )


def test_texts_under_their_classes():
    told = {
        "Rope work": [f"Splice the old rope number {n}" for n in range(3)],
        "Tar work": ["Boil the tar slowly in the pot", "Paint the hull with it"],
        "Net work": ["Mend the net by hand"],
    }
    assert find_rows(told)[3] == {"class": "Tar work", "text": "Boil the tar slowly in the pot"}
    deep = {"quay": told, "ship": {"Deck": ["Scrub the deck with sand and water"]}}
    assert find_rows(deep)[-1]["class"] == "ship / Deck"
    columns = {"asked": ASKED, "said": SAID, "noted": SAID}
    assert find_rows(columns)[0] == {"asked": ASKED[0], "said": SAID[0], "noted": SAID[0]}


def test_pairs_in_two_scripts_are_a_translation(tmp_path):
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    pairs = [[f"The quay number {n} is dry.", f"第{n}号码头是干的。"] for n in range(6)]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(pairs), encoding="utf-8")
    asked = describe(DatasetSpec(source=str(path)))["needs_answer"]
    assert [one["choices"] for one in asked] == [["column_1", "column_2"], ["column_2", "column_1"]]


@pytest.mark.parametrize("named", [True, False])
def test_a_sheet_whose_first_row_is_like_the_others_has_no_header(tmp_path, named):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    if named:
        book.active.append(["What to ask", "What to say to it"])
    for asked, said in zip(ASKED, SAID, strict=True):
        book.active.append([f"Tell me of the harbour: {asked}", f"{said}, and it is so all day long."])
    book.save(tmp_path / "rows.xlsx")
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    report = describe(DatasetSpec(source=str(tmp_path / "rows.xlsx")))
    assert report["rows_read"] == 6
    assert report["columns"] == (["What to ask", "What to say to it"] if named else ["column_1", "column_2"])


def test_a_sheet_whose_first_row_holds_values_has_no_header(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for n, (asked, said) in enumerate(zip(ASKED, SAID, strict=True)):
        book.active.append([asked, said, n + 17])
    book.save(tmp_path / "rows.xlsx")
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    report = describe(DatasetSpec(source=str(tmp_path / "rows.xlsx")))
    assert report["columns"][:2] == ["column_1", "column_2"] and report["rows_read"] == 6
