"""Excel workbooks: cells as they are seen, names of columns below a title, sheets, and what no workbook may do."""

import datetime
import io
import random
import re
import zipfile

import openpyxl
import pytest

from studio.core.errors import StudioError
from studio.data.containers import workbook
from studio.data.containers.container import ReadOptions

OPTIONS = ReadOptions(name="book.xlsx")
HEADER = ["question", "answer"]


def make_book(*sheets, change=None) -> io.BytesIO:
    """A workbook of one sheet a list of rows; `change(book)` before it is saved."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for number, rows in enumerate(sheets, start=1):
        sheet = book.create_sheet(f"sheet {number}")
        for row in rows:
            sheet.append(row)
    if change is not None:
        change(book)
    stream = io.BytesIO()
    book.save(stream)
    return stream


def change_part(stream: io.BytesIO, name: str, change, size: int | None = None) -> io.BytesIO:
    """The same workbook with the part `name` as change(bytes) makes it."""
    changed = io.BytesIO()
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            data = old.read(part)
            new.writestr(part.filename, change(data) if part.filename == name else data)
    return changed


def read(stream, options=OPTIONS) -> list[dict]:
    return [dict(row.values) for row in workbook.iterate(stream, "", options)]


def refuse(stream, options=OPTIONS) -> str:
    with pytest.raises(StudioError) as refusal:
        read(stream, options)
    return refusal.value.why.id


def test_cells_are_the_text_that_is_seen():
    cells = [
        *("word", 3, 3.0, 0.1, -2.5, True, False, None, "007", "NA"),
        *(
            datetime.date(2024, 1, 2),
            datetime.datetime(2024, 1, 2, 3, 4, 5),
            datetime.time(6, 7),
            1e20,
            12345678901,
        ),
    ]
    [row] = read(make_book([[f"c{i}" for i in range(len(cells))], cells]))
    assert list(row.values()) == [
        *("word", "3", "3", "0.1", "-2.5", "TRUE", "FALSE", "", "007", "NA"),
        *("2024-01-02", "2024-01-02T03:04:05", "06:07:00", "1e+20", "12345678901"),
    ]


def test_zeros_that_a_format_puts_in_front():
    def change(book):
        book.active["A2"].number_format = "00000"

    assert read(make_book([HEADER, [7, "x"]], change=change)) == [{"question": "00007", "answer": "x"}]


def test_escaped_characters():
    stream = make_book([HEADER, ["two_x000D_lines", "a_x0041_"], ["_xD800_", "_x0000_"]])
    assert read(stream) == [
        {"question": "two\rlines", "answer": "aA"},
        {"question": "_xD800_", "answer": "_x0000_"},  # neither would be text
    ]


def test_lines_are_rows_of_the_sheet_and_empty_rows_are_none():
    stream = make_book([HEADER, ["a", "b"], [], [None, "  "], ["c", "d"]])
    rows = list(workbook.iterate(stream, "", OPTIONS))
    assert [(row.line, row.row, row.values["question"]) for row in rows] == [(2, 1, "a"), (5, 2, "c")]


@pytest.mark.parametrize("above", [[], [["A title"]], [["A title"], [], ["written by", "me"][:1]]])
def test_the_names_stand_below_a_title(above):
    stream = make_book([*above, ["question", "answer", "note"], ["a", "b"], ["c", "d", "e"]])
    assert read(stream)[0] == {"question": "a", "answer": "b", "note": ""}


def test_the_row_of_the_names_can_be_said():
    rows = [["x", "y"], HEADER, ["a", "b"]]
    assert read(make_book(rows)) == [{"x": "question", "y": "answer"}, {"x": "a", "y": "b"}]
    said = ReadOptions(name="b.xlsx", header_row=2)
    assert read(make_book(rows), said) == [{"question": "a", "answer": "b"}]
    none = ReadOptions(name="b.xlsx", header_row=-1)
    assert read(make_book(rows[1:]), none)[1] == {"column_1": "a", "column_2": "b"}


def test_cells_beside_the_names_are_kept():
    stream = make_book([[*HEADER, None, "note"], ["a", "b", "c", "d", "e"]])
    assert read(stream) == [{"question": "a", "answer": "b", "note": "d", "column_3": "c", "column_5": "e"}]


def test_two_columns_of_one_name_are_numbered():
    assert read(make_book([["answer", "answer"], ["a", "b"]])) == [{"answer 1": "a", "answer 2": "b"}]
    assert refuse(make_book([["q", "q 1", "q"], ["a", "b", "c"]])) == "data.source.header"


def test_a_sheet_of_one_column_stands_behind_the_tables():
    stream = make_book([HEADER, ["a", "b"]])
    book = openpyxl.load_workbook(stream)
    notes = book.create_sheet("Read me", 0)
    notes["A1"], notes["A2"] = "Who keeps this", "The harbour office"
    stream = io.BytesIO()
    book.save(stream)
    assert workbook.list_sheets(stream, "b.xlsx")[-1] == "Read me"


def test_formulas():
    # openpyxl calculates nothing: what it writes has no value until Excel has opened it.
    bare = make_book([HEADER, ["=1+1", "x"]])
    rows = read(bare)
    assert rows == [{"question": "=1+1", "answer": "x"}] and workbook.has_bare_formulas(rows)
    part = "xl/worksheets/sheet1.xml"
    known = change_part(bare, part, lambda data: re.sub(rb"</f><v ?/>", b"</f><v>2</v>", data))
    rows = read(known)
    assert rows == [{"question": "2", "answer": "x"}] and not workbook.has_bare_formulas(rows)
    assert not workbook.has_bare_formulas(read(make_book([HEADER, ["'=1+1", "x"]])))


def test_texts_of_a_shared_table(monkeypatch):
    """As Excel itself writes them; openpyxl writes each text into its cell."""
    table = b"<si><t>question</t></si><si><r><t>two </t></r><r><t>parts</t></r></si>"
    space = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    kind = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    entry = b'<Override PartName="/xl/sharedStrings.xml" ContentType="' + kind + b'"/></Types>'
    stream = make_book([[1], [2]])
    stream = change_part(stream, "[Content_Types].xml", lambda data: data.replace(b"</Types>", entry))
    cells = b'<row r="1"><c r="A1" t="s"><v>0</v></c></row><row r="2"><c r="A2" t="s"><v>1</v></c></row>'
    stream = change_part(
        stream,
        "xl/worksheets/sheet1.xml",
        lambda data: re.sub(rb"<row.*</row>", cells, data, flags=re.DOTALL),
    )
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("xl/sharedStrings.xml", b"<sst " + space + b">" + table + b"</sst>")
    assert read(stream) == [{"question": "two parts"}]
    monkeypatch.setattr(workbook, "STRINGS_LIMIT_BYTES", 100)
    assert refuse(stream) == "data.source.workbook_large"


def test_sheets():
    stream = make_book([], [HEADER], [HEADER, ["a", "b"]], [HEADER, ["c", "d"]])
    assert workbook.list_sheets(stream, "b.xlsx") == ["sheet 3", "sheet 4"]
    assert read(stream) == [{"question": "a", "answer": "b"}]
    assert read(stream, ReadOptions(name="b", sheet="sheet 4")) == [{"question": "c", "answer": "d"}]
    assert refuse(stream, ReadOptions(name="b", sheet="sheet 9")) == "data.source.sheet"


def test_hidden_sheets_are_not_offered():
    def change(book):
        book.worksheets[0].sheet_state = "hidden"

    stream = make_book([HEADER, ["a", "b"]], [HEADER, ["c", "d"]], change=change)
    assert workbook.list_sheets(stream, "b.xlsx") == ["sheet 2"]


def test_the_size_that_a_sheet_states_is_not_believed():
    stream = make_book([HEADER, *(["a", str(i)] for i in range(50))])
    for stated in (b"A1:A1", b"A1:XFD1048576"):
        part = "xl/worksheets/sheet1.xml"
        wrong = change_part(stream, part, lambda data, stated=stated: data.replace(b"A1:B51", stated))
        assert len(read(wrong)) == 50


@pytest.mark.parametrize(
    "cell",
    [
        b'<row r="4000000000"><c r="A4000000000"><v>1</v></c></row>',
        b'<row r="9"><c r="ZZZ9"><v>1</v></c></row>',
        b'<row r="9"><c r="A9" t="s"><v>999999</v></c></row>',
        b'<row r="9"><c r="A9"><v>one</v></c></row>',
    ],
)
def test_places_beyond_a_sheet(cell):
    stream = make_book([HEADER, ["a", "b"]])
    part = "xl/worksheets/sheet1.xml"
    broken = change_part(stream, part, lambda data: data.replace(b"</sheetData>", cell + b"</sheetData>"))
    assert refuse(broken) in ("data.source.workbook_large", "data.source.workbook_broken")


def test_what_unpacks_to_far_more_is_not_unpacked():
    stream = make_book([HEADER, ["a", "b"]])
    bomb = change_part(stream, "xl/worksheets/sheet1.xml", lambda data: data + b" " * 100_000_000)
    assert len(bomb.getvalue()) < 200_000
    assert refuse(bomb) == "data.source.workbook_large"


def test_a_row_without_end(monkeypatch):
    row = b'<row r="3">' + b'<c r="A3"><v>1</v></c>' * 100_000 + b"</row></sheetData>"
    stream = make_book([HEADER, ["a", "b"]])
    part = "xl/worksheets/sheet1.xml"
    bomb = change_part(stream, part, lambda data: data.replace(b"</sheetData>", row))
    monkeypatch.setattr(workbook, "ROW_BYTES", 2**20)
    assert refuse(bomb) == "data.source.workbook_broken"
    unstated = change_part(bomb, part, lambda data: re.sub(rb"<dimension[^>]*>", b"", data))
    monkeypatch.setattr(workbook, "PART_LIMIT_BYTES", 2**20)
    assert refuse(unstated) == "data.source.workbook_large"


def test_entities_are_not_resolved():
    entities = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    stream = make_book([HEADER, ["a", "b"]])
    bomb = change_part(
        stream,
        "xl/worksheets/sheet1.xml",
        lambda data: data.replace(b"<worksheet", entities + b"<worksheet", 1),
    )
    assert refuse(bomb) == "data.source.workbook_broken"


def test_too_many_cells(monkeypatch):
    monkeypatch.setattr(workbook, "CELL_LIMIT", 100)
    assert refuse(make_book([HEADER, *(["a", "b"] for _ in range(60))])) == "data.source.workbook_large"


def test_under_a_password():
    assert (
        refuse(io.BytesIO(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600))) == "data.source.workbook_locked"
    )


def test_damaged_workbooks_are_refused_in_words():
    data = make_book([HEADER, *(["a", str(i)] for i in range(20))]).getvalue()
    chance = random.Random(5)
    for number in range(60):
        broken = bytearray(data)
        for _ in range(4):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        broken = broken[: chance.randrange(len(broken))] if number % 3 == 0 else broken
        try:
            rows = read(io.BytesIO(bytes(broken)))
        except StudioError as error:
            assert error.what.id == "data.source.unreadable"
        else:
            assert len(rows) == 20
