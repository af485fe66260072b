"""A made model is a real one: the studio reads its shape, every row is full, and one step trains through the engine."""

from __future__ import annotations

import csv
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.make_model import SHAPES, build_config, list_tensors, make_model
from benchmarks.table import append_row
from benchmarks.train import read_run, write_recipe
from studio.engine.run_folder import create_run
from studio.models.catalog import inspect_model
from studio.services.recipes import read_recipe

TOKENS = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny shape, in shards of a few tensors each."""
    import benchmarks.make_model as made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "SHARD_BYTES", 50_000)
        return make_model("tiny", tmp_path_factory.mktemp("made") / "tiny", tokens=TOKENS)


def test_weights_are_whole_and_of_the_shape(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16 and len(list(folder.glob("model-*.safetensors"))) > 2
    assert inspect_model(str(folder)).parameters == sum(p.numel() for p in model.parameters())
    assert model.model.layers[1].mlp.up_proj.weight.float().std().item() == pytest.approx(0.02, rel=0.05)
    assert len(AutoTokenizer.from_pretrained(folder)) <= model.config.vocab_size


NARROW = {
    "vocab_size": 384,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        (
            "gpt-oss-20b-slice",
            {"intermediate_size": 32, "num_local_experts": 2, "layer_types": ["full_attention"]},
        ),
        ("qwen3-30b-a3b-slice", {"moe_intermediate_size": 32, "num_experts": 8}),
    ],
)
def test_experts_lie_in_a_folder_as_on_the_hub(shape, small, tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, shape, SHAPES[shape] | NARROW | small)
    folder = make_model(shape, tmp_path, tokens=TOKENS)
    settings = {"dtype": torch.bfloat16, "device_map": "cpu", "output_loading_info": True}
    model, info = AutoModelForCausalLM.from_pretrained(folder, **settings)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert inspect_model(str(folder)).parameters == sum(p.numel() for p in model.parameters())
    down = model.model.layers[0].mlp.experts.down_proj
    assert down.dtype == torch.bfloat16 and down.float().std().item() == pytest.approx(0.02, rel=0.2)


PARAMETERS = {
    "llama-8b": 8_030_261_248,
    "llama-1b": 1_235_814_400,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "gemma3-4b": 3_880_263_168,
    "mistral-7b": 7_248_023_552,
    "phi3-medium": 13_960_238_080,
    "phi3-medium-split": 13_960_238_080,
    "qwen3-30b-a3b-slice": 8_099_779_584,
    "gpt-oss-20b-slice": 6_097_391_616,
    "qwen3.5-9b-slice": 3_764_131_968,
    "gemma4-26b-slice": 5_637_188_614,
    "gemma3n-e4b-slice": 2_353_257_248,
    "glm-4.7-flash-slice": 3_895_625_536,
    "llama-3b-slice": 704_683_008,
    "smollm-slice": 25_959_744,
}


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "tiny"])
def test_shapes_are_those_of_the_released_models(shape):
    counted = sum(math.prod(size) for _, size in list_tensors(build_config(shape)))
    assert counted == PARAMETERS[shape]


def test_norms_begin_as_those_of_their_family(tmp_path, monkeypatch):
    small = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }
    monkeypatch.setitem(SHAPES, "small", {**SHAPES["gemma3-4b"], **small, "num_attention_heads": 4})
    model = AutoModelForCausalLM.from_pretrained(make_model("small", tmp_path, tokens=16))
    assert model.model.norm.weight.abs().max() == 0 and model.lm_head.weight.std() > 0.01
    assert type(model).__name__ == "Gemma3ForCausalLM"


@pytest.mark.computing
@pytest.mark.parametrize("way", ["lora", "full"])
def test_one_step_through_the_engine_fills_a_row_of_the_table(folder, tmp_path, way):
    from studio.engine.run import run
    from studio.machine.detect import detect
    from studio.services.event_log import EventLog

    path = write_recipe(tmp_path / "r.json", folder, way, steps=1, micro_batch=2, tokens=TOKENS, run={})
    recipe = read_recipe(str(path))
    place = create_run(tmp_path / "runs", recipe)
    run(recipe, detect(), place, EventLog(place.events).append, lambda: False)
    row = read_run(place.path)
    assert row["state"] == "finished" and row["steps"] == 1 and row["losses_finite"]
    assert row["loss_first"] == pytest.approx(math.log(384), abs=0.5)
    append_row(tmp_path / "out" / "t.csv", row)
    append_row(tmp_path / "out" / "t.csv", row)
    with (tmp_path / "out" / "t.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and rows[1]["artifact"] == {"lora": "adapter", "full": "model"}[way]


def test_every_row_is_full(folder):
    from studio.core.recipe import DatasetSpec
    from studio.data.prepare import prepare

    spec = DatasetSpec(source=str(folder / "conversations.jsonl"), max_length=TOKENS)
    data = prepare(spec, "auto", AutoTokenizer.from_pretrained(folder), seed=0)
    assert {len(example.token_ids) for example in data.train} == {TOKENS}
