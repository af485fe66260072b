"""Tables of text: cells verbatim, separators and header found, broken records named and passed one at a time."""

import csv
import io

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.containers import delimited
from studio.data.containers.container import ReadOptions
from studio.data.dataset_report import describe
from studio.data.line_reader import LINE_BYTES, LineReader


def read(data: bytes | str, encoding: str = "utf-8", container=delimited.CSV, **options) -> list:
    stream = io.BytesIO(data if isinstance(data, bytes) else data.encode(encoding))
    return list(container.iterate(stream, encoding, ReadOptions(**options)))


def show(rows) -> list:
    """Each row's line with its cells, or with its code and text."""
    return [
        (r.line, r.problem.code, r.problem.message.id[9:]) if r.problem else (r.line, *r.values.values())
        for r in rows
    ]


def find(data: str, container: str = ",", **options):
    lines = LineReader(io.BytesIO(data.encode()), "utf-8")
    return delimited.read_layout(lines, ReadOptions(**options), container)[0]


def test_cells_are_verbatim():
    cells = [
        "NA",
        "null",
        "007",
        "1e5",
        " blanks ",
        "=SUM(A1)",
        "TRUE",
        "1,5",
        'say "hi"',
        "two\r\nlines",
        "",
        "\u2028\x0c",
    ]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([f"c{place}" for place in range(len(cells))])
    writer.writerow(cells)
    (row,) = read(out.getvalue())
    assert list(row.values.values()) == cells


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_separators_and_newlines(delimiter, newline):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, lineterminator=newline)
    rows = [
        ["q", "a"],
        ["1,5; x", "2|3\t4"],
        ["plain", "words"],
        [f"two{newline}lines", 'a "quote"'],
        ["last", "one"],
    ]
    writer.writerows(rows)
    assert [list(row.values.values()) for row in read(out.getvalue())] == rows[1:]
    assert find(out.getvalue()).delimiter == delimiter


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-be", "cp1252", "gb18030", "big5", "shift_jis"]
)
def test_encodings_and_marks(encoding):
    word = "é" if encoding == "cp1252" else "中"
    data = f'q;a\r\n{word};1\r\n"x\r\n{word}";2\r\n'.encode(encoding)
    rows = read(data, encoding)
    assert [dict(row.values) for row in rows] == [{"q": word, "a": "1"}, {"q": f"x\r\n{word}", "a": "2"}]
    assert [row.line for row in rows] == [2, 3]
    assert all(data[row.offset :].startswith(row.raw) for row in rows)


def test_a_line_of_utf8_in_a_file_of_another_encoding_is_set_aside():
    """Files that were put together from several: read as they are, such lines would teach nonsense."""
    data = (
        "q;a\nö;1\n".encode("cp1252")
        + "Grüße;2\n".encode()
        + "é;3\n\u00fc\u00e4;4\nplain;5\n".encode("cp1252")
    )
    rows = read(data, "cp1252")
    assert [row.problem and row.problem.message.id for row in rows] == [
        None,
        "data.row.mixed",
        None,
        None,
        None,
    ]
    assert [row.values["q"] for row in rows if not row.problem] == ["ö", "é", "üä", "plain"]


def test_places_of_records():
    data = b'q,a\n\n1,2\n"x\ny",3\n   \n4,5'
    rows = read(data)
    assert [(row.line, row.row, row.offset, row.raw) for row in rows] == [
        (3, 1, 5, b"1,2"),
        (4, 2, 9, b'"x\ny",3'),
        (7, 3, 21, b"4,5"),
    ]


def test_ragged_rows_are_counted(english):
    rows = read("a,b,c\n1,2,3\n1,2\n1,2,3,4\nx,y,z\n")
    assert show(rows) == [(2, "1", "2", "3"), (3, "E101", "cells"), (4, "E101", "cells"), (5, "x", "y", "z")]
    assert english(rows[1].problem.sentence) == "Line 3: 2 cells were found where the header has 3."
    assert rows[2].problem.message.values == {"found": 4, "expected": 3} and rows[2].problem.raw == b"1,2,3,4"


def test_broken_quotes_cost_their_line_only():
    data = 'q,a\n"bad"quote,y\ngood,row\n5" disk,x\nsay "hi",z\n"fine","too"\n'
    assert show(read(data)) == [
        (2, "E101", "quotes"),
        (3, "good", "row"),
        (4, '5" disk', "x"),
        (5, 'say "hi"', "z"),
        (6, "fine", "too"),
    ]


def test_a_quote_that_never_closes_swallows_nothing():
    rows = [f"q{number},a{number}" for number in range(3000)]
    rows[1000] = 'open,"never closed'
    found = read("q,a\n" + "\n".join(rows))
    assert len(found) == 3000
    assert [(row.line, row.problem.message.id) for row in found if row.problem] == [
        (1002, "data.row.quote_open")
    ]


def test_a_quote_that_meets_the_next_one_swallows_nothing():
    data = 'q,a\n1,"open\n2,plain\n3,"quoted, cell"\n4,x\n'
    assert show(read(data)) == [
        (2, "E101", "quotes"),
        (3, "2", "plain"),
        (4, "3", "quoted, cell"),
        (5, "4", "x"),
    ]


def test_the_end_of_a_broken_cell_is_no_row():
    data = 'q,a\n1,"first line\nhe "said" x\nthe end",b\n4,x\n'
    assert show(read(data)) == [
        (2, "E101", "quotes"),
        (3, "E101", "cells"),
        (4, "E101", "quotes"),
        (5, "4", "x"),
    ]


def test_a_file_full_of_open_quotes_is_read_in_time(monkeypatch):
    monkeypatch.setattr(delimited, "RECORD_BYTES", 100)
    monkeypatch.setattr(delimited, "LEAST_BYTES", 64)
    data = "q,a\n" + ('"x\n' + '""\n' * 50) * 40
    assert sum(row.problem.message.id == "data.row.quote_open" for row in read(data) if row.problem) > 0


def test_broken_characters():
    rows = read(b"q,a\n1,\xff\n2,x\0y\n3,ok\n" + b'"4\n\xff",z\n')
    assert show(rows)[:3] == [(2, "E110", "not_encoding"), (3, "E110", "nul"), (4, "3", "ok")]
    assert [row.problem.code for row in rows[3:]] == ["E101", "E110"]


def test_a_line_too_long_is_one_broken_row():
    data = b"q,a\n1,2\n" + b"x" * (LINE_BYTES + 1) + b"\n3,4"
    assert show(read(data)) == [(2, "1", "2"), (3, "E101", "too_long"), (4, "3", "4")]


@pytest.mark.parametrize(
    ("data", "columns", "line"),
    [
        ("q,a\n1,2\n", ("q", "a"), 1),
        (" q , a \n1,2\n", ("q", "a"), 1),
        (",text\n0,x\n1,y\n", ("column_1", "text"), 1),
        ("Report of 2024\nmade by us\n\nq;a\n1;2\n3;4\n", ("q", "a"), 4),
        ("Umsatz\nq;a\n1;2\n3;4\n", ("q", "a"), 2),
        ("Title;;\n;;\nq;a;b\n1;2;3\n", ("q", "a", "b"), 3),
        ("name,2023,2024\nx,1,2\n", ("name", "2023", "2024"), 1),
        ("0,1\na,b\n", ("0", "1"), 1),
        ("1,What is it?,A cat\n2,And that?,A dog\n", ("column_1", "column_2", "column_3"), 0),
        (f"{'long text ' * 30},b\nx,y\n", ("column_1", "column_2"), 0),
        ("q,a\none,two,three\nfour,five,six\n", ("q", "a"), 1),
        ("text\nOne, two\nthree\n", ("text",), 1),
        ("text\nOne, two\nthree, four\n", ("text",), 1),
        ("word\nfoo\nbar\n", ("word",), 1),
        ("q,a\n", ("q", "a"), 1),
        ("", (), 0),
    ],
)
def test_the_header_is_found(data, columns, line, english):
    layout = find(data)
    assert (layout.columns, layout.header_line) == (columns, line)
    assert all(english(reason) != reason.id for reason in layout.reasons)


def test_rows_without_a_header_are_all_kept():
    rows = read("1,What is it?\n2,And that?\n")
    assert [dict(row.values) for row in rows] == [
        {"column_1": "1", "column_2": "What is it?"},
        {"column_1": "2", "column_2": "And that?"},
    ]


def test_a_person_decides():
    data = "x;y\na,b\n1;2,3\n"
    assert find(data, delimiter=",", header_row=2).columns == ("a", "b")
    assert find(data, delimiter=";", header_row=1).columns == ("x", "y")
    assert [dict(row.values) for row in read("q,a\n1,2\n", header_row=-1)] == [
        {"column_1": "q", "column_2": "a"},
        {"column_1": "1", "column_2": "2"},
    ]


def test_one_column_may_hold_commas():
    data = 'text\nOne, two\n"a, ""b"""\nplain\n'
    assert [row.values["text"] for row in read(data)] == ["One, two", 'a, "b"', "plain"]


def test_blanks_before_quotation_marks():
    data = '"q", "a"\n"x, y", "z, ""w"""\n1, plain\n'
    assert [row.values for row in read(data)] == [{"q": "x, y", "a": 'z, "w"'}, {"q": "1", "a": " plain"}]
    assert [row.values for row in read('q,a\n"x", "y"\n"x, 1", "y"\n')][0] == {"q": "x", "a": "y"}


def test_names_that_come_twice_are_numbered():
    assert read("q,a,q\n1,2,3\n")[0].values == {"q 1": "1", "a": "2", "q 2": "3"}
    with pytest.raises(StudioError) as refusal:
        read("q,q 1,q\n1,2,3\n", name="a.csv")
    assert refusal.value.why.id == "data.source.header" and refusal.value.what.values["name"] == "a.csv"


def test_tabs_without_quoting():
    data = 'q\ta\n"Hi" she said\tyes\n"quoted\tcell"\tx\n"open\tz\n'
    assert show(read(data, container=delimited.TSV)) == [
        (2, '"Hi" she said', "yes"),
        (3, "quoted\tcell", "x"),
        (4, '"open', "z"),
    ]
    assert delimited.TSV.accepts(b"", ".tsv") and not delimited.CSV.accepts(b"", ".tsv")
    assert [row.values for row in read("q,a\n1,2\n", container=delimited.TSV)] == [{"q": "1", "a": "2"}]


def test_a_first_record_longer_than_the_head(monkeypatch):
    monkeypatch.setattr(delimited, "HEAD_LINES", 10)
    text = "a, b, c\n" * 50
    assert [row.values for row in read(f'q;a\n"{text}";2\n3;4\n')] == [
        {"q": text, "a": "2"},
        {"q": "3", "a": "4"},
    ]


def test_what_cards_say_of_themselves_stands_above_their_table(tmp_path):
    path = tmp_path / "cards.txt"
    lines = ["#separator:tab", "#html:false", *(f"When does boat {i} go?\tAt {i} sharp." for i in range(8))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    report = describe(DatasetSpec(source=str(path), mapping={"prompt": "column_1", "completion": "column_2"}))
    assert report["container"] == "tsv" and report["rows_used"] == 8
