"""Reading files: every container, exact line numbers of broken rows, values verbatim, refusals with a sentence."""

import json

import pytest

from studio.core.errors import StudioError
from studio.data.source import read_rows


def read_good(path) -> list[dict]:
    return [dict(row.values) for row in read_rows(str(path)) if row.problem is None]


def read_broken(path) -> list[tuple[int, str, str]]:
    return [
        (row.line, row.problem.code, row.problem.message.id) for row in read_rows(str(path)) if row.problem
    ]


def refuse(path) -> StudioError:
    with pytest.raises(StudioError) as refusal:
        read_rows(str(path))
    assert refusal.value.exit_code == 2
    return refusal.value


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
    assert [(row.line, dict(row.values)) for row in read_rows(str(path)) if not row.problem] == [
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
        assert read_rows(str(path)).container == "json"


def test_containers_are_known_by_their_content(tmp_path):
    lines = tmp_path / "lines.json"
    lines.write_text('{"a": "1"}\n{"a": "2"}\n', encoding="utf-8")
    array = tmp_path / "array.jsonl"
    array.write_text('[\n{"a": "1"},\n{"a": "2"}]', encoding="utf-8")
    assert (read_rows(str(lines)).container, read_rows(str(array)).container) == ("jsonl", "json")
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
        (8, "E101", "data.row.quotes"),
    ]
    assert [row.line for row in read_rows(str(path)) if row.problem is None] == [2, 7]


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


def test_content_hash_follows_the_bytes(tmp_path, jsonl):
    paths = [jsonl(tmp_path / f"{i}.jsonl", [{"text": word}]) for i, word in enumerate(["a", "a", "b"])]
    one, same, other = (read_rows(str(path)).content_hash for path in paths)
    assert one == same != other and len(one) == 64


@pytest.mark.parametrize(
    ("name", "content", "what", "why"),
    [
        ("a.jsonl", b"", "data.source.empty", "data.source.empty.why"),
        ("a.jsonl", b"\n \n", "data.source.empty", "data.source.empty.why"),
        ("a.json", b"[]", "data.source.empty", "data.source.empty.why"),
        ("a.json", b"", "data.source.empty", "data.source.empty.why"),
        ("a.csv", b"q,a\n", "data.source.empty", "data.source.empty.why"),
        ("a.csv", b"q,q\n1,2\n", "data.source.unreadable", "data.source.header"),
        ("a.csv", "q,a\nä,b\n".encode("cp1252"), "data.source.unreadable", "data.source.encoding"),
        ("a.jsonl", '{"a": "b"}'.encode("utf-16"), "data.source.unreadable", "data.source.encoding"),
        ("a.json", '[{"a": "b"}]'.encode("utf-16"), "data.source.unreadable", "data.source.encoding"),
        ("a.json", b'[{"a": 1},\n{"a": }]', "data.source.unreadable", "data.source.json_broken"),
        ("a.xyz", b"something", "data.source.unreadable", "data.source.kind"),
        ("a.parquet", b"PAR1 not really", "data.source.unreadable", "data.source.parquet_broken"),
    ],
)
def test_refused_files(tmp_path, name, content, what, why):
    path = tmp_path / name
    path.write_bytes(content)
    refusal = refuse(path)
    assert (refusal.what.id, refusal.why.id) == (what, why)


def test_broken_json_is_named_by_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[\n{"a": 1},\n{"a": }\n]')
    assert refuse(path).why.values["line"] == 3


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("", "data.source.none"),
        ("nowhere.jsonl", "data.source.missing"),
        ("folder/nowhere.csv", "data.source.missing"),
        ("https://somewhere/x.jsonl", "data.source.address"),
        ("zip://a.jsonl::b.zip", "data.source.address"),
        ("..", "data.source.folder"),
        ("../../etc/nothing", "data.source.missing"),
    ],
)
def test_refused_names(source, what):
    assert refuse(source).what.id == what


def test_folder_beats_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert refuse("owner/name").what.id == "data.source.folder"


def test_a_hub_name_is_refused_without_asking_anyone(english):
    refusal = refuse("owner/name")
    assert refusal.what.id == "data.source.hub"
    assert "path of the file" in english(refusal.fix)
