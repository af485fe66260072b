"""A base is named by its weights, wherever it lies; what stands beside them has a name of its own."""

from __future__ import annotations

import shutil

import pytest

from studio.models.file_hashes import hash_settings, hash_weights


@pytest.fixture
def folder(make_tiny_model, tmp_path):
    """The folder of a small model."""
    return make_tiny_model(tmp_path / "little")


def test_weights_are_named_by_content_not_by_path(folder, tmp_path):
    before = hash_weights(folder)
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    (moved / "config.json").unlink()
    assert hash_weights(moved) == before
    data = bytearray((moved / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (moved / "model.safetensors").write_bytes(bytes(data))
    assert hash_weights(moved) != before


def test_settings_are_all_that_decides_beside_the_weights(folder):
    before = hash_settings(folder)
    (folder / "README.md").write_text("a card", encoding="utf-8")
    (folder / "model.safetensors").unlink()
    assert hash_settings(folder) == before
    seen = {before}
    for name in (
        "config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "additional_chat_templates/a.jinja",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(" ")
        seen.add(hash_settings(folder))
    assert len(seen) == 5
