"""Recipes in files: what is not written in them fits the model."""

from __future__ import annotations

import json

import pytest

from studio.core.errors import StudioError
from studio.services.recipes import fit_length, read_recipe


def write(folder, data) -> str:
    path = folder / "recipe.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def test_the_default_length_is_no_more_than_the_model_reads(tmp_path, tiny_models):
    model = {"source": str(tiny_models())}  # it reads 256 tokens
    assert read_recipe(write(tmp_path, {"model": model, "data": {"source": "x"}})).data.max_length == 256
    written = {"model": model, "data": {"source": "x", "max_length": 1024}}
    assert read_recipe(write(tmp_path, written)).data.max_length == 1024, "a number that is written stays"
    short = {"model": model, "data": {"source": "x", "max_length": 64}}
    assert read_recipe(write(tmp_path, short)).data.max_length == 64
    gone = read_recipe(write(tmp_path, {"model": {"source": "no/such"}, "data": {"source": "x"}}))
    assert gone.data.max_length == 1024 and fit_length(gone, {}) == gone


@pytest.mark.parametrize("data", [[], None, "x", 3])
def test_json_that_is_no_object_is_not_called_damaged(tmp_path, data):
    with pytest.raises(StudioError) as refused:
        read_recipe(write(tmp_path, data))
    assert refused.value.what.id == "file.no_object"
