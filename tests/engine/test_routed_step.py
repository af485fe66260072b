"""Whole runs of a model with experts by the studio's own decoder: the same numbers as its own code, resumed, in NF4."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file

from studio.core.events import RunPlanned, RunResumed
from studio.planning import run_plan as planning
from tests.conftest import make_tokenizer
from tests.each_time import some

SHAPE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8,
    "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": [0], "max_position_embeddings": 128,
    "pad_token_id": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """The folder of a tiny Qwen3-MoE whose first layer is dense."""
    folder = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SHAPE)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    make_tokenizer(folder)
    return str(folder)


def weights(ran) -> dict[str, torch.Tensor]:
    return load_file(ran.folder.path / ran.record.artifact / "adapter_model.safetensors")


def says(ran) -> set[str]:
    return {text.id for text in ran.of(RunPlanned)[0].swaps}


@pytest.mark.parametrize("quantization", some(["none", "nf4"], "none"))
@pytest.mark.parametrize(
    "targets", some(["all-linear", "q_proj,k_proj,v_proj,o_proj"], "all-linear"), ids=["experts", "attention"]
)
def test_a_run_is_that_of_the_models_own_code(ran, mixture, monkeypatch, targets, quantization):
    changes = {
        "model.source": mixture, "adapter.target_modules": targets, "model.quantization": quantization,
        "optim.learning_rate": 1e-3,
    }  # fmt: skip
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert stock.record.state == mine.record.state == "finished", mine.log + stock.log
    assert "run.decoder" in says(mine) and "run.decoder" not in says(stock), mine.log
    assert mine.losses == pytest.approx(stock.losses, abs=1e-4)
    ours, theirs = weights(mine), weights(stock)
    assert ours.keys() == theirs.keys()
    assert any(".experts." in name for name in ours) == (targets == "all-linear")
    for name, tensor in ours.items():
        far = (
            tensor - theirs[name]
        ).abs() > 2e-4  # where a gradient is near nothing Adam shows how it was rounded
        assert far.float().mean() <= 0.01, name


@pytest.mark.computing
@pytest.mark.parametrize("quantization", some(["none", "nf4"], "none"))
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(ran, mixture, monkeypatch, quantization):
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    changes = {"run.trial": False, "model.source": mixture, "model.quantization": quantization}
    whole = ran(changes)
    part = ran(changes, stop_at=3)
    assert part.record.state == "stopped"
    rest = ran(changes, folder=part.folder)
    assert rest.of(RunResumed)[0].step == 3 and "run.decoder" in says(rest), rest.log
    assert part.losses + rest.losses == whole.losses
    first, second = weights(whole), weights(rest)
    assert all(torch.equal(first[name], second[name]) for name in first)
