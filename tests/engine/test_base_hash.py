"""The hash of a base is kept for the files that it was taken of, and for no others."""

import os
import shutil

import pytest

from studio.engine import base_hash
from studio.engine.base_hash import hash_base
from studio.models.file_hashes import hash_weights
from studio.planning.learned_limits import Remembered


@pytest.fixture
def folder(tiny_models, tmp_path):
    return shutil.copytree(tiny_models("llama"), tmp_path / "model")


@pytest.fixture
def hashed(monkeypatch):
    """The folders that were hashed for lack of a kept hash."""
    folders = []
    monkeypatch.setattr(base_hash, "hash_weights", lambda one: folders.append(one) or hash_weights(one))
    return folders


def test_files_are_hashed_once(folder, tmp_path, hashed):
    store = Remembered(tmp_path / "remembered.json")
    expected = hash_weights(folder)
    assert [hash_base(folder, store) for _ in range(3)] == [expected] * 3
    assert hash_base(folder, Remembered(store.path)) == expected
    assert len(hashed) == 1
    assert hash_base(folder, None) == expected and len(hashed) == 2


def test_other_content_is_another_hash_also_of_the_same_size_and_time(folder, tmp_path, hashed):
    store = Remembered(tmp_path / "remembered.json")
    before = hash_base(folder, store)
    file = folder / "model.safetensors"
    now, content = file.stat(), bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(now.st_atime_ns, now.st_mtime_ns))
    assert hash_base(folder, store) == hash_weights(folder) != before
    assert len(hashed) == 2


def test_a_file_that_is_written_while_it_is_hashed_is_not_kept(folder, tmp_path, monkeypatch):
    store = Remembered(tmp_path / "remembered.json")

    def write_and_hash(one):
        os.utime(folder / "model.safetensors", ns=(1, 1))
        return hash_weights(one)

    monkeypatch.setattr(base_hash, "hash_weights", write_and_hash)
    hash_base(folder, store)
    assert store.read().bases == ()


def test_a_store_that_cannot_be_written_keeps_nobody_from_the_hash(folder, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    store = Remembered(tmp_path / "file" / "remembered.json")
    assert hash_base(folder, store) == hash_weights(folder)
