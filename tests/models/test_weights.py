"""Reading ahead: the model is the one that transformers reads by itself, bit for bit, whoever is first."""

import json
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from studio.core.errors import StudioError
from studio.models import weights
from studio.models.catalog import inspect_model
from studio.models.load import load_model
from studio.models.weights import AHEAD_BYTES, Weights, count_ahead, list_entries, read_ahead, start_reading
from tests.conftest import FAMILIES
from tests.each_time import every


def shard(folder) -> None:
    """Cut model.safetensors into two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names, index = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def read_both(folder, **settings):
    """Return the model as transformers reads it and as we read it ahead."""
    facts = inspect_model(str(folder))
    expected = load_model(facts, device="cpu", **settings).model
    return expected, load_model(facts, device="cpu", weights=start_reading(folder, "cpu"), **settings).model


def assert_same(expected, found) -> None:
    for kind in ("state_dict", "named_parameters", "named_buffers"):
        there, here = dict(getattr(expected, kind)()), dict(getattr(found, kind)())
        assert list(there) == list(here)  # tied weights are one parameter in both
        for name, tensor in there.items():
            assert tensor.dtype == here[name].dtype and torch.equal(tensor, here[name]), name
    assert expected.config.to_dict() == found.config.to_dict()
    assert expected.config.name_or_path == found.config.name_or_path
    assert expected.name_or_path == found.name_or_path
    assert expected.generation_config.to_dict() == found.generation_config.to_dict()


@pytest.mark.parametrize("family", every(3, FAMILIES))
@pytest.mark.parametrize(("dtype", "quantization"), [("bf16", "none"), ("fp32", "none"), ("bf16", "nf4")])
def test_it_is_the_model_that_transformers_reads(tmp_path, make_tiny_model, family, dtype, quantization):
    folder = make_tiny_model(tmp_path / "model", family, hidden_size=64)
    assert_same(*read_both(folder, dtype=dtype, quantization=quantization))


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_in_several_files(tmp_path, make_tiny_model, tied):
    folder = make_tiny_model(tmp_path / "model", tie_word_embeddings=tied)
    shard(folder)
    expected, found = read_both(folder, dtype="fp32")
    assert_same(expected, found)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) is tied


def test_weights_in_no_file_are_refused_and_further_ones_are_left(tmp_path, make_tiny_model):
    folder = make_tiny_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.0.extra.weight": torch.ones(3)}, folder / "model.safetensors")
    assert_same(*read_both(folder, dtype="fp32"))
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(StudioError) as refusal:
        read_both(folder, dtype="fp32")
    assert refusal.value.why.id == "model.load.missing"


def test_whoever_asks_in_another_order_does_not_wait(tiny_models):
    folder = tiny_models()
    tensors = load_file(folder / "model.safetensors")
    entries, found = list_entries(folder), {}
    weights = Weights(
        entries, torch.device("cpu"), ahead_bytes=1
    )  # one tensor ahead, which is asked for last
    asking = threading.Thread(
        target=lambda: found.update({name: weights.take(name) for name in sorted(tensors, reverse=True)}),
        daemon=True,
    )
    asking.start()
    asking.join(20)
    assert not asking.is_alive()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert torch.equal(weights.take(entries[0].name), tensors[entries[0].name])  # asked for twice
    weights.close()


def test_a_file_that_ends_early_is_refused_in_words(tmp_path, make_tiny_model):
    folder = make_tiny_model(tmp_path / "model")
    facts, entries = inspect_model(str(folder)), list_entries(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-400])
    weights = Weights(entries, torch.device("cpu"), ahead_bytes=2**20)
    with pytest.raises(StudioError) as refusal:
        load_model(facts, device="cpu", dtype="fp32", weights=weights)
    assert refusal.value.what.id == "model.load"
    assert not any(thread.name.startswith("weights-") for thread in threading.enumerate())


def test_an_unknown_dtype_is_left_to_transformers(tmp_path, tiny_models):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"one": torch.zeros(8, dtype=torch.float8_e4m3fn)}, folder / "model.safetensors")
    assert start_reading(folder, "cpu") is None


def test_a_model_is_read_whole_where_the_card_has_room_and_else_a_little_ahead():
    gigabyte = 10**9
    assert count_ahead(16 * gigabyte, 80 * gigabyte) == 16 * gigabyte
    assert count_ahead(16 * gigabyte, 24 * gigabyte) == AHEAD_BYTES
    assert count_ahead(16 * gigabyte, 4 * gigabyte) == gigabyte // 2


def test_what_is_read_ahead_is_counted_until_it_is_taken(tiny_models):
    weights = start_reading(tiny_models("llama"), "cpu")
    for name in weights.state_dict():
        weights.take(name)
    assert weights.held_bytes == 0
    weights.close()
    weights = Weights(list_entries(tiny_models("llama")), torch.device("cpu"), 2**30)
    weights.close()
    assert weights.held_bytes == 0


def test_nothing_is_read_ahead_for_a_processor(tiny_models):
    assert read_ahead(inspect_model(str(tiny_models("llama"))), "cpu") is None


def test_a_run_that_loads_nothing_gives_the_cards_memory_back(tiny_models, monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    for taken in (True, False):
        weights = start_reading(tiny_models("llama"), "cpu")
        names = list(weights.state_dict())
        if taken:
            for name in names:
                weights.take(name)
        else:
            while not all(entry.state == "read" for entry in weights._entries.values()):
                pass
        weights.device = torch.device("cuda")
        weights.close()
        assert emptied == ([] if taken else [True])


def test_what_is_read_ahead_keeps_to_the_share_that_a_person_allows(tiny_models, monkeypatch):
    """The card's threads are left out: what counts is how many bytes they may hold."""
    folder = tiny_models("llama")
    size_bytes = sum(entry.stored.size_bytes for entry in list_entries(folder))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * size_bytes, 8 * size_bytes))
    monkeypatch.setattr(weights, "Weights", lambda entries, device, ahead_bytes: ahead_bytes)
    assert start_reading(folder, "cuda:0") == size_bytes
    assert start_reading(folder, "cuda:0", 0.25) == size_bytes // 8
