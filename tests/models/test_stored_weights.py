"""Published folders in fp8 and MXFP4 are opened to the numbers that their publishers mean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from studio.core.errors import StudioError
from studio.models.catalog import DEMO_MODEL, inspect_model
from studio.models.config_facts import outline_model
from studio.models.resolve import open_packed, resolve_model
from studio.models.stored_weights import FP4_VALUES, open_float8, open_mxfp4


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))
    return tmp_path / "hub"


def store_fp8(folder: Path, block: tuple[int, int] | None, static: bool = False) -> dict[str, torch.Tensor]:
    """Make the demo model a folder of float8 weights; returns what each is worth, in fp32."""
    shutil.copytree(DEMO_MODEL, folder)
    weights, meant = load_file(folder / "model.safetensors"), {}
    for name in [name for name, weight in weights.items() if "_proj.weight" in name]:
        whole = weights[name].float()
        rows, columns = whole.shape
        size = block or (rows, columns)
        counts = [-(-length // each) for length, each in zip(whole.shape, size, strict=True)]
        scale = torch.rand(counts) * 0.01 + 0.001
        spread = scale.repeat_interleave(size[0], 0)[:rows].repeat_interleave(size[1], 1)[:, :columns]
        packed = (whole / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        weights[name], meant[name] = packed, packed.float() * spread
        weights[f"{name}_scale_inv"] = scale if block else scale.reshape(())
        if static:
            weights[name.replace(".weight", ".activation_scale")] = torch.tensor(1.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "weight_block_size": list(block) if block else None,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return meant


@pytest.mark.parametrize("block, static", [((128, 128), False), ((64, 32), False), (None, True)])
def test_an_fp8_folder_is_opened_once(tmp_path, block, static):
    folder = tmp_path / "Model-FP8"
    meant = store_fp8(folder, block, static)
    before, demo = inspect_model(str(folder)), inspect_model("demo")
    assert before.packed and before.folder == "" and before.quantization == "none" and before.trainable.ok
    for field in (
        "parameters",
        "linears",
        "norms",
        "layers",
        "vocabulary",
        "has_chat_template",
        "tied_embeddings",
    ):
        assert getattr(before, field) == getattr(demo, field), field
    events = []
    facts = resolve_model(str(folder), "", events.append, lambda: False)
    assert [event.phase for event in events] == ["open"] and facts.folder and not facts.packed
    assert resolve_model(str(folder), "", events.append, lambda: False) == facts and len(events) == 1
    opened, kept = (
        load_file(Path(facts.folder) / "model.safetensors"),
        load_file(DEMO_MODEL / "model.safetensors"),
    )
    assert set(opened) == set(kept)
    for name, weight in opened.items():
        expected = meant[name].to(torch.bfloat16) if name in meant else kept[name]
        assert torch.equal(weight, expected), name
    assert open_packed(facts) is facts


def test_a_weight_without_its_scale_is_refused(tmp_path):
    folder = tmp_path / "m"
    store_fp8(folder, (128, 128))
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("_scale_inv"))]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(StudioError) as caught:
        inspect_model(str(folder))
    assert caught.value.what.id == "stored.no_scale"


def test_float8_by_blocks_of_experts_and_by_rows():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 192, 96, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(3, 2, 1, generator=generator)  # blocks of 128: the second has 64 rows, not both 96
    spread = scale.repeat_interleave(128, 1)[:, :192]
    assert torch.equal(open_float8(weight, scale, (128, 128)), (weight.float() * spread).to(torch.bfloat16))
    rows = torch.rand(192, generator=generator)
    expected = (weight[0].float() * rows[:, None]).to(torch.bfloat16)
    for block in (None, (128, 128)):
        assert torch.equal(open_float8(weight[0], rows, block), expected)
        assert torch.equal(open_float8(weight[0], rows[:, None], block), expected)
    each = torch.rand(3, 1, 1, generator=generator)
    assert torch.equal(open_float8(weight, each), (weight.float() * each).to(torch.bfloat16))
    for wrong in ((2, 1), (192, 2), (96,)):
        with pytest.raises(ValueError, match="scales"):
            open_float8(weight[0], torch.ones(wrong), None)


def test_scales_that_do_not_fit_are_refused_before_a_run(tmp_path):
    folder = tmp_path / "m"
    store_fp8(folder, (64, 64))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["weight_block_size"] = [100, 100]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(StudioError) as caught:
        inspect_model(str(folder))
    assert caught.value.what.id == "stored.no_scale"


def test_what_is_not_packed_keeps_its_digits(tmp_path):
    folder = tmp_path / "m"
    store_fp8(folder, (128, 128))
    weights = load_file(folder / "model.safetensors")
    exact = torch.full_like(weights["model.norm.weight"], 1 / 3, dtype=torch.float32)
    save_file(weights | {"model.norm.weight": exact}, folder / "model.safetensors", metadata={"format": "pt"})
    facts = open_packed(inspect_model(str(folder)))
    assert torch.equal(load_file(Path(facts.folder) / "model.safetensors")["model.norm.weight"], exact)


def test_mxfp4_is_what_transformers_makes_of_it():
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (2, 48, 3, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(110, 140, (2, 48, 3), generator=generator, dtype=torch.uint8)
    assert torch.equal(open_mxfp4(blocks, scales), convert_moe_packed_tensors(blocks, scales))


def test_a_gpt_oss_as_published_opens_to_its_weights(tmp_path):
    from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

    generator = torch.Generator().manual_seed(2)
    config = GptOssConfig(
        vocab_size=300, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
    )  # fmt: skip
    model = GptOssForCausalLM(config).to(torch.bfloat16)
    folder = tmp_path / "gpt-oss-tiny"
    packed = {}
    for layer in model.model.layers:
        for name, weight in (
            ("gate_up_proj", layer.mlp.experts.gate_up_proj),
            ("down_proj", layer.mlp.experts.down_proj),
        ):
            experts, inputs, outputs = weight.shape
            blocks = torch.randint(
                0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
            )
            scales = torch.randint(
                118, 124, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8
            )
            place = f"model.layers.{layer.self_attn.layer_idx}.mlp.experts.{name}"
            packed |= {f"{place}_blocks": blocks, f"{place}_scales": scales}
            weight.data = open_mxfp4(blocks, scales)
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in list(weights):
        if name.endswith((".gate_up_proj", ".down_proj")) and ".experts." in name:
            del weights[name]
    save_file(weights | packed, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn"],
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")

    before = inspect_model(str(folder))
    facts = open_packed(before)
    assert before.packed and before.expert_parameters == facts.expert_parameters > 0
    assert (before.experts, before.linears, before.parameters) == (
        facts.experts,
        facts.linears,
        facts.parameters,
    )
    found = AutoModelForCausalLM.from_pretrained(facts.folder, dtype=torch.bfloat16).state_dict()
    for name, weight in model.state_dict().items():
        assert torch.equal(found[name], weight), name


def test_a_hub_model_in_such_a_form_is_outlined_as_what_it_will_be():
    config = json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))
    plain = outline_model("o/m", config)
    stored = outline_model("o/m", config | {"quantization_config": {"quant_method": "fp8"}}, weight_bytes=7)
    assert stored.trainable.ok and stored.quantization == "none" and stored.dtype == "bf16"
    assert stored.parameters == plain.parameters and stored.weight_bytes == 2 * plain.parameters
    compressed = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    assert outline_model("o/m", config | {"quantization_config": compressed}).trainable.ok
    other = outline_model("o/m", config | {"quantization_config": {"quant_method": "awq", "version": "gemv"}})
    assert not other.trainable.ok


def test_the_sixteen_numbers():
    assert sorted(set(FP4_VALUES)) == [-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
