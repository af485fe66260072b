"""Packed files: what is inside comes as a stream; damage, bombs, archives in archives and odd names are refused."""

import gzip
import io
import zipfile

import pytest
import zstandard

from studio.core.errors import StudioError
from studio.data import compression
from studio.data.compression import detect_packing, list_members, open_unpacked

ROWS = b"".join(b'{"text": "row %d"}\n' % number for number in range(50_000))


def pack_zstandard(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK = {"gz": gzip.compress, "zst": pack_zstandard}


def write_zip(path, entries, **options):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def find(path, name):
    return next(member for member in list_members(path) if member.name == name)


def read(path, kind, name="") -> bytes:
    with open_unpacked(path, kind, find(path, name) if name else None) as stream:
        return stream.read()


def refuse(call, *values) -> str:
    with pytest.raises(StudioError) as refusal:
        call(*values)
    return refusal.value.why.id


@pytest.mark.parametrize("kind", PACK)
def test_packed_files_are_streams(tmp_path, kind):
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(PACK[kind](ROWS))
    assert detect_packing(path.read_bytes()) == kind
    assert read(path, kind) == ROWS
    path.write_bytes(PACK[kind](ROWS) + PACK[kind](b"more"))
    assert read(path, kind) == ROWS + b"more"


@pytest.mark.parametrize("kind", PACK)
def test_damage_is_said(tmp_path, kind):
    path, whole = tmp_path / f"a.{kind}", PACK[kind](ROWS)
    for place in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place])
        assert refuse(read, path, kind) == "data.packing.broken"
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    assert refuse(read, path, kind) == "data.packing.broken"
    path.write_bytes(whole + b"something else")
    assert refuse(read, path, kind) == "data.packing.broken"


@pytest.mark.parametrize("kind", PACK)
def test_bombs_are_stopped_while_they_grow(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(compression, "FREE_BYTES", 2**20)
    path = tmp_path / f"a.{kind}"
    path.write_bytes(PACK[kind](bytes(2**23)))
    with open_unpacked(path, kind) as stream, pytest.raises(StudioError) as refusal:
        seen = 0
        while chunk := stream.read(2**16):
            seen += len(chunk)
    assert refusal.value.why.id == "data.packing.bomb" and 0 < seen < 2**23


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize(
    "inner",
    [gzip.compress(b"x"), pack_zstandard(b"x"), b"PK\x03\x04 zip", bytes(257) + b"ustar"],
    ids=["gz", "zst", "zip", "tar"],
)
def test_archives_inside_are_refused(tmp_path, kind, inner):
    path = tmp_path / f"a.{kind}"
    path.write_bytes(PACK[kind](inner))
    assert refuse(open_unpacked, path, kind) == "data.packing.nested"


def test_zip_members(tmp_path):
    entries = [
        ("b/", b""),
        ("b/a.jsonl", ROWS),
        ("__MACOSX/b/._a.jsonl", b"x"),
        ("b/.DS_Store", b"x"),
        ("ü.csv", b"q"),
    ]
    path = write_zip(tmp_path / "a.zip", entries)
    assert detect_packing(path.read_bytes()) == "zip"
    assert [(one.name, one.size_bytes) for one in list_members(path)] == [
        ("b/a.jsonl", len(ROWS)),
        ("ü.csv", 1),
    ]
    assert read(path, "zip", "b/a.jsonl") == ROWS
    with open_unpacked(path, "zip", find(path, "b/a.jsonl")) as stream:
        stream.read(1000)
        stream.seek(0)
        assert stream.read(10) == ROWS[:10]


@pytest.mark.parametrize(
    "name",
    [
        "../a.jsonl",
        "a/../../b.jsonl",
        "/a.jsonl",
        "C:\\a.jsonl",
        "a\\..\\b.jsonl",
        "\\\\host\\a.jsonl",
        "a\nb.csv",
    ],
)
def test_names_that_lead_out_are_refused(tmp_path, name):
    path = write_zip(tmp_path / "a.zip", [("good.jsonl", b"x"), (name, b"x")])
    assert refuse(list_members, path) == "data.packing.outside"


def test_zips_that_are_refused(tmp_path, monkeypatch):
    assert refuse(list_members, write_zip(tmp_path / "n.zip", [("a.tar.gz", b"x")])) == "data.packing.nested"
    hidden = write_zip(tmp_path / "h.zip", [("a.jsonl", gzip.compress(b"x"))])
    assert refuse(open_unpacked, hidden, "zip", find(hidden, "a.jsonl")) == "data.packing.nested"
    bomb = write_zip(tmp_path / "b.zip", [("a.jsonl", bytes(compression.FREE_BYTES + 1))])
    assert refuse(list_members, bomb) == "data.packing.bomb"
    many = write_zip(tmp_path / "m.zip", [(f"{number}.jsonl", b"x") for number in range(6)])
    monkeypatch.setattr(compression, "ENTRIES", 5)
    assert refuse(list_members, many) == "data.packing.entries"


def test_a_size_that_is_not_true_is_found_while_reading(tmp_path, monkeypatch):
    path = write_zip(tmp_path / "a.zip", [("a.jsonl", bytes(2**22))])
    data = path.read_bytes()
    path.write_bytes(data.replace((2**22).to_bytes(4, "little"), (2**10).to_bytes(4, "little")))
    assert [member.size_bytes for member in list_members(path)] == [2**10]
    assert refuse(read, path, "zip", "a.jsonl") == "data.packing.broken"


def test_damaged_zips(tmp_path):
    path = write_zip(tmp_path / "a.zip", [("a.jsonl", ROWS)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert refuse(list_members, path) == "data.packing.broken"
    path.write_bytes(data[:3000] + bytes(20) + data[3020:])
    assert refuse(read, path, "zip", "a.jsonl") == "data.packing.broken"
    locked = bytearray(data)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.find(mark) + place] |= 1
    path.write_bytes(locked)
    assert refuse(list_members, path) == "data.packing.locked"


def test_a_workbook_in_a_zip_is_no_archive(tmp_path):
    inner = io.BytesIO()
    write_zip(inner, [("[Content_Types].xml", b"<x/>")])
    path = write_zip(tmp_path / "a.zip", [("a.xlsx", inner.getvalue())])
    assert read(path, "zip", "a.xlsx") == inner.getvalue()


def test_nothing_stays_open_after_a_refusal(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"x")))
    assert refuse(open_unpacked, path, "gz") == "data.packing.nested"
    path.unlink()  # fails on Windows while the file is open


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_members_are_read_however_they_are_packed(tmp_path, method):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in ("ä/a.jsonl", "b.jsonl"):
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(ROWS + name.encode())
    assert [read(path, "zip", name) for name in ("ä/a.jsonl", "b.jsonl")] == [
        ROWS + name.encode() for name in ("ä/a.jsonl", "b.jsonl")
    ]


@pytest.mark.parametrize("damage", ["mark", "content", "cut"])
def test_a_damaged_member_is_said(tmp_path, damage):
    path = write_zip(tmp_path / "a.zip", [("a.jsonl", ROWS), ("b.jsonl", ROWS * 3)])
    member, data = find(path, "b.jsonl"), bytearray(path.read_bytes())
    start = member.entry.header_offset
    data[start if damage == "mark" else start + 50] ^= 255
    path.write_bytes(data[: start + 10] if damage == "cut" else data)

    def read_member():
        with open_unpacked(path, "zip", member) as stream:
            stream.read()

    assert refuse(read_member) == "data.packing.broken"


def test_the_directory_of_a_zip_is_read_once(tmp_path, monkeypatch):
    """It is as long as there are members: read for each of them, 400 took 20 s and 2,000 minutes."""
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    path = write_zip(
        tmp_path / "a.zip", [(f"{i}.jsonl", b'{"prompt": "q", "completion": "a"}\n') for i in range(12)]
    )
    real, read_ones = zipfile.ZipFile._RealGetContents, []
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", lambda self: read_ones.append(1) or real(self))
    assert describe(DatasetSpec(source=str(path)))["rows_read"] == 12
    assert len(read_ones) == 1
