"""Models that read pictures: the language model is trained on text, everything else stays as it was, to the bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText, Qwen3VLForConditionalGeneration

from studio.core.events import RunPlanned
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.models.catalog import inspect_model
from studio.models.config_shapes import TOWER
from studio.planning.run_plan import plan
from tests.conftest import SHAPE, make_tokenizer

VISION = {
    "hidden_size": 32,
    "num_heads": 2,
    "depth": 2,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "patch_size": 14,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


@pytest.fixture
def folder(tmp_path) -> Path:
    """A tiny Qwen3-VL as the hub has it, in bf16."""
    text = SHAPE | {
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    }
    config = CONFIG_MAPPING["qwen3_vl"](text_config=text, vision_config=VISION)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    model.save_pretrained(tmp_path / "seer")
    make_tokenizer(tmp_path / "seer")
    (tmp_path / "seer" / "preprocessor_config.json").write_text('{"patch_size": 14}', encoding="utf-8")
    return tmp_path / "seer"


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(5, 29)[None], use_cache=False).logits


def test_the_shapes_are_those_of_the_language_model(folder):
    facts = inspect_model(str(folder))
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    layer = model.get_decoder().layers[0]
    assert facts.trainable.ok and facts.layers == 2
    assert facts.linears == {
        name: (part.out_features, part.in_features)
        for name, part in layer.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert facts.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.computing
@pytest.mark.parametrize("method", ["lora", "full"])
def test_pictures_parts_stay_and_the_result_loads_whole(ran, tmp_path, machine, folder, method):
    facts = inspect_model(str(folder))
    result = ran({"model.source": str(folder), "adapter.method": method, "optim.max_steps": 3})
    assert result.record.state == "finished", result.log
    assert "run.towers" in [one.id for one in result.of(RunPlanned)[0].swaps]
    artifact = result.folder.path / result.record.artifact
    target = tmp_path / "merged"
    target.mkdir()
    planned = plan(machine, result.folder.read_recipe(), facts)
    MERGED.write(ExportJob(result.folder.path, result.record, facts, planned, target))
    assert "AutoModelForImageTextToText" in MERGED.load_lines(str(target), "")[0]
    merged = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32)
    before, after = load_file(folder / "model.safetensors"), load_file(target / "model.safetensors")
    towers = [name for name in before if TOWER.search(name)]
    assert before.keys() == after.keys() and len(towers) > 10
    assert all(torch.equal(before[name], after[name]) for name in towers)
    assert (target / "preprocessor_config.json").read_text(encoding="utf-8") == '{"patch_size": 14}'
    if method == "lora":
        base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        plain = logits_of(base)
        tuned = logits_of(PeftModel.from_pretrained(base, artifact))
        effect, off = (tuned - plain).abs().max(), (logits_of(merged) - tuned).abs().max()
        assert effect > 0.01 and off < 0.2 * effect, "the adapter works on the whole model"


@pytest.mark.computing
def test_four_bits_leave_the_tower_as_it_is(folder):
    from studio.models.load import load_model

    model = load_model(inspect_model(str(folder)), device="cpu", dtype="bf16", quantization="nf4").model
    kinds = {
        name: type(part).__name__ for name, part in model.named_modules() if hasattr(part, "in_features")
    }
    assert {kind for name, kind in kinds.items() if "visual" in name} == {"Linear"}
    assert {kind for name, kind in kinds.items() if "language_model" in name} == {"Linear4bit"}
    assert dataclasses.asdict(inspect_model(str(folder)))["quantization"] == "none"
