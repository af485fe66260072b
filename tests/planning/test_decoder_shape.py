"""Which models the planner gives to the studio's own decoder, and what it reckons for the modules left in place."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import transformers

from studio.core.i18n import Text, load_catalogue
from studio.core.memory_policy import KEEP_LEVELS
from studio.models.catalog import inspect_model
from studio.models.decoder.structure import INPUT_GROUPS, LATENT_GROUPS, LAUREL_GROUPS
from studio.planning.decoder_shape import describe_steps, explain_stock, list_mixers, read_decoder
from studio.planning.layer_memory import kept_bytes, phase_bytes
from studio.planning.memory_estimate import predict
from studio.planning.run_plan import plan
from tests.conftest import make_tokenizer
from tests.machine.facts import make_gpu, make_machine, make_recipe
from tests.models.decoder import models, routed_models

MIXERS = {
    "qwen3_5": ("linear_attn", "self_attn"), "lfm2": ("conv", "self_attn"),
    "granite_hybrid": ("mamba", "self_attn"), "qwen3_next": ("linear_attn", "self_attn"),
    "nemotron_h": ("mixer",), "nemotron_3": ("mixer",), "granite_4_h": ("mamba", "self_attn"),
    "qwen3_5_moe": ("linear_attn", "self_attn"), "gemma4": (), "gemma4_e2b": (), "gemma3n": (),
    "gemma4_moe": (),
    "latent": (), "latent_v2": (), "deepseek_v3": (), "llama": (), "qwen3_moe": (), "gpt_oss": (),
}  # fmt: skip
"""Family -> what its layers mix tokens by, where parts of that are the model's own module."""


@pytest.fixture(scope="module", params=MIXERS)
def stored(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    families = models.FAMILIES | models.FOREIGN | routed_models.FAMILIES | routed_models.FOREIGN
    config_class, extra = families[request.param]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**copy.deepcopy(models.SHAPE | extra)))
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return request.param, inspect_model(str(folder)), model


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_card_trains_them_by_the_decoder(stored, quantization):
    family, facts, _ = stored
    recipe = make_recipe({"model.source": facts.source, "model.quantization": quantization})
    chosen = plan(make_machine(make_gpu()), recipe, facts)
    assert explain_stock(chosen, facts, recipe) is None
    assert chosen.memory is not None and len(chosen.memory.layers) == facts.layers
    assert list_mixers(facts) == MIXERS[family]
    assert ("gated_delta" in chosen.kernels) == ("linear_attn" in MIXERS[family])
    said = describe_steps(chosen, facts, recipe)
    assert said.id == ("plan.decoder.mixers" if MIXERS[family] else "plan.decoder.whole")
    assert all(part in load_catalogue("en").say(said) for part in MIXERS[family])
    parts = predict(chosen, facts, recipe)
    assert parts["activations"] > 0 and parts["workspace"] > 0


def test_the_matrix_of_the_mean_mixer_has_the_weights_of_all_of_them(stored):
    family, facts, model = stored
    recipe = make_recipe({"model.source": facts.source})
    shape = read_decoder(plan(make_machine(make_gpu()), recipe, facts), facts, recipe)
    linears = sum(
        module.weight.numel()
        for name, module in model.model.layers.named_modules()
        if type(module) is torch.nn.Linear
        and name.split(".")[1]
        not in ("mlp", "feed_forward", "shared_mlp", "block_sparse_moe", "router", "altup")
        and not (".mixer." in name and name.endswith(("up_proj", "down_proj")))
    )
    groups = ("qkv", *LATENT_GROUPS, *INPUT_GROUPS, *LAUREL_GROUPS, "output")
    names = [name for name in groups if name in shape.groups]
    found = sum(shape.groups[name].inputs * shape.groups[name].outputs for name in names)
    assert linears <= shape.layers * found <= linears + shape.layers * facts.hidden_size


def test_what_is_left_to_autograd_is_held_at_the_highest_level_alone(stored):
    family, facts, _ = stored
    recipe = make_recipe({"model.source": facts.source})
    shape = read_decoder(plan(make_machine(make_gpu()), recipe, facts), facts, recipe)
    levels = [kept_bytes(shape, keep) for keep in KEEP_LEVELS]
    assert levels == sorted(levels)
    assert bool(shape.record) == bool(MIXERS[family])
    if shape.record:
        assert shape.record.mean_bytes <= shape.record.held_bytes
        assert levels[2] == levels[1] and levels[3] - levels[2] >= shape.record.mean_bytes
        assert phase_bytes(shape, "input", 64)["attention"] >= 64 * shape.record.held_bytes
    assert shape.one_block == family.startswith("nemotron")
    # A layer that is a mixer alone has no MLP whose place is free by then.
    together, alone = (
        phase_bytes(dataclasses.replace(shape, one_block=one), "all", 4096)["attention"]
        for one in (False, True)
    )
    assert alone > together


def test_the_models_own_code_is_told_of_with_its_reason(stored):
    family, facts, _ = stored
    recipe = make_recipe({"model.source": facts.source, "adapter.dora": True, "adapter.dropout": 0.1})
    chosen = plan(make_machine(make_gpu()), recipe, facts)
    assert describe_steps(chosen, facts, recipe) == Text(id="plan.stock.dora")
    recipe = make_recipe({"model.source": facts.source})
    assert describe_steps(plan(make_machine(), recipe, facts), facts, recipe).id == "plan.decoder.processor"
    if MIXERS[family]:
        recipe = make_recipe({"model.source": facts.source, "adapter.dropout": 0.1})
        said = describe_steps(plan(make_machine(make_gpu()), recipe, facts), facts, recipe)
        assert said.id == "model.decoder.unlike", "its module would draw other numbers when it runs again"
