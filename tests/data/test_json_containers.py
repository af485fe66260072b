"""JSON in lines and as one text: every shape, exact places of broken rows, and reading on behind each."""

import io
import json
import tracemalloc

import orjson
import pytest

from studio.core.errors import StudioError
from studio.data.containers import json_document, json_lines, json_stream, json_text
from studio.data.containers.container import ReadOptions
from studio.data.line_reader import LineReader
from studio.data.row import RAW_BYTES


def read_lines(data: bytes | str, encoding: str = "utf-8") -> list:
    return list(
        json_lines.iterate(io.BytesIO(data if isinstance(data, bytes) else data.encode(encoding)), encoding)
    )


def read_whole(data: bytes | str, encoding: str = "utf-8") -> list:
    return list(
        json_document.iterate(
            io.BytesIO(data if isinstance(data, bytes) else data.encode(encoding)), encoding
        )
    )


def show(rows) -> list:
    """Each row's line with its values, or with its code and text."""
    return [
        (r.line, r.problem.code, r.problem.message.id[9:]) if r.problem else (r.line, dict(r.values))
        for r in rows
    ]


# Lines


def test_lines_have_their_places():
    data = b'{"a": 1}\r\n\r\n  {"a": 2}\n{"a": \n{"a": 3}'
    rows = read_lines(data)
    assert show(rows) == [(1, {"a": 1}), (3, {"a": 2}), (4, "E101", "not_json"), (5, {"a": 3})]
    assert [(row.row, row.offset, row.raw) for row in rows] == [
        (1, 0, b'{"a": 1}\r'),
        (2, 12, b'  {"a": 2}'),
        (3, 23, b'{"a": '),
        (4, 30, b'{"a": 3}'),
    ]
    assert rows[2].problem.raw == b'{"a": ' and rows[2].problem.offset == 23


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (b'{"a" 1}', "E101", "not_json"),
        (b'{"a": 1 "b": 2}', "E101", "not_json"),
        (b'{"a": 1} {"b": 2}', "E101", "not_json"),
        (b"{'a': f()}", "E101", "not_json"),
        (b"[1]", "E101", "not_object"),
        (b'"words"', "E101", "not_object"),
        (b"null", "E101", "not_object"),
        (b'{"a": ' * 2000 + b"1" + b"}" * 2000, "E101", "too_deep"),
        (b'{"a": ' * 300 + b"1" + b"}" * 300, "E101", "too_deep"),
        (b"[" * 100_000, "E101", "too_deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "E101", "number_too_long"),
        (b'{"a": "\\ud800"}', "E110", "surrogate"),
        (b'{"a\\udc00": 1}', "E110", "surrogate"),
        (b'{"a": "x\0y"}', "E110", "nul"),
        (b'{"a": ["x\\u0000y"]}', "E110", "nul"),
        (b'{"x\\u0000": 1}', "E110", "nul"),
        (b'{"a": 1, "b": 2, "a": 3}', "E111", "key_twice"),
        (b'{"a" : 1, "a" : 1}', "E111", "key_twice"),
        (b'{"a":[{"b":"x\\":y","c":{"d":1,"d":2}}]}', "E111", "key_twice"),
        (b'{"a":99999999999999999999999,"a":2}', "E111", "key_twice"),
        (b"\0" * 100, "E110", "nul"),
        (b'{"a": "caf\xe9"}', "E110", "not_utf8"),
        (b'{"a": "\xed\xa0\x80"}', "E110", "not_utf8"),
    ],
)
def test_hostile_lines_cost_themselves_only(line, code, message):
    assert show(read_lines(b'{"a": 0}\n' + line + b'\n{"a": 1}')) == [
        (1, {"a": 0}),
        (2, code, message),
        (3, {"a": 1}),
    ]
    whole = (
        show(read_whole(b'[{"a": 0},\n' + line.lstrip(b"\0") + b',\n{"a": 1}]'))
        if message != "not_json"
        else None
    )
    if whole and line.startswith(b"{"):
        assert whole == [(1, {"a": 0}), (2, code, message), (3, {"a": 1})]


def test_the_character_where_json_breaks(english):
    (row,) = read_lines('{"ä": 1 "b": 2}')
    assert "character 9" in english(row.problem.sentence)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"a": 123456789012345678901234567890}', 123456789012345678901234567890),
        ('{"a": -9223372036854775809}', -9223372036854775809),
        ('{"a": 18446744073709551616, "t": "long enough to be looked at"}', 18446744073709551616),
        ('{"a": Infinity}', float("inf")),
        ('{"a": 1.0}', 1.0),
        ('{"a": "\\\\u0000"}', "\\u0000"),
        ('{"a": "\u2028\x85\x7f"}', "\u2028\x85\x7f"),
        ('{"a": "\\ud83d\\ude42"}', "🙂"),
    ],
)
def test_values_are_exact(line, value):
    for rows in (read_lines(line), read_whole(f"[{line}]")):
        assert rows[0].values["a"] == value and type(rows[0].values["a"]) is type(value)
    assert read_lines('{"a": NaN}')[0].values["a"] != 0


@pytest.mark.parametrize("places", range(19, 40))
def test_big_integers_are_found_wherever_they_stand(places):
    for before in range(12):
        line = json.dumps({"t": "x" * before, "a": 10**places + 1})
        assert read_lines(line)[0].values["a"] == 10**places + 1


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "gb18030", "cp1252", "shift_jis"]
)
def test_every_encoding(encoding):
    word = {"cp1252": "é"}.get(encoding, "中")
    data = f'{{"a": "{word}"}}\n\n{{"a": }}\n'.encode(encoding)
    rows = read_lines(data, encoding)
    assert show(rows) == [(1, {"a": word}), (3, "E101", "not_json")]
    assert all(data[row.offset :].startswith(row.raw) for row in rows)
    data = f'[{{"a": "{word}"}},\n{{"a": }}]'.encode(encoding)
    rows = read_whole(data, encoding)
    assert show(rows) == [(1, {"a": word}), (2, "E101", "not_json")]
    assert all(row.raw and data[row.offset :].startswith(row.raw) for row in rows)


def test_a_line_of_utf8_in_a_file_of_another_encoding():
    data = b'{"a": "\xe9"}\n' + '{"a": "é"}\n'.encode()
    assert show(read_lines(data, "cp1252")) == [(1, {"a": "é"}), (2, "E110", "mixed")]


def test_bytes_that_the_encoding_does_not_know():
    data = b'{"a": "\x81"}\n{"a": "\xe9"}'
    assert show(read_lines(data, "cp1252")) == [(1, "E110", "not_encoding"), (2, {"a": "é"})]
    assert show(read_whole(b"[" + data.replace(b"\n", b",\n") + b"]", "cp1252")) == [
        (1, "E110", "not_utf8"),
        (2, {"a": "é"}),
    ]


def test_a_line_too_long(monkeypatch):
    data = b'{"a": "' + b"x" * RAW_BYTES + b'"}\n{"a": 1}'
    reader = LineReader(io.BytesIO(data), limit_bytes=RAW_BYTES)
    rows = list(json_lines.read_lines(reader))
    assert show(rows) == [(1, "E101", "too_long"), (2, {"a": 1})]
    assert len(rows[0].raw) == RAW_BYTES


def test_the_last_line_of_a_part_may_be_numbered_from_anywhere():
    rows = list(json_lines.read_lines(LineReader(io.BytesIO(b'{"a": 1}\n'), number=40, offset=900), row=30))
    assert [(row.line, row.row, row.offset) for row in rows] == [(40, 30, 900)]


@pytest.mark.parametrize(
    ("head", "suffix", "lines", "whole"),
    [
        (b'{"a": 1}\n{"a": 2}', ".jsonl", True, True),
        (b'{"a": 1}', ".jsonl", True, True),
        (b'{"a": 1}\n{"a": 2}', ".json", True, True),
        (b'{"a": 1}\n', ".json", False, True),
        (b'{\n "a": 1\n}\n{\n', ".jsonl", False, True),
        (b'{"a": [\n {"b": 1}]}', ".json", False, True),
        (b'{"a": 1,\n "b": 2}', ".jsonl", False, True),
        (b'{"a": 1,\n{"a": 2}', ".jsonl", True, True),
        (b'[\n{"a": 1}]', ".jsonl", False, True),
        (b'{"a": 1},\n{"a": 2}', ".jsonl", False, True),
        (b"words", ".jsonl", True, False),
        (b"words", ".bin", False, False),
    ],
)
def test_which_container(head, suffix, lines, whole):
    assert (json_lines.accept(head, suffix), json_document.accept(head, suffix)) == (lines, whole)


# One text


ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        {"data": ROWS},
        {"version": "1", "tags": ["x"], "rows": ROWS, "more": [1, 2]},
        {"a": [1, 2], "b": ["x", "y"]},
        {"a": {"0": 1, "1": 2}, "b": {"0": "x", "1": "y"}},
        {"0": ROWS[0], "1": ROWS[1]},
    ],
)
@pytest.mark.parametrize("indent", [None, 1, 4])
def test_shapes(value, indent):
    assert [dict(row.values) for row in read_whole(json.dumps(value, indent=indent))] == ROWS


def test_a_further_list_of_rows_is_told():
    rows = read_whole(json.dumps({"train": ROWS, "note": "x", "test": ROWS[:1]}))
    assert [row.values for row in rows[:2]] == ROWS and len(rows) == 3
    assert rows[2].problem.message.id == "data.row.other_list"


@pytest.mark.parametrize("between", ["", "\n", " ", ",\n", "\r\n\r\n", "\r"])
@pytest.mark.parametrize("indent", [None, 2])
def test_objects_in_a_row(between, indent):
    rows = read_whole(between.join(json.dumps(row, indent=indent) for row in ROWS))
    assert [dict(row.values) for row in rows] == ROWS


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "x"}]},
        {"conversations": [{"from": "human", "value": "x"}], "id": "1"},
        {"messages": [{"content": "x", "role": "user"}], "tools": [{"type": "function"}]},
        {"tools": [{"type": "function"}], "messages": [{"role": "user", "content": "x"}]},
        {"instruction": "a", "output": "b"},
        {},
    ],
)
def test_a_single_row(value):
    assert show(read_whole(json.dumps(value, indent=1))) == [(1, value)]


def test_lines_and_offsets_of_elements():
    data = b'\n[\n  {\n "a": 1},\r\n\r\n{"a": 2} , {"a": 3}\n]\n'
    rows = read_whole(data)
    assert [(row.line, row.row, row.offset) for row in rows] == [(3, 1, 5), (6, 2, 20), (6, 3, 31)]
    assert all(data[row.offset :].startswith(row.raw) for row in rows)
    assert [row.line for row in read_whole(b'[\r{"a": 1},\r{"a": 2}\r]')] == [2, 3]


A, B, C = '{"a": 1}', '{"a": 2}', '{"a": 3}'


@pytest.mark.parametrize("between", [",", ", ", ",\n", ",\n  "])
@pytest.mark.parametrize(
    "broken",
    [
        '{"a": }',
        '{"a": 2',
        '{"a": "2}',
        '{"a" 2}',
        '{"a": [2}',
        '{"a": [{"b": 1}, {"b": ]}',
        '{"a": {"b": 2}',
        '{"a": 2',
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_broken_element_costs_itself_only(between, broken, place):
    elements = [A, B, C]
    elements.insert(place, broken)
    for text in (f"[{between.join(elements)}]", f'{{"data": [{between.join(elements)}], "n": 3}}'):
        rows = read_whole(text)
        assert [row.values.get("a") for row in rows if not row.problem] == [1, 2, 3]
        assert [row.row for row in rows if row.problem] == [place + 1]
        assert [row.row for row in rows] == [1, 2, 3, 4]


def test_two_strings_without_an_end():
    text = '[{"a": 1},\n{"a": "x},\n{"a": 2},\n{"a": "y},\n{"a": 3}]'
    assert show(read_whole(text)) == [
        (1, {"a": 1}),
        (2, "E101", "not_closed"),
        (3, {"a": 2}),
        (4, "E101", "not_closed"),
        (5, {"a": 3}),
    ]


def test_nested_objects_are_no_rows_even_in_broken_ones():
    tree = '{"t": "a", "r": [{"t": "b"}, {"t": "c" x}, {"t": "d"}]}'
    rows = read_whole(f'[{{"t": "0"}}, {tree}, {{"t": "1"}}]')
    assert [row.values.get("t") for row in rows] == ["0", None, "1"]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('[1, "x, ]y", {"a": 1}, null, [2]]', [1, 1, 0, 1, 1]),
        ('["a", "b"]', [0, 0]),
        ("[]", []),
        ("  \n", []),
        ('[{"a": 1}] more', [0, 1]),
        ('[{"a": 1}][{"a": 2}]', [0, 0]),
        ('[{"a": 1}]\n{"a": 2}', [0, 0]),
        ('{"a": 1}]{"a": 2}', [0, 1, 0]),
        ('[{"a": 1}, {"a": 2}', [0, 0, 1]),
        ('[{"a": 1}, {"a": ', [0, 1]),
        ('[{"a": 1}, {"a": 2},]', [0, 0]),
        ('{"a": 1', [1]),
        ('[{"a": "\\\\"}, {"a": "\\\\\\"]}"}]', [0, 0]),
    ],
)
def test_odd_texts(text, rows):
    assert [int(row.problem is not None) for row in read_whole(text)] == rows


def test_a_first_object_without_an_end_is_not_taken_for_all():
    rows = [{"k": 1, "m": [{"x": 1}]}, {"k": 2, "m": [{"x": 2}]}, {"k": 3, "m": []}]
    text = "\n".join(json.dumps(row, indent=1) for row in rows).replace("]\n}", "]\n", 1)
    found = read_whole(text)
    assert [row.values.get("k") for row in found] == [None, 2, 3]
    assert [row.problem.message.id for row in found if row.problem] == ["data.row.not_closed"]


def test_what_follows_an_object_around_a_list():
    text = '{"data": [{"a": 1}], "more": {"b": [{"c": 1}]}, "n": 3} {"a": 2'
    assert [row.values.get("a") for row in read_whole(text)][-1] is None


@pytest.mark.computing
def test_small_windows_read_the_same(monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 16)
    monkeypatch.setattr(json_stream, "MOST_BYTES", 32)
    monkeypatch.setattr(json_stream, "BLOCK_BYTES", 8)
    monkeypatch.setattr(json_stream, "FIRST_BLOCK_BYTES", 4)
    values = [
        {"a": "\\" * count + '"]},{' * (count % 3), "ü": [[], {"x": '\\"'}] * count} for count in range(12)
    ]
    for indent in (None, 3):
        for encoding in ("utf-8", "utf-16"):
            rows = read_whole(json.dumps(values, indent=indent, ensure_ascii=False), encoding)
            assert [dict(row.values) for row in rows] == values
    assert [row.values for row in read_whole(json.dumps({"n": 1, "data": values}))] == values


def test_a_large_object_around_a_list_is_streamed(monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 256)
    monkeypatch.setattr(json_document, "OBJECT_BYTES", 512)
    values = [{"a": number} for number in range(500)]
    assert [row.values for row in read_whole(json.dumps({"n": 1, "data": values, "end": {}}))] == values
    columns = {"a": list(range(500)), "b": list(range(500))}
    assert len(read_whole(json.dumps(columns))) == 500
    assert [row.values for row in read_whole(json.dumps({"a": "x" * 2000}))] == [{"a": "x" * 2000}]
    monkeypatch.setattr(json_document, "COLUMNS_BYTES", 1024)
    with pytest.raises(StudioError) as refusal:
        read_whole(json.dumps(columns))
    assert refusal.value.why.id == "data.source.json_large"


def test_a_row_too_long_is_passed(monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 512)
    monkeypatch.setattr(json_stream, "MOST_BYTES", 512)
    monkeypatch.setattr(json_document, "ROW_BYTES", 2048)
    monkeypatch.setattr(json_document, "LEAST_BYTES", 512)
    text = json.dumps([{"a": 1}, {"a": "x" * 20_000}, {"a": 2}, {"a": 3}])
    assert show(read_whole(text)) == [(1, {"a": 1}), (1, "E101", "too_long"), (1, {"a": 2}), (1, {"a": 3})]


def test_a_file_broken_throughout_is_given_up(monkeypatch):
    monkeypatch.setattr(json_document, "SEARCHED_BYTES", 10 * RAW_BYTES)
    stream = io.BytesIO(b'{"a": 1}' + b"}x" * 100)
    with pytest.raises(StudioError) as refusal:
        list(json_document.iterate(stream, "utf-8", ReadOptions(name="a.json")))
    assert refusal.value.why.id == "data.source.json_broken"


@pytest.mark.computing
def test_memory_is_bounded():
    row = orjson.dumps({"text": "lorem ipsum " * 60})
    data = b"[" + b",".join([row] * 30_000) + b"]"
    tracemalloc.start()
    try:
        assert sum(1 for _ in json_document.iterate(io.BytesIO(data), "utf-8")) == 30_000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 14 * 2**20 < len(data)


def test_depth_is_one_that_rows_can_be_written_with():
    deep = b'{"a": ' * (json_text.DEPTH - 1) + b"[]" + b"}" * (json_text.DEPTH - 1)
    assert orjson.dumps([[json_text.parse_json(deep)]])


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":{"b":1},"c":{"b":1}}',
        b'{"a":"{\\"x\\":1,\\"x\\":2}","b":[{"c":1},{"c":2}]}',
        b'{"a":"\\": \\" : ","b" :12345678901234567890123456789}',
    ],
)
def test_a_key_that_comes_again_elsewhere_is_no_fault(line):
    assert show(read_lines(line)) == [(1, json.loads(line))]


def test_rows_in_pythons_notation_are_read():
    rows = read_lines(
        "{'a': \"it's\", 'b': [1, None]}\n{'a': 'x', 'b': (2, True)}\n{'a': {1, 2}}\n{'a': f()}\n"
    )
    assert [row.values for row in rows[:2]] == [{"a": "it's", "b": [1, None]}, {"a": "x", "b": [2, True]}]
    assert [row.problem.code for row in rows[2:]] == ["E101", "E101"]
    assert json_lines.accept(b"{'a': 1}\n{'a': 2}\n", ".json")
