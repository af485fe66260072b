"""Opening a GGUF file: whole or not at all, by as little memory and disk as it takes, and told."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from studio.core.errors import StudioError
from studio.hub.child import DownloadStopped
from studio.models import opened_folder
from studio.models.catalog import inspect_model
from studio.models.gguf import decode as decoding
from studio.models.gguf.block_types import BLOCK_TYPES
from studio.models.gguf.decode import decode
from studio.models.gguf.facts import read_gguf
from studio.models.gguf.header import GgufTensor
from studio.models.resolve import open_packed, resolve_model

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def file(tmp_path):
    return Path(shutil.copy(GOLDEN / "llama.gguf", tmp_path / "My Model.Q4.gguf"))


def resolve(source, should_stop=lambda: False):
    events = []
    facts = resolve_model(str(source), "", events.append, should_stop)
    return facts, events


def test_a_run_opens_the_file_once(file):
    facts, events = resolve(file)
    assert facts.folder and facts.name == "My Model.Q4" and facts.source == str(file)
    assert [event.phase for event in events] == ["open"]
    assert resolve(file) == (facts, [])
    copy = file.with_name("copy.gguf")
    copy.write_bytes(file.read_bytes())
    again = inspect_model(str(copy))
    assert again.folder == ""  # under its own name
    assert not list(Path(facts.folder).parent.glob(".*"))


def test_what_loads_a_model_opens_it_where_its_folder_is_gone(file):
    facts, _ = resolve(file)
    assert open_packed(facts) is facts
    shutil.rmtree(facts.folder)
    again = inspect_model(str(file))
    assert again.packed and open_packed(again) == facts


def test_a_stop_leaves_nothing(file, hub):
    with pytest.raises(DownloadStopped):
        resolve(file, should_stop=lambda: True)
    assert not list((hub / "finetune-studio" / "opened").iterdir())


def test_a_full_disk_is_told_before_anything_is_written(file, hub, monkeypatch):
    usage = shutil.disk_usage(file.parent)
    monkeypatch.setattr(opened_folder.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StudioError) as caught:
        resolve(file)
    assert caught.value.what.id == "gguf.no_space"
    assert not list((hub / "finetune-studio" / "opened").iterdir())


def test_a_disk_that_fills_on_the_way_leaves_nothing(file, hub, monkeypatch):
    def refuse(*values, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", refuse)
    with pytest.raises(StudioError) as caught:
        resolve(file)
    assert caught.value.what.id == "gguf.no_space"
    assert not list((hub / "finetune-studio" / "opened").iterdir())


def test_weights_are_written_in_shards(file, monkeypatch):
    monkeypatch.setattr(opened_folder, "SHARD_BYTES", 20_000)
    facts, _ = resolve(file)
    folder = Path(facts.folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 2 and set(index["weight_map"].values()) == set(shards)
    assert index["metadata"]["total_size"] == read_gguf(file).opened_bytes
    whole = dataclasses.replace(facts, weight_bytes=0)
    shutil.rmtree(folder)
    monkeypatch.undo()
    assert whole.parameters == read_gguf(file).header.parameters - 8  # without the rotary factors


def test_a_folder_with_one_model_is_that_model_and_with_several_asks(file):
    assert inspect_model(str(file.parent)).name == "My Model.Q4"
    (file.parent / "mmproj-f16.gguf").write_bytes(b"GGUF")
    assert inspect_model(str(file.parent)).name == "My Model.Q4"
    (file.parent / "config.json").write_text("{}", encoding="utf-8")  # as many folders of the hub have
    assert inspect_model(str(file.parent)).name == "My Model.Q4"
    shutil.copy(file, file.with_name("other.gguf"))
    with pytest.raises(StudioError) as caught:
        inspect_model(str(file.parent))
    assert caught.value.what.id == "gguf.several" and "other.gguf" in str(caught.value.why.values)


@pytest.mark.parametrize("name", [block.name for block in BLOCK_TYPES.values()])
def test_every_form_is_opened_in_parts_as_the_package_opens_it(tmp_path, monkeypatch, name):
    gguf = pytest.importorskip("gguf")
    block = next(one for one in BLOCK_TYPES.values() if one.name == name)
    rows, columns = 5, 512
    generator = np.random.default_rng(block.number)
    packed = generator.integers(0, 256, (rows, columns // block.values * block.size_bytes), dtype=np.uint8)
    if block.plain:
        values = generator.normal(size=(rows, columns)).astype({"F64": "<f8", "F16": "<f2"}.get(name, "<f4"))
        packed = (values.view("<u4") >> 16).astype("<u2") if name == "BF16" else values
    kind = gguf.GGMLQuantizationType(block.number)
    with np.errstate(all="ignore"):
        expected = values if name == "F64" else gguf.quants.dequantize(packed.view(np.uint8), kind)
    path = tmp_path / "data"
    path.write_bytes(b"head" + packed.tobytes())
    monkeypatch.setattr(decoding, "PART_VALUES", 2 * columns)
    tensor = GgufTensor(shape=(rows, columns), block_type=block, file=path, start_bytes=4)
    with np.errstate(all="ignore"):
        found = decode(tensor, torch.float32)
    assert torch.equal(found.nan_to_num(), torch.tensor(expected).float().nan_to_num())


def test_a_file_that_lost_its_end_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"\0" * 10)
    with pytest.raises(OSError, match="ends early"):
        decode(GgufTensor(shape=(2, 32), block_type=BLOCK_TYPES[8], file=path, start_bytes=0), torch.float32)
