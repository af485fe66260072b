"""A run with stretched positions: what it leaves for others says so, in both spellings."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from studio.core.events import RunPlanned
from studio.engine.exporters.adapter import load_lines
from studio.planning import run_plan as planning
from tests.engine.test_new_tokens import export

pytestmark = pytest.mark.computing


@pytest.mark.parametrize("kind", ["yarn", "linear"])
def test_others_load_what_was_trained_with_stretched_positions(
    ran, make_tiny_model, tmp_path, monkeypatch, kind
):
    source = str(make_tiny_model(tmp_path / "model", max_position_embeddings=32))
    changes = {"model.source": source, "model.rope_scaling": kind, "model.rope_factor": 4.0}
    stock = ran(changes)
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    mine = ran(changes)
    assert stock.record.state == mine.record.state == "finished", stock.log + mine.log
    assert "run.decoder" in {text.id for text in mine.of(RunPlanned)[0].swaps}
    assert mine.losses == pytest.approx(stock.losses, abs=1e-4)
    assert mine.losses != ran({"model.source": source}).losses
    folder = mine.folder.path / "adapter"
    config = AutoConfig.from_pretrained(folder / "base_config.json")
    assert config.max_position_embeddings == 128
    assert "base_config.json" in " ".join(load_lines(str(folder), source))
    base = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, folder)
    merged = export(mine, source, tmp_path / "merged")
    written = json.loads((tmp_path / "merged" / "config.json").read_text(encoding="utf-8"))
    assert written["rope_parameters"]["rope_type"] == written["rope_scaling"]["rope_type"] == kind
    assert written["rope_theta"] == 10000.0 and written["max_position_embeddings"] == 128
    ids = torch.arange(2, 90)[None]
    with torch.no_grad():
        expected = tuned(ids).logits
        assert (merged(ids).logits - expected).abs().max() < 0.05 * expected.std()
