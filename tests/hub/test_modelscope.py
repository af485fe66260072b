"""Models that ModelScope's own tools downloaded are found by their names, before any network."""

from __future__ import annotations

import shutil

import pytest

from studio.hub.modelscope import cache_folders
from studio.models.catalog import inspect_model, list_local_models
from studio.models.resolve import resolve_model

NAME = "Qwen/Qwen2.5-0.5B"


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """An empty home with empty caches."""
    monkeypatch.delenv("MODELSCOPE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a child was started"))


@pytest.mark.parametrize(
    ("cache", "below"),
    [
        ("", ".cache/modelscope/hub/models/Qwen/Qwen2___5-0___5B"),
        ("", ".cache/modelscope/hub/models/Qwen/Qwen2.5-0.5B"),
        ("", ".cache/modelscope/hub/Qwen/Qwen2___5-0___5B"),
        ("elsewhere", "elsewhere/models/Qwen/Qwen2___5-0___5B"),
        ("elsewhere", "elsewhere/hub/Qwen/Qwen2.5-0.5B"),
    ],
)
def test_model_is_found_by_its_name(tmp_path, monkeypatch, tiny_models, cache, below):
    if cache:
        monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / cache))
    folder = tmp_path / below
    shutil.copytree(tiny_models(), folder)
    facts = resolve_model(NAME, "", pytest.fail, lambda: False)
    assert (facts.folder, facts.source, facts.name) == (str(folder), NAME, NAME)
    assert NAME in [model.source for model in list_local_models()]


def test_both_spellings_are_listed_once(tmp_path, tiny_models):
    owner = tmp_path / ".cache" / "modelscope" / "hub" / "models" / "Qwen"
    shutil.copytree(tiny_models(), owner / "Qwen2___5-0___5B")
    (owner / "Qwen2.5-0.5B").symlink_to(owner / "Qwen2___5-0___5B")
    assert [model.source for model in list_local_models()].count(NAME) == 1


@pytest.mark.parametrize("lacks", ["model.safetensors", "config.json"])
def test_half_downloaded_model_counts_as_absent(tmp_path, tiny_models, lacks):
    folder = tmp_path / ".cache" / "modelscope" / "hub" / "models" / "Qwen" / "Qwen2___5-0___5B"
    shutil.copytree(tiny_models(), folder)
    (folder / lacks).rename(folder / "pytorch_model.bin")
    assert inspect_model(NAME).folder == ""
    assert NAME not in [model.source for model in list_local_models()]


def test_revision_is_asked_of_the_hub(tmp_path, tiny_models):
    shutil.copytree(
        tiny_models(), tmp_path / ".cache" / "modelscope" / "hub" / "models" / "Qwen" / "Qwen2.5-0.5B"
    )
    assert inspect_model(NAME).folder
    assert inspect_model(NAME, revision="v1").folder == ""


def test_no_cache_no_folders(tmp_path):
    assert cache_folders({"MODELSCOPE_CACHE": str(tmp_path / "nothing")}) == ()
