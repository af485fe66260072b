"""A run on experts in 4 bits: it trains, and its merged model is what peft merges into the opened base."""

import pytest
import torch
from peft import PeftModel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.merged import MERGED
from studio.models.catalog import inspect_model
from studio.models.load import load_model
from studio.planning.run_plan import plan
from tests.conftest import make_tokenizer
from tests.each_time import some
from tests.models.test_nf4_experts import FAMILIES, SHAPE


@pytest.mark.computing
@pytest.mark.parametrize("family", some(["qwen3_moe", "gpt_oss"], "qwen3_moe"))
def test_it_trains_and_merges(ran, tmp_path, machine, family):
    config = CONFIG_MAPPING[family](**SHAPE | FAMILIES[family])
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "base")
    make_tokenizer(tmp_path / "base")
    facts = inspect_model(str(tmp_path / "base"))
    changes = {"model.source": facts.folder, "model.quantization": "nf4", "optim.max_steps": 6}
    result = ran(changes | {"adapter.target_modules": "q_proj,k_proj,v_proj,o_proj"})
    assert result.record.state == "finished", result.log
    target = tmp_path / "merged"
    target.mkdir()
    planned = plan(machine, result.folder.read_recipe(), facts)
    MERGED.write(ExportJob(result.folder.path, result.record, facts, planned, target))
    merged = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    opened = load_model(facts, device="cpu", dtype="fp32", quantization="nf4").model.dequantize()
    theirs = PeftModel.from_pretrained(opened, result.folder.path / result.record.artifact).merge_and_unload()
    expected = theirs.state_dict()
    for name, weight in merged.state_dict().items():
        torch.testing.assert_close(weight, expected[name].to(torch.bfloat16).float(), rtol=2**-7, atol=1e-3)
