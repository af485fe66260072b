"""Loading: weights that no file holds are never made up."""

import json
import shutil

import pytest

from studio.core.errors import StudioError
from studio.models.catalog import inspect_model
from studio.models.load import load_model


def test_weights_in_no_file_are_refused(tmp_path, tiny_models):
    folder = tmp_path / "model"
    shutil.copytree(tiny_models(), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 9, "layer_types": None}))
    with pytest.raises(StudioError) as refusal:
        load_model(inspect_model(str(folder)), device="cpu", dtype="fp32")
    assert refusal.value.why.id == "model.load.missing"
