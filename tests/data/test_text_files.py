"""Plain text and Markdown: what a row is and why, and that its words stay as they are."""

import io

import pytest

from studio.data.containers import text_files
from studio.data.containers.container import ReadOptions
from studio.data.containers.text_files import MD, ONE_ROW_BYTES, PIECE_BYTES, TXT, choose_pieces

LONG = "word " * (ONE_ROW_BYTES // 5) + "\n"


def read(data: bytes | str, encoding: str = "utf-8", container=TXT, **options) -> list:
    stream = io.BytesIO(data if isinstance(data, bytes) else data.encode(encoding))
    return list(container.iterate(stream, encoding, ReadOptions(**options)))


def texts(*values, **options) -> list:
    return [row.values["text"] for row in read(*values, **options)]


@pytest.mark.parametrize(
    ("head", "markdown", "value"),
    [
        ("short\n\ntext", False, "file"),
        (LONG + "\nmore", False, "paragraphs"),
        (LONG + "\r\nmore", False, "paragraphs"),
        (LONG + "more\nlines", False, "lines"),
        (LONG + "# a\n\nb\n# c\n", True, "sections"),
        (LONG + "# a\n\nb\n# c\n", False, "paragraphs"),
        (LONG + "# a\n\nb\n", True, "paragraphs"),
    ],
)
def test_what_a_row_is(head, markdown, value, english):
    choice = choose_pieces(head.encode(), markdown=markdown)
    assert choice.value == value and english(choice.reason).endswith((".", "KB."))
    chosen = choose_pieces(head.encode(), ReadOptions(pieces="lines"), markdown=markdown)
    assert (chosen.value, chosen.reason.id) == ("lines", "data.plain.chosen")


def test_a_small_file_is_one_row():
    assert texts("\n\n  indented\r\n\r\n second\x0c \u2028\r\n\r\n") == ["  indented\n\n second\x0c \u2028"]
    assert texts("") == texts(" \n\t\n") == []


def test_a_long_file_is_cut_at_blank_lines():
    rows = read("first\n" + LONG + "\n \n\nthird\nline\n\n" + "last")
    assert [row.values["text"] for row in rows] == ["first\n" + LONG[:-1], "third\nline", "last"]
    assert [(row.line, row.row) for row in rows] == [(1, 1), (6, 2), (9, 3)]
    assert texts(LONG + "two\n three ") == [LONG[:-1], "two", " three "]


def test_places_and_raw_bytes():
    data = b"\xef\xbb\xbfone\r\n\r\n\r\ntwo\r\nthree"
    rows = read(data, "utf-8-sig", pieces="paragraphs")
    assert [(row.line, row.offset, row.values["text"]) for row in rows] == [
        (1, 3, "one"),
        (4, 12, "two\nthree"),
    ]
    assert all(data[row.offset :].startswith(row.raw.rstrip()) for row in rows)


def test_markdown_sections_and_code():
    data = "intro\n\n# One\ntext\n\n```sh\n\n# a comment\n```\nmore\n## Two\n#hashtag\n"
    assert texts(data, container=MD, pieces="sections") == [
        "intro",
        "# One\ntext\n\n```sh\n\n# a comment\n```\nmore",
        "## Two\n#hashtag",
    ]
    assert texts("a\n\n```\nx\n\ny\n```\n\nb", container=MD, pieces="paragraphs") == [
        "a",
        "```\nx\n\ny\n```",
        "b",
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "gb18030", "shift_jis"])
def test_encodings(encoding):
    assert texts("日本\n\n語", encoding, pieces="paragraphs") == ["日本", "語"]


def test_broken_pieces_cost_themselves_only():
    rows = read(b"one\n\nb\xffd\n\nn\0l\n\nlast", pieces="paragraphs")
    assert [row.problem and (row.line, row.problem.code, row.problem.message.id) for row in rows] == [
        None,
        (3, "E110", "data.row.not_encoding"),
        (5, "E110", "data.row.nul"),
        None,
    ]


def test_a_piece_too_long_is_passed_in_little_memory():
    rows = read(b"one\n\n" + b"xxxxxxxxx\n" * (PIECE_BYTES // 10 + 10) + b"\nlast", pieces="paragraphs")
    assert [row.problem and (row.line, row.problem.message.id) for row in rows] == [
        None,
        (3, "data.row.too_long"),
        None,
    ]
    assert len(rows[1].raw) <= text_files.RAW_BYTES


def test_names():
    assert TXT.accepts(b"x", ".txt") and not TXT.accepts(b"x", ".md") and MD.accepts(b"x", ".md")


@pytest.mark.parametrize("sign", [" +++$+++ ", "|||", " @@@ "])
def test_a_run_of_signs_in_every_line_parts_cells(sign):
    lines = [sign.join((f"u{n % 2}", "Ilka", f"The ferry goes at {n}.")) for n in range(8)]
    rows = [row.values for row in read("\n".join(lines) + "\n")]
    assert len(rows) == 8
    assert rows[1] == {"column_1": "u1", "column_2": "Ilka", "column_3": "The ferry goes at 1."}


@pytest.mark.parametrize(
    "line",
    [
        "It went on ...",
        "https://ferry.example",
        "***late***",
        "if a === b: go",
        "x ||| y ||| z",
        '<b id="a"/>x',
    ],
)
def test_signs_of_prose_links_and_code_part_nothing(line):
    lines = [line] * 7 + ["a line without any of them"] * line.startswith("x |||")
    assert len(texts("\n".join(lines) + "\n")) == 1


@pytest.mark.parametrize("dash", [" - ", " – ", " = "])
def test_a_list_of_words_is_a_table(dash):
    lines = [f"knot {n}{dash}what holds the rope - for a while" for n in range(9)]
    assert read("\n".join(lines))[8].values == {
        "column_1": "knot 8",
        "column_2": "what holds the rope - for a while",
    }
    assert "text" in read("\n".join([*lines, "And that was all of them.", ""]))[0].values


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ('{"question": "far?", "answer": "no"}\n{"question": "near?", "answer": "yes"}\n', False),
        ('[\n {"question": "far?"},\n {"question": "near?"}]', False),
        ('[{"question": "far?"}]', False),
        ('{"port": 7} is what the file said.\n', True),
        ("{braces} stand here\n{and} here\n", True),
        ("[1] A note.\n[2] Another one.\n", True),
    ],
)
def test_objects_in_a_file_of_text_are_rows(words, taken):
    assert TXT.accepts(words.encode(), ".txt") is taken
