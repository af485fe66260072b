"""Layers with experts as the planner sees them: their kinds, what is trained in them, and that they get a policy."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import transformers

from studio.core.recipe import AdapterSpec
from studio.models.adapt import adapt
from studio.models.catalog import inspect_model
from studio.planning.decoder_shape import explain_stock, read_decoder
from studio.planning.layer_kinds import list_kinds, read_routed
from studio.planning.layer_memory import kept_bytes, moved_bytes, size_layer
from studio.planning.memory_estimate import count_adapter_parameters, predict
from studio.planning.run_plan import plan
from tests.conftest import make_tokenizer
from tests.machine.facts import make_gpu, make_machine, make_recipe
from tests.models.decoder.models import SHAPE
from tests.models.decoder.routed_models import FAMILIES


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def routed(request, tmp_path_factory):
    """The facts of a tiny model of each family, and the model."""
    folder = tmp_path_factory.mktemp(request.param)
    config_class, extra = FAMILIES[request.param]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_class(**copy.deepcopy(SHAPE | extra)))
    model.save_pretrained(folder)
    make_tokenizer(folder)
    return inspect_model(str(folder)), model


def test_layers_and_their_linears_are_all_there(routed):
    facts, model = routed
    kinds = list_kinds(facts)
    with_experts = [
        layer for layer in model.model.layers if any("experts." in n for n, _ in layer.named_parameters())
    ]
    assert kinds[0].routed
    assert sum(kind.count for kind in kinds if kind.routed) == len(with_experts)
    assert sum(kind.count for kind in kinds) == len(model.model.layers)
    for kind in kinds:
        layers = with_experts if kind.routed else model.model.layers[:1]
        found = [kind.linears == list_linears(layer) for layer in layers]
        assert sum(found) == (kind.count if kind.routed else 1)


def list_linears(layer) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(module.weight.shape)
        for name, module in layer.named_modules()
        if type(module) is torch.nn.Linear and not name.endswith(("shared_expert_gate", "router.proj"))
    }


def test_what_is_trained_is_what_peft_attaches(routed):
    facts, model = routed
    spec = AdapterSpec(rank=12)
    adapted = adapt(transformers.AutoModelForCausalLM.from_config(model.config), spec)
    count = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    rewritten = sum(  # peft takes these names for the experts' (adapter_targets.py): the estimate lies above
        12 * sum(module.weight.shape)
        for name, module in adapted.get_base_model().named_modules()
        if type(module) is torch.nn.Linear and name.endswith(("gate_proj", "up_proj", "down_proj"))
    )
    gates = sum(  # a shared expert's gate is left out, too
        12 * sum(shape) for name, shape in facts.linears.items() if name.endswith("shared_expert_gate")
    )
    assert count_adapter_parameters(facts, spec) == count + rewritten and gates >= 0
    frozen = AdapterSpec(rank=12, dropout=0.1)
    assert read_routed(facts, frozen).rank == 0 and read_routed(facts, spec).rank == 4


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_card_gets_a_policy_for_them(routed, quantization):
    facts, _ = routed
    recipe = make_recipe({"model.source": facts.source, "model.quantization": quantization})
    chosen = plan(make_machine(make_gpu()), recipe, facts)
    assert explain_stock(chosen, facts, recipe) is None
    assert chosen.memory is not None and len(chosen.memory.layers) == facts.layers
    shape = read_decoder(chosen, facts, recipe)
    parts = predict(chosen, facts, recipe)
    assert parts["adapters"] >= 4 * count_adapter_parameters(facts, recipe.adapter)
    levels = [kept_bytes(shape, keep) for keep in ("input", "attention", "qkv", "all")]
    assert levels == sorted(levels) and levels[3] - levels[2] >= shape.routed.opened_bytes(
        shape.element_bytes
    )
    assert moved_bytes(shape, "input") < levels[0], "which experts a token passes stays on the card"
    for layer in set(chosen.memory.layers):
        assert all(size >= 0 for size in vars_of(size_layer(shape, 64, layer, 0)))


def vars_of(sizes) -> list[int]:
    return [sizes.held, sizes.moved, sizes.needed, sizes.ahead]


def test_all_weights_are_trained_by_the_models_own_forward(routed):
    facts, _ = routed
    recipe = make_recipe({"model.source": facts.source, "adapter.method": "full"})
    chosen = plan(make_machine(make_gpu()), recipe, facts)
    assert chosen.memory is None and explain_stock(chosen, facts, recipe).id == "plan.stock.structure"


def test_a_30b_of_128_experts_fits_a_card_of_24_gib_in_4_bits(tmp_path):
    """Qwen3-30B-A3B: 15.5 GiB of weights, 0.25 GiB of adapters of rank 16 / 8 on 6,144 experts."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=151936, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
        norm_topk_prob=True, decoder_sparse_step=1, max_position_embeddings=40960, tie_word_embeddings=False,
    )  # fmt: skip
    from studio.models.config_shapes import read_shapes

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    found = read_shapes("qwen3_moe", config.to_dict(), shapes)
    assert found["experts"] == (48, 128, 8)
    assert found["expert_parameters"] == 48 * 128 * 3 * 2048 * 768
    assert sum(map(math.prod, shapes.values())) == pytest.approx(30.5e9, rel=0.01)
