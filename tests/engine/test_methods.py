"""Every way to train, on a CPU: the loss falls and the artefact reloads."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from studio.core.events import EvalLogged, RunPlanned, Warned
from tests.conftest import SHAPE, make_tokenizer
from tests.each_time import some

WAYS = {
    "lora": {},
    "lora dropout rslora": {"adapter.dropout": 0.1, "adapter.rslora": True},
    "dora": {"adapter.dora": True},
    "nf4": {"model.quantization": "nf4"},
    "int8": {"model.quantization": "int8"},
    "full": {"adapter.method": "full", "optim.learning_rate": 3e-3},
    "packing": {"data.fill": True, "optim.micro_batch": 1},
    "linear": {"optim.schedule": "linear"},
    "constant": {"optim.schedule": "constant", "optim.warmup_steps": 2},
    "wsd": {"optim.schedule": "wsd"},
    "adamw_8bit": {"optim.optimizer": "adamw_8bit"},
    "paged_adamw_8bit": {"optim.optimizer": "paged_adamw_8bit"},
    "recompute": {"run.activation_checkpointing": "on"},
}


@pytest.mark.parametrize("way", some(WAYS, "lora", "nf4"))
def test_loss_falls_and_artefact_reloads(ran, way):
    result = ran({"optim.epochs": 4} | WAYS[way])
    assert result.record.state == "finished", result.log
    assert result.losses[-1] < result.losses[0] - 0.2
    assert (result.folder.path / result.record.artifact).is_dir()


def test_the_plan_says_which_optimizer_really_runs(ran):
    result = ran({"optim.optimizer": "adamw_8bit"})
    choice = result.of(RunPlanned)[0].plan.optimizer
    assert choice.value == "adamw_8bit" and choice.reason.id


def test_8bit_optimizer_holds_8bit_states(tiny_models):
    from studio.core.recipe import OptimSpec
    from studio.engine.optimizer import build_optimizer

    layer = torch.nn.Linear(128, 128)  # 16,384 weights: bitsandbytes keeps fewer than 4,096 in 32 bits
    optimizer = build_optimizer([layer.weight], [layer.bias], OptimSpec(), "adamw_8bit", torch.device("cpu"))
    layer(torch.randn(2, 128)).sum().backward()
    optimizer.step()
    assert optimizer.state[layer.weight]["state1"].dtype == torch.uint8


@pytest.mark.computing
def test_continued_pretraining_on_plain_text(ran, jsonl, tmp_path):
    file = jsonl(tmp_path / "text.jsonl", [{"text": "the quick brown fox " * (3 + i % 5)} for i in range(20)])
    result = ran({"data.source": str(file), "optim.epochs": 6})
    assert result.record.state == "finished", result.log
    assert result.losses[-1] < result.losses[0] - 0.5


@pytest.mark.computing
def test_going_on_from_an_adapter(ran):
    first = ran({"optim.epochs": 4})
    again = ran({"model.adapter": str(first.folder.path / first.record.artifact)})
    assert again.record.state == "finished", again.record.diagnosis
    assert again.losses[0] < first.losses[0] - 0.2


def test_early_stopping_ends_the_run_well(ran):
    changes = {
        "data.validation_share": 0.3,
        "run.eval_every": 1,
        "run.early_stopping": 2,
        "optim.learning_rate": 0.5,
        "optim.epochs": 20,
    }
    result = ran(changes)
    assert result.record.state == "finished", result.log
    assert result.record.steps < result.record.total_steps
    losses = [event.loss for event in result.of(EvalLogged)]
    assert min(losses[-2:]) >= min(losses[:-2])
    assert any(event.message.id == "run.stopped_early" for event in result.of(Warned))


@pytest.mark.computing
def test_nf4_gradients_flow_after_an_evaluation(ran):
    """bitsandbytes repacks 4-bit weights at an evaluation forward on some CPUs; gradients must not stop there."""
    with_eval = ran(
        {"model.quantization": "nf4", "data.validation_share": 0.2, "run.eval_every": 1, "optim.epochs": 4}
    )
    without = ran({"model.quantization": "nf4", "data.validation_share": 0.2, "optim.epochs": 4})
    assert with_eval.losses == without.losses


PLAIN_ATTENTION = {
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8},
    "gptj": {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "n_positions": 256, "n_inner": 64},
}
"""Families that transformers computes without PyTorch's fused attention alone."""


@pytest.mark.parametrize("family", some(PLAIN_ATTENTION, "gptj"))
def test_what_has_no_fused_attention_trains_and_merges(ran, tmp_path, machine, family):
    from studio.engine.exporters.exporter import ExportJob
    from studio.engine.exporters.merged import MERGED
    from studio.models.catalog import inspect_model
    from studio.models.load import load_model
    from studio.planning.run_plan import plan

    config = CONFIG_MAPPING[family](**(SHAPE | PLAIN_ATTENTION[family]), attn_implementation="eager")
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / family)
    make_tokenizer(tmp_path / family)
    facts = inspect_model(str(tmp_path / family))
    assert load_model(facts, device="cpu", dtype="fp32").model.config._attn_implementation == "eager"
    result = ran({"model.source": facts.folder, "model.attention": "sdpa", "optim.max_steps": 2})
    assert result.record.state == "finished", result.log
    assert result.of(RunPlanned)[0].plan.attention.value == "eager"
    told = [
        event.message.values["share"]
        for event in result.of(Warned)
        if event.message.id == "run.adapter_reach"
    ]
    assert not told, "all-linear reaches the experts, too"
    target = tmp_path / "merged"
    target.mkdir()
    planned = plan(machine, result.folder.read_recipe(), facts)
    MERGED.write(ExportJob(result.folder.path, result.record, facts, planned, target))


@pytest.mark.computing
def test_evaluation_of_a_4_bit_base_has_no_dropout(tiny_models):
    from peft import LoraConfig, get_peft_model

    from studio.models.catalog import inspect_model
    from studio.models.load import load_model, set_evaluation

    facts = inspect_model(str(tiny_models("llama")))
    base = load_model(facts, device="cpu", dtype="fp32", quantization="nf4").model
    tuned = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.5, target_modules="all-linear"))
    for name, weight in tuned.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    tuned.train()
    set_evaluation(tuned)
    assert not any(module.training for module in tuned.modules() if isinstance(module, torch.nn.Dropout))
    ids = torch.arange(2, 12)[None]
    assert torch.equal(tuned(ids).logits, tuned(ids).logits)


@pytest.mark.parametrize("form", ["nf4", "int8"])
@pytest.mark.parametrize("stored_so", [True, False], ids=["stored", "asked for"])
def test_a_quantised_base_loads_trains_and_merges(ran, tiny_models, tmp_path, machine, form, stored_so):
    from studio.engine.exporters.exporter import ExportJob
    from studio.engine.exporters.merged import MERGED
    from studio.models.catalog import inspect_model
    from studio.models.load import load_model, set_evaluation
    from studio.models.tokenizer import load_tokenizer
    from studio.planning.run_plan import plan

    facts = inspect_model(str(tiny_models("llama")))
    if stored_so:
        stored = tmp_path / "stored"
        load_model(facts, device="cpu", dtype="fp32", quantization=form).model.save_pretrained(stored)
        load_tokenizer(facts).save_pretrained(stored)
        facts = inspect_model(str(stored))
        assert facts.quantization == form
    result = ran({"model.source": facts.folder, "model.quantization": form, "optim.epochs": 4})
    assert result.record.state == "finished", result.log
    assert result.losses[-1] < result.losses[0] - 0.2
    target = tmp_path / "merged"
    target.mkdir()
    recipe = result.folder.read_recipe()
    MERGED.write(ExportJob(result.folder.path, result.record, facts, plan(machine, recipe, facts), target))
    merged = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    base = load_model(facts, device="cpu", dtype="fp32", quantization=form).model
    tuned = PeftModel.from_pretrained(base, result.folder.path / "adapter")
    set_evaluation(tuned)
    ids = torch.arange(2, 12)[None]
    difference = (merged(ids).logits - tuned(ids).logits).abs().max()
    assert difference < 0.05  # one rounding of the weights to 16 bit
