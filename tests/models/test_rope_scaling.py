"""Positions stretched for longer texts: what transformers is told, what is refused, and what the decoder computes."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig

from studio.core.errors import StudioError
from studio.models.adapt import unwrap
from studio.models.catalog import inspect_model
from studio.models.decoder.parity_check import find_difference
from studio.models.load import load_model
from studio.models.rope_scaling import read_kind, scale_config
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder import assert_equal, ours, stock, take


@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic"])
def test_what_is_loaded_is_what_transformers_makes_of_the_same_settings(make_tiny_model, tmp_path, kind):
    facts = inspect_model(str(make_tiny_model(tmp_path / "model", max_position_embeddings=64)))
    model = load_model(facts, device="cpu", dtype="fp32", rope=f"{kind} 4").model
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    limit = 64 if kind == "dynamic" else 256
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 64
    expected = AutoModelForCausalLM.from_pretrained(
        facts.folder, rope_parameters=rope, max_position_embeddings=limit, dtype=torch.float32
    ).eval()
    ids = torch.arange(100)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, expected(ids).logits)
        plain = load_model(facts, device="cpu", dtype="fp32").model
        assert not torch.equal(model(ids).logits, plain(ids).logits)
    model.config.save_pretrained(tmp_path / "saved")
    assert model.config.max_position_embeddings == limit
    assert read_kind(str(tmp_path / "saved")) == kind and read_kind(facts.folder) == ""


def test_of_several_ropes_the_one_that_sees_everything_is_stretched():
    config = Gemma3TextConfig(max_position_embeddings=1024)
    before = dict(config.rope_parameters)
    scale_config(config, "linear 8")
    assert config.rope_parameters["sliding_attention"] == before["sliding_attention"]
    assert config.rope_parameters["full_attention"]["factor"] == 8.0


@pytest.mark.parametrize(
    ("config", "id"),
    [
        (GPT2Config(), "rope.none"),
        (LlamaConfig(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}), "rope.own"),
    ],
)
def test_what_cannot_be_stretched_is_refused(config, id):
    with pytest.raises(StudioError) as refused:
        scale_config(config, "yarn 4")
    assert refused.value.what.id == id


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_the_decoder_computes_stretched_positions(kind):
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    if kind == "linear":
        del rope["original_max_position_embeddings"]
    model = make_model("llama", rope_parameters=rope, max_position_embeddings=64)
    decoder = take(model)
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))
    assert find_difference(unwrap(model), decoder, None) is None
