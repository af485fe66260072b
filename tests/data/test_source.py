"""Opening a data set: files, folders, archives, encodings, sheets; exact lines, values verbatim, refusals in words."""

import gzip
import json
import os
import random
import time
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec
from studio.data.source import SAMPLE_ROWS, open_source


def open_path(path, **fields):
    return open_source(DatasetSpec(source=str(path), **fields))


def read_rows(path, part="train", **fields) -> list:
    return [row for file in open_path(path, **fields).splits[part] for row in file.rows()]


def read_good(path, **fields) -> list[dict]:
    return [dict(row.values) for row in read_rows(path, **fields) if row.problem is None]


def read_broken(path) -> list[tuple[int, str, str]]:
    return [(row.line, row.problem.code, row.problem.message.id) for row in read_rows(path) if row.problem]


def refuse(path, **fields) -> StudioError:
    with pytest.raises(StudioError) as refusal:
        read_rows(path, **fields)
    error = refusal.value
    assert error.exit_code == 2
    for language in ("en", "zh-CN"):
        words = load_catalogue(language)
        for part in (error.what, error.why, error.fix):
            assert words.has(part.id), part.id
            said = words.say(part)
            assert len(said) <= 300 and "{" not in said, said
    return error


def test_jsonl_names_the_broken_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        b'{"text": "one"}',
        b"",
        b'{"text": "two"',
        b'["no object"]',
        b"",
        b'{"text": "\xff"}',
        b'{"text": "ok"}',
    ]
    path.write_bytes(b"\r\n".join(lines))
    assert read_broken(path) == [
        (3, "E101", "data.row.not_json"),
        (4, "E101", "data.row.not_object"),
        (6, "E110", "data.row.not_utf8"),
    ]
    assert [(row.line, dict(row.values)) for row in read_rows(path) if not row.problem] == [
        (1, {"text": "one"}),
        (7, {"text": "ok"}),
    ]


def test_broken_line_deep_in_a_file(tmp_path):
    path = tmp_path / "long.jsonl"
    lines = [json.dumps({"text": f"row {i}"}) for i in range(1, 3001)]
    lines[2500] = lines[2500][:-1]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_broken(path) == [(2501, "E101", "data.row.not_json")]


def test_hostile_lines_are_rows_not_crashes(tmp_path):
    path = tmp_path / "hostile.jsonl"
    lines = [
        '{"a": ' * 3000 + "1" + "}" * 3000,
        '{"text": "\\ud800"}',
        '{"n": NaN, "big": 123456789012345678901234567890}',
    ]
    path.write_text("\n".join([*lines, '{"n": ' + "9" * 5000 + "}"]), encoding="utf-8")
    assert [line for line, _, _ in read_broken(path)] == [1, 2, 4]
    assert read_good(path)[0]["big"] == 123456789012345678901234567890


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_utf8_mark_is_no_part_of_the_data(tmp_path, name):
    content = {"a.jsonl": '{"text": "ü"}\n', "a.json": '[{"text": "ü"}]', "a.csv": "text\nü\n"}[name]
    path = tmp_path / name
    path.write_bytes(b"\xef\xbb\xbf" + content.encode("utf-8"))
    assert read_good(path) == [{"text": "ü"}]


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ([{"a": "1"}, {"a": "2"}], [{"a": "1"}, {"a": "2"}]),
        ({"version": 1, "data": [{"a": "1"}]}, [{"a": "1"}]),
        ({"a": ["1", "2"], "b": ["x", "y"]}, [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]),
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            [{"messages": [{"role": "user", "content": "hi"}]}],
        ),
        ({"instruction": "a", "output": "b"}, [{"instruction": "a", "output": "b"}]),
    ],
)
def test_json_shapes(tmp_path, value, rows):
    path = tmp_path / "a.json"
    for indent in (None, 2):
        path.write_text(json.dumps(value, indent=indent), encoding="utf-8")
        assert read_good(path) == rows
        assert open_path(path).container == "json"


def test_containers_are_known_by_their_content(tmp_path):
    lines = tmp_path / "lines.json"
    lines.write_text('{"a": "1"}\n{"a": "2"}\n', encoding="utf-8")
    array = tmp_path / "array.jsonl"
    array.write_text('[\n{"a": "1"},\n{"a": "2"}]', encoding="utf-8")
    assert (open_path(lines).container, open_path(array).container) == ("jsonl", "json")
    assert read_good(lines) == read_good(array) == [{"a": "1"}, {"a": "2"}]


def test_csv_is_verbatim(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'q,a\r\n007,NA\r\nnull,"1e5"\r\n"two\r\nlines, one cell","say ""hi"""\r\n')
    assert read_good(path) == [
        {"q": "007", "a": "NA"},
        {"q": "null", "a": "1e5"},
        {"q": "two\r\nlines, one cell", "a": 'say "hi"'},
    ]


def test_csv_names_the_line_where_a_broken_record_begins(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        'q,a\n"two\nlines",x\nonly one\nx,y,z\n"bad"quote,y\ngood,row\n"never,closed\n', encoding="utf-8"
    )
    assert read_broken(path) == [
        (4, "E101", "data.row.cells"),
        (5, "E101", "data.row.cells"),
        (6, "E101", "data.row.quotes"),
        (8, "E101", "data.row.quote_open"),
    ]
    assert [row.line for row in read_rows(path) if row.problem is None] == [2, 7]


def test_csv_separators(tmp_path):
    for name, separator in (("a.csv", ";"), ("b.tsv", "\t"), ("c.csv", ",")):
        path = tmp_path / name
        path.write_text(f"q{separator}a\n1{separator}2\n", encoding="utf-8")
        assert read_good(path) == [{"q": "1", "a": "2"}]


def test_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    rows = [{"messages": [{"role": "user", "content": str(i)}], "n": i} for i in range(2500)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert read_good(path) == rows
    path.write_bytes(path.read_bytes()[:2000])
    assert refuse(path).why.id == "data.source.parquet_broken"


@pytest.mark.parametrize(
    ("name", "content", "what", "why"),
    [
        ("a.jsonl", b"", "data.source.empty", "data.source.empty.why"),
        ("a.jsonl", b"\n \n", "data.source.empty", "data.source.empty.why"),
        ("a.jsonl", b"\xef\xbb\xbf\n", "data.source.empty", "data.source.empty.why"),
        ("a.json", b"[]", "data.source.empty", "data.source.empty.why"),
        ("a.json", b"", "data.source.empty", "data.source.empty.why"),
        ("a.csv", b"q,a\n", "data.source.empty", "data.source.empty.why"),
        ("a.parquet", b"", "data.source.empty", "data.source.empty.why"),
        ("a.csv", b"q,q 1,q\n1,2,3\n", "data.source.unreadable", "data.source.header"),
        ("a.yaml", b"- [1, 2", "data.source.unreadable", "data.source.yaml"),
        ("a.yaml", b"just words", "data.source.unreadable", "data.source.yaml"),
        ("a.yaml", b"a: &a [x, y]\nb: *a\n", "data.source.unreadable", "data.source.yaml"),
        ("a.xyz", b"%PDF-1.7 something", "data.source.unreadable", "data.source.kind"),
        ("a.jsonl", '{"a": "b"}'.encode("utf-32"), "data.source.unreadable", "data.source.encoding"),
        ("a.parquet", b"PAR1 not really", "data.source.unreadable", "data.source.parquet_broken"),
        ("a.parquet", b"something else", "data.source.unreadable", "data.source.parquet_broken"),
        ("a.arrow", b"something else", "data.source.unreadable", "data.source.arrow_broken"),
        ("a.xlsx", b"PK\x03\x04 not really", "data.source.unreadable", "data.source.workbook_broken"),
        ("a.xlsx", b"something else", "data.source.unreadable", "data.source.workbook_broken"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0" + b"x" * 99, "data.source.unreadable", "data.source.workbook_locked"),
        ("a.jsonl.gz", b"\x1f\x8b\x08 no", "data.source.unreadable", "data.packing.broken"),
        ("a.csv", b"\n\n<!DOCTYPE html>\n<html>\n", "data.source.unreadable", "data.source.page"),
        ("a.json", b"<html lang=en>\n<body>\n", "data.source.unreadable", "data.source.page"),
        *(
            (
                f"a.{kind}",
                b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
                "data.source.unreadable",
                "data.source.pointer",
            )
            for kind in ("jsonl", "csv", "parquet", "txt", "json")
        ),
    ],
)
def test_refused_files(tmp_path, name, content, what, why):
    path = tmp_path / name
    path.write_bytes(content)
    refusal = refuse(path)
    assert (refusal.what.id, refusal.why.id) == (what, why)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("", "data.source.none"),
        ("nowhere.jsonl", "data.source.missing"),
        ("folder/nowhere.csv", "data.source.missing"),
        ("../../etc/nothing", "data.source.missing"),
        ("a\0b.jsonl", "data.source.missing"),
        ("http://somewhere/x.jsonl", "data.source.scheme"),
        ("file:///etc/passwd", "data.source.scheme"),
        ("ftp://somewhere/x.jsonl", "data.source.scheme"),
        ("s3::https://somewhere/x.jsonl", "data.source.scheme"),
        ("zip://a.jsonl::b.zip", "data.source.scheme"),
        ("https://somewhere/x.jsonl", "data.remote.unfetched"),
        ("owner/name", "data.remote.unfetched"),
    ],
)
def test_refused_names(source, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refuse(source).what.id == what


def test_paths_that_are_too_long():
    assert refuse("x" * 5000).what.id == refuse("x/" * 3000 + "y").what.id == "data.source.unreadable"


def test_special_files_and_dead_links(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert refuse(tmp_path / "pipe.jsonl").why.id == "data.source.special"
    (tmp_path / "dead.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert refuse(tmp_path / "dead.jsonl").why.id == "data.source.link"
    (tmp_path / "round.jsonl").symlink_to(tmp_path / "round.jsonl")
    assert refuse(tmp_path / "round.jsonl").what.id == "data.source.unreadable"
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / "train.jsonl")
    assert refuse(tmp_path / "data").why.id == "data.source.special"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="Linux has such files")
def test_files_of_the_kernel_are_not_read(tmp_path):
    """One of them, the kernel's log, is waited for without end."""
    for name in ("/proc/kmsg", "/proc/self/environ", "/proc", "/sys/kernel"):
        assert refuse(name).why.id == "data.source.special"
    (tmp_path / "rows.jsonl").symlink_to("/proc/kmsg")
    assert refuse(tmp_path / "rows.jsonl").why.id == "data.source.special"
    assert refuse(tmp_path).why.id == "data.source.special"


def test_what_the_system_refuses(tmp_path, monkeypatch, jsonl):
    """As root nothing is forbidden here, so that the system's refusal is played."""
    path = jsonl(tmp_path / "a.jsonl", [{"text": "x"}])
    file = open_path(path).splits["train"][0]

    open_ = type(path).open

    def deny(self, *arguments, **options):
        if self == path:
            raise PermissionError(13, "Permission denied")
        return open_(self, *arguments, **options)

    monkeypatch.setattr(type(path), "open", deny)
    assert refuse(path).why.values["message"] == "Permission denied"
    monkeypatch.undo()
    path.unlink()  # between the look and the reading
    with pytest.raises(StudioError) as refusal:
        list(file.rows())
    assert refusal.value.why.id == "data.source.system"


def test_a_path_of_this_computer_beats_a_hub_name(tmp_path, monkeypatch, jsonl, english):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert refuse("owner/name").what.id == "data.folder.no_rows"
    jsonl(tmp_path / "owner" / "name" / "train.jsonl", [{"text": "x"}])
    source = open_path("owner/name")
    assert [row.values for row in source.sample] == [{"text": "x"}]
    assert "read from this computer" in english(source.notes[0])


# Encodings and sheets ------------------------------------------------------------------------------------------------

GERMAN = "frage;antwort\nWie heißt die größte Stadt?;Köln ist es nicht, München auch nicht\n" * 3


def test_an_encoding_is_guessed_and_asked_about(tmp_path, english):
    path = tmp_path / "fragen.csv"
    path.write_bytes(GERMAN.encode("cp1252"))
    source = open_path(path)
    assert (source.encoding, source.encoding_sure) == ("cp1252", False)
    [question] = source.questions
    assert question.field == "data.encoding" and question.choices == source.encoding_choices
    assert question.choices[0] == "cp1252" and "fragen.csv" in english(question.question)
    assert source.sample[0].values["frage"] == "Wie heißt die größte Stadt?"
    answered = open_path(path, encoding="cp1252")
    assert not answered.questions and answered.encoding_sure and answered.sample == source.sample


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_say_themselves(tmp_path, encoding):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "ü 漢字"}\n{"text": "b"}\n'.encode(encoding))
    source = open_path(path)
    assert source.encoding == encoding and source.encoding_sure and not source.questions
    assert read_good(path) == [{"text": "ü 漢字"}, {"text": "b"}]


def test_an_encoding_that_is_not_known(tmp_path):
    assert refuse(tmp_path, encoding="klingon").what.id == "data.source.encoding_unknown"


def test_sheets_are_asked_about(tmp_path, english):
    import openpyxl

    book = openpyxl.Workbook()
    for name in ("first", "second"):
        sheet = book.create_sheet(name)
        sheet.append(["text"])
        sheet.append([name])
        sheet.append(["=1+1"])
    path = tmp_path / "book.xlsx"
    book.save(path)
    source = open_path(path)
    assert source.questions[0].field == "data.sheet" and source.questions[0].choices == ("first", "second")
    assert source.sample[0].values == {"text": "first"}
    assert [note.id for note in source.notes] == ["data.source.formulas"]
    assert read_good(path, sheet="second")[0] == {"text": "second"}
    assert not open_path(path, sheet="second").questions
    assert refuse(path, sheet="third").why.id == "data.source.sheet"


# Samples -------------------------------------------------------------------------------------------------------------


def test_the_sample_is_the_head(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"text": f"row {i}"} for i in range(1500)])
    source = open_path(path)
    assert [row.line for row in source.sample] == list(range(1, SAMPLE_ROWS + 1))
    long = jsonl(tmp_path / "long.jsonl", [{"text": "x" * 2**20} for _ in range(20)])
    assert 8 <= len(open_path(long).sample) <= 9


def test_columns_are_those_of_the_sample(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"a": "1"}, {"b": "2", "a": "3"}])
    assert open_path(path).columns == ("a", "b")


@pytest.mark.computing
def test_more_of_the_sample_comes_from_the_middle_and_the_end(tmp_path):
    path = tmp_path / "a.jsonl"
    count = 60_000
    path.write_bytes(b"".join(b'{"n": %d, "text": "%s"}\n' % (i, b"x" * (i % 50)) for i in range(count)))
    source = open_path(path)
    more = source.sample_more(600)
    numbers = [row.values["n"] for row in more]
    assert 500 <= len(more) <= 600 and numbers == sorted(set(numbers))
    assert numbers[0] >= SAMPLE_ROWS and numbers[-300:] == list(range(count - 300, count))
    assert sum(SAMPLE_ROWS < n < count - 300 for n in numbers) >= 200
    assert max(b - a for a, b in zip(numbers, numbers[1:], strict=False)) < count // 3
    assert more == open_path(path).sample_more(600)
    data = path.read_bytes()
    assert all(data[row.offset :].startswith(b'{"n": %d,' % row.values["n"]) for row in more)


def test_more_of_a_small_file_is_nothing(tmp_path, jsonl):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "x"}] * 20)
    assert open_path(path).sample_more(100) == ()


@pytest.mark.computing
def test_a_large_file_is_looked_at_in_a_second(tmp_path):
    """The brief speaks of 1 GB; what is read does not grow with the file, which 200 MB show."""
    chance = random.Random(0)
    row = json.dumps({"instruction": "word " * 60, "output": "answer " * 50}).encode() + b"\n"
    block = row * 1000
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        for _ in range(200_000_000 // len(block)):
            file.write(block)
    packed = tmp_path / "b.jsonl.gz"
    words = "".join(json.dumps({"text": f"{chance.random()} " * 20}) + "\n" for _ in range(150_000))
    packed.write_bytes(gzip.compress(words.encode(), 1))
    table = tmp_path / "c.csv"
    table.write_text("question,answer\n" + '"what, then",that\n' * 3_000_000, encoding="utf-8")
    for one in (path, packed, table):
        started_s = time.perf_counter()
        open_path(one).sample_more(1000)
        assert time.perf_counter() - started_s < 1.5, one.name  # some 0.1, 0.4 and 0.2 on an idle machine


@pytest.mark.parametrize(
    ("name", "content", "container"),
    [
        ("wiki.train.tokens", " = A title = \n\n Words of an article .\n\n Others .\n", "txt"),
        ("pairs.data", "".join(f"a {i}\tb {i}\n" for i in range(9)), "tsv"),
        ("export", "ask,say\n" + "".join(f"a {i},b {i}\n" for i in range(9)), "csv"),
    ],
)
def test_an_ending_that_says_nothing(tmp_path, name, content, container):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert open_source(DatasetSpec(source=str(path))).container == container
