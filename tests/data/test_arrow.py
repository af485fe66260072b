"""Arrow files and streams: types as plain values, images as references, damaged files in words, bounded memory."""

import datetime
import decimal
import io
import json
import random

import pyarrow as pa
import pytest

from studio.core.errors import StudioError
from studio.data.containers import arrow
from studio.data.containers.container import ReadOptions

OPTIONS = ReadOptions(name="rows.arrow")


def png(width: int = 2, height: int = 3) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, "PNG")
    return stream.getvalue()


def pack(table: pa.Table, kind: str = "stream", **options) -> io.BytesIO:
    sink = pa.BufferOutputStream()
    open_ = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with open_(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=1000)
    return io.BytesIO(sink.getvalue().to_pybytes())


def read(stream: io.BytesIO) -> list[dict]:
    return [dict(row.values) for row in arrow.iterate(stream, "", OPTIONS)]


def read_table(table: pa.Table) -> list:
    return list(arrow.read_batches(iter(table.to_batches())))


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_files_and_streams(kind, compression):
    rows = [
        {"messages": [{"role": "user", "content": f"say {i}"}], "n": i, "empty": None} for i in range(2500)
    ]
    stream = pack(pa.Table.from_pylist(rows), kind, compression=compression)
    assert arrow.accept(stream.getvalue()[:64], ".arrow") and read(stream) == rows
    stream.seek(0)
    numbers = [(row.line, row.row) for row in arrow.iterate(stream, "", OPTIONS)]
    assert numbers == [(i, i) for i in range(1, 2501)]


def test_what_the_datasets_library_saves(tmp_path):
    from datasets import Dataset

    rows = [{"text": f"row {i}", "tags": ["a", "b"]} for i in range(30)]
    Dataset.from_list(rows).save_to_disk(tmp_path)
    [path] = tmp_path.glob("*.arrow")
    assert read(io.BytesIO(path.read_bytes())) == rows


VALUES = {
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), [{"a": 1}, None]),
    "decimal": (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
    "time": (
        pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("us")),
        ["2024-01-02T03:04:05", None],
    ),
    "zone": (pa.array([0, None], pa.timestamp("s", tz="UTC")), ["1970-01-01T00:00:00+00:00", None]),
    "nanoseconds": (pa.array([1, None], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", None]),
    "date": (pa.array([datetime.date(2024, 1, 2), None]), ["2024-01-02", None]),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
    "bytes": (pa.array([b"words", None]), ["words", None]),
    "no words": (pa.array([b"\xff\xfe", None]), ["row:no words", None]),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', None])), [{"a": [1]}, None]),
    "nested": (
        pa.array([{"when": [datetime.date(2024, 1, 2)], "n": 1}, None]),
        [{"when": ["2024-01-02"], "n": 1}, None],
    ),
    "large": (pa.array([["a"], None], pa.large_list(pa.large_string())), [["a"], None]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_plain(name):
    column, values = VALUES[name]
    rows = read_table(pa.table({name: column}))
    assert [row.values[name] for row in rows] == values
    json.dumps([dict(row.values) for row in rows])


def test_images_become_references():
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table(
        {
            "image": pa.array(
                [{"bytes": png(), "path": "a.png"}, {"bytes": None, "path": "b.png"}, None], kind
            ),
            "images": pa.array([[{"bytes": png(), "path": None}] * 2, [], None], pa.list_(kind)),
        }
    )
    assert [dict(row.values) for row in read_table(table)] == [
        {"image": "row:image", "images": ["row:images[0]", "row:images[1]"]},
        {"image": "b.png", "images": []},
        {"image": None, "images": None},
    ]


def test_a_damaged_image_is_a_problem_of_its_row_alone():
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    cells = [
        {"bytes": png(), "path": None},
        {"bytes": b"no image", "path": None},
        {"bytes": png(), "path": None},
    ]
    rows = read_table(pa.table({"image": pa.array(cells, kind), "n": [1, 2, 3]}))
    assert [row.problem and row.problem.code for row in rows] == [None, "E150", None]
    assert [row.line for row in rows] == [1, 2, 3]


def test_sound_is_not_taken_for_an_image():
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"audio": pa.array([{"bytes": b"RIFF", "path": None}], kind)})
    features = {"info": {"features": {"audio": {"_type": "Audio"}}}}
    table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    assert read_table(table)[0].values == {"audio": "row:audio"}


def test_characters_that_are_none():
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"good", b"\xff\xfe"]).buffers())
    rows = read_table(pa.table({"text": broken}))
    assert [row.problem and row.problem.code for row in rows] == [None, "E110"]


def test_two_columns_of_one_name_are_refused():
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["answer", "answer"])
    with pytest.raises(StudioError) as refusal:
        read(pack(table))
    assert refusal.value.why.id == "data.source.header"


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_damaged_files_are_refused_in_words(kind):
    rows = [{"messages": [{"role": "user", "content": f"say {i}"}], "n": i} for i in range(50)]
    data = pack(pa.Table.from_pylist(rows), kind).getvalue()
    chance = random.Random(3)
    for number in range(200):
        broken = bytearray(data)
        for _ in range(3):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        broken = broken[: chance.randrange(len(broken))] if number % 4 == 0 else broken
        try:
            read(io.BytesIO(bytes(broken)))  # a changed letter is none to see
        except StudioError as error:
            assert error.why.id in ("data.source.arrow_broken", "data.source.header")


def test_large_rows_become_values_a_few_at_a_time(monkeypatch):
    import tracemalloc

    rows = pa.table({"text": pa.array(["x" * 100_000] * 1000)})
    tracemalloc.start()
    assert sum(len(row.values["text"]) for row in arrow.read_batches(iter(rows.to_batches()))) == 10**8
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * arrow.SLICE_BYTES
