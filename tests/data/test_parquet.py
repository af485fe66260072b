"""Parquet files: rows in order, bounded memory, damaged files in words."""

import io
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from studio.core.errors import StudioError
from studio.data.containers import parquet
from studio.data.containers.container import ReadOptions

OPTIONS = ReadOptions(name="rows.parquet")
ROWS = [{"messages": [{"role": "user", "content": str(i)}], "n": i} for i in range(2500)]


def pack(table: pa.Table, **options) -> io.BytesIO:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    stream.seek(0)
    return stream


def refuse(stream) -> str:
    with pytest.raises(StudioError) as refusal:
        list(parquet.iterate(stream, "", OPTIONS))
    assert refusal.value.what.id == "data.source.unreadable"
    return refusal.value.why.id


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_rows(compression):
    stream = pack(pa.Table.from_pylist(ROWS), compression=compression, row_group_size=700)
    assert parquet.accept(stream.getvalue()[:64], ".parquet") and parquet.accept(stream.getvalue()[:64], "")
    rows = list(parquet.iterate(stream, "", OPTIONS))
    assert [dict(row.values) for row in rows] == ROWS
    assert [row.line for row in rows] == list(range(1, 2501))


def test_a_file_on_the_disk_is_given_free(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(pack(pa.Table.from_pylist(ROWS)).getvalue())
    with path.open("rb") as stream:
        rows = parquet.iterate(stream, "", OPTIONS)
        next(rows)
        rows.close()
    path.unlink()  # Windows refuses while something holds it


@pytest.mark.parametrize(
    "data", [b"PAR1 not really", b"PAR1", b"PAR1" + b"\0" * 100 + b"\xff\xff\xff\x7fPAR1"]
)
def test_no_parquet(data):
    assert refuse(io.BytesIO(data)) == "data.source.parquet_broken"


def test_damaged_files_are_refused_in_words():
    data = pack(pa.Table.from_pylist(ROWS[:60]), compression="none").getvalue()
    chance = random.Random(1)
    for number in range(200):
        broken = bytearray(data)
        for _ in range(3):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        broken = broken[: chance.randrange(len(broken))] if number % 4 == 0 else broken
        try:
            list(parquet.iterate(io.BytesIO(bytes(broken)), "", OPTIONS))
        except StudioError as error:
            assert error.why.id in (
                "data.source.parquet_broken",
                "data.source.header",
                "data.source.row_large",
            )


def test_rows_that_are_too_large(monkeypatch):
    monkeypatch.setattr(parquet, "ROW_LIMIT_BYTES", 10_000)
    assert refuse(pack(pa.table({"text": ["x" * 50_000]}), compression="none")) == "data.source.row_large"


def test_large_row_groups_are_read_page_by_page():
    import tracemalloc

    stream = pack(
        pa.table({"text": [f"{i:06}" * 2000 for i in range(4000)]}), compression="zstd", use_dictionary=False
    )
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    peak = 0
    for row in parquet.iterate(stream, "", OPTIONS):
        if row.line % 200 == 0:
            peak = max(peak, pa.total_allocated_bytes() - before)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * 2**20 and python_peak < 40 * 2**20  # of 48 MB
