"""GGUF headers are read as they are, and damaged or hostile ones refused at once."""

from __future__ import annotations

import struct
import time

import pytest

from studio.core.errors import StudioError
from studio.models.gguf.block_types import BLOCK_TYPES
from studio.models.gguf.header import is_gguf, read_header
from tests.models.gguf.files import pack_string, write_file

ONE = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.eps": 0.5,
    "names": ["a", "bc"],
    "flag": True,
}
TENSOR = ("t.weight", (2, 4), 0, struct.pack("<8f", *range(8)))


def refused(path) -> str:
    with pytest.raises(StudioError) as caught:
        read_header(path)
    return caught.value.what.id


def test_what_a_header_says(tmp_path):
    header = read_header(write_file(tmp_path / "m.gguf", ONE, [TENSOR]))
    assert (
        header.architecture == "llama"
        and header.metadata["llama.eps"] == 0.5
        and header.metadata["names"] == 2
    )
    assert header.tensors["t.weight"].shape == (2, 4) and header.data_bytes == 32 and header.parameters == 8
    kept = read_header(tmp_path / "m.gguf", ("names",))
    assert kept.metadata["names"] == ["a", "bc"] and kept.fingerprint == header.fingerprint


def test_a_copy_has_the_same_fingerprint_and_another_tuning_has_not(tmp_path):
    first = read_header(write_file(tmp_path / "a.gguf", ONE, [TENSOR]))
    assert read_header(write_file(tmp_path / "b.gguf", ONE, [TENSOR])).fingerprint == first.fingerprint
    other = (*TENSOR[:3], struct.pack("<8f", *range(1, 9)))
    assert read_header(write_file(tmp_path / "c.gguf", ONE, [other])).fingerprint != first.fingerprint


def test_a_model_in_several_files(tmp_path):
    parts = {**ONE, "split.count": 2, "split.tensors.count": 2}
    write_file(tmp_path / "m-00001-of-00002.gguf", parts, [TENSOR])
    assert refused(tmp_path / "m-00001-of-00002.gguf") == "gguf.part_missing"
    write_file(tmp_path / "m-00002-of-00002.gguf", {"split.count": 2}, [("u.weight", *TENSOR[1:])])
    header = read_header(tmp_path / "m-00002-of-00002.gguf")  # any of them names the model
    assert set(header.tensors) == {"t.weight", "u.weight"} and len(header.files) == 2
    write_file(tmp_path / "m-00002-of-00002.gguf", {"split.count": 2}, [])
    assert refused(tmp_path / "m-00001-of-00002.gguf") == "gguf.damaged"


def test_damaged_files_are_refused(tmp_path):
    whole = write_file(tmp_path / "m.gguf", ONE, [TENSOR]).read_bytes()
    path = tmp_path / "bad.gguf"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert refused(path) in ("gguf.damaged", "gguf.short"), length
    path.write_bytes(b"PK\3\4" + whole[4:])
    assert refused(path) == "gguf.damaged" and not is_gguf(path) and not is_gguf(tmp_path)
    for version in (1, 4, 0x03000000):
        write_file(path, ONE, [TENSOR], version=version)
        assert refused(path) == "gguf.version"
    write_file(path, ONE, [(*TENSOR[:2], 99, TENSOR[3])])
    assert refused(path) == "gguf.block_type"
    write_file(path, ONE, [("t", (2, 4), 2, b"\0" * 36)])  # rows of 4 numbers in blocks of 32
    assert refused(path) == "gguf.damaged"


def test_a_file_that_may_not_be_read_is_told(tmp_path, monkeypatch):
    path = write_file(tmp_path / "m.gguf", ONE, [TENSOR])

    def refuse(self, *values, **more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    assert refused(path) == "file.unreadable" and not is_gguf(path)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<IQQ", 3, 2**60, 1),
        struct.pack("<IQQ", 3, 0, 2**63),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62) + b"key",
        struct.pack("<IQQ", 3, 0, 1) + pack_string("k") + struct.pack("<IIQ", 9, 8, 2**61),
        struct.pack("<IQQ", 3, 0, 1) + pack_string("k") + struct.pack("<IIQ", 9, 4, 2**61),
        struct.pack("<IQQ", 3, 0, 1) + pack_string("k") + struct.pack("<IIQ", 9, 9, 4) + b"\0" * 60,
        struct.pack("<IQQ", 3, 0, 1) + pack_string("k") + struct.pack("<I", 77) + b"\0" * 60,
        struct.pack("<IQQ", 3, 1, 0) + pack_string("t") + struct.pack("<I", 2**31) + b"\0" * 60,
        struct.pack("<IQQ", 3, 1, 0) + pack_string("t") + struct.pack("<IQQIQ", 2, 2**62, 2**62, 0, 0),
        struct.pack("<IQQ", 3, 1, 0) + pack_string("t") + struct.pack("<IQIQ", 1, 4, 0, 2**63) + b"\0" * 60,
    ],
)
def test_hostile_counts_are_refused_at_once(tmp_path, content):
    path = tmp_path / "hostile.gguf"
    path.write_bytes(b"GGUF" + content + b"\0" * 40)
    began_s = time.process_time()
    assert refused(path) in ("gguf.damaged", "gguf.short")
    assert time.process_time() - began_s < 2


def test_block_sizes_are_those_of_the_package():
    gguf = pytest.importorskip("gguf")
    from gguf.quants import _type_traits

    for number, block_type in BLOCK_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == block_type.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (
            block_type.values,
            block_type.size_bytes,
        )
        assert block_type.plain or gguf.GGMLQuantizationType(number) in _type_traits
