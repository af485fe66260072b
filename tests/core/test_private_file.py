"""Files that only their owner may read."""

from __future__ import annotations

from studio.core.private_file import read_key, write_private


def test_private_files(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(b"short")
    key = read_key(path)
    assert len(key) == 32 and read_key(path) == key
    write_private(path, b"x")
    assert path.read_bytes() == b"x" and [each.name for each in tmp_path.iterdir()] == ["key"]
