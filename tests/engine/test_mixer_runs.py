"""Whole runs of today's kinds of model by the studio's own decoder, where it once left them to their own code."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from studio.core.events import RunPlanned, RunResumed
from studio.planning import run_plan as planning
from tests.conftest import make_tokenizer
from tests.engine.test_routed_step import weights
from tests.models.decoder import models, routed_models

FAMILIES = {
    "gemma4": models.FAMILIES, "gemma4_e2b": models.FAMILIES, "gemma3n": models.FAMILIES,
    "gemma4_moe": routed_models.FAMILIES,
    "deepseek_v3": routed_models.FAMILIES,
    "granite_4_h": routed_models.FOREIGN, "nemotron_h": models.FOREIGN, "nemotron_3": routed_models.FOREIGN,
    "qwen3_next": routed_models.FOREIGN, "gpt_oss": routed_models.FAMILIES,
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    config_class, extra = FAMILIES[request.param][request.param]
    shape = models.SHAPE | {"vocab_size": 300, "pad_token_id": 1, "max_position_embeddings": 256}
    torch.manual_seed(0)
    config = config_class(**copy.deepcopy(shape | extra))  # Gemma 4's changes its layer_types
    folder = tmp_path_factory.mktemp(request.param)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.dim() > 1 else 1.0)  # fresh experts all score alike
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return str(folder)


@pytest.mark.computing
def test_a_run_is_that_of_the_models_own_code_and_goes_on_to_the_same_bits(ran, folder, monkeypatch):
    changes = {"model.source": folder, "optim.learning_rate": 1e-3}
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert stock.record.state == mine.record.state == "finished", mine.log + stock.log
    assert "run.decoder" in {text.id for text in mine.of(RunPlanned)[0].swaps}, mine.log
    assert mine.losses == pytest.approx(stock.losses, abs=1e-4)
    part = ran(changes, stop_at=3)
    rest = ran(changes, folder=part.folder)
    assert rest.of(RunResumed)[0].step == 3 and part.losses + rest.losses == mine.losses
    first, second = weights(mine), weights(rest)
    assert all(torch.equal(first[name], second[name]) for name in first)
