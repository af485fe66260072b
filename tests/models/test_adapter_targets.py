"""Every linear of the language model gets an adapter, by exact name; what does not is named with its share."""

from __future__ import annotations

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3ForConditionalGeneration

from studio.core.errors import StudioError
from studio.core.recipe import AdapterSpec
from studio.models.adapt import adapt, make_config, merge, note_parts
from studio.models.adapter_targets import find_targets
from studio.models.language_model import find_language_model, list_outside

TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "head_dim": 8,
}
KINDS = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "falcon": {"new_decoder_architecture": False},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "expand": 2, "chunk_size": 8},
    "deepseek_v4": {
        "num_hidden_layers": 3,
        "head_dim": 16,
        "qk_rope_head_dim": 8,
        "q_lora_rank": 16,
        "o_lora_rank": 16,
        "o_groups": 2,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    },
    "deepseek_v3": {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
}
OWN_HEADS = ("falcon", "mamba2")
"""Whose head width follows from other numbers."""


def make(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    fields = {name: value for name, value in TEXT.items() if family not in OWN_HEADS or name != "head_dim"}
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**(fields | KINDS[family])))


def make_gemma3() -> torch.nn.Module:
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = CONFIG_MAPPING["gemma3"](
        text_config=TEXT, vision_config=vision | {"image_size": 28, "patch_size": 14}, mm_tokens_per_image=1
    )
    torch.manual_seed(0)
    return Gemma3ForConditionalGeneration(config)


def targets_of(model: torch.nn.Module):
    found = find_targets(model, make_config(AdapterSpec()))
    return found, {one.why: one for one in found.left_out}


@pytest.mark.parametrize("family", KINDS)
def test_every_adapter_is_heard(family):
    """A step moves each of them: none sits where the forward reads the weight past it, or on a router."""
    model = adapt(make(family).eval(), AdapterSpec(rank=4))
    tokens = torch.arange(5, 29)[None]
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    adapters = {name: p for name, p in model.named_parameters() if "lora_B" in name}
    assert adapters and all(p.grad is not None and p.grad.any() for p in adapters.values())
    assert not any("router" in name or ".experts." in name for name in adapters)


def test_dense_models_leave_nothing_out():
    for family in ("qwen3", "falcon"):
        assert targets_of(make(family))[0].left_out == ()
    assert len(targets_of(make("qwen3"))[0].names) == 14


def test_experts_and_routers_are_left_out_with_their_share():
    model = make("qwen3_moe")
    found, left = targets_of(model)
    assert {name.rpartition(".")[2] for name in found.names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim > 1 and ".layers." in name)
    assert left["expert"].share == pytest.approx(experts / matrices) and left["router"].names == ("gate",)
    assert targets_of(make("phimoe"))[1].keys() >= {"expert", "router"}


def test_what_peft_takes_for_experts_is_left_out_and_said():
    found, left = targets_of(make("deepseek_v3"))
    assert set(left["rewritten"].names) == {"gate_proj", "up_proj", "down_proj"}
    assert any(name.endswith("q_b_proj") for name in found.names)
    adapted = adapt(make("deepseek_v3"), AdapterSpec(rank=4))
    assert not adapted.peft_config["default"].target_parameters, "no adapter on the experts by surprise"


def test_a_kernel_that_reads_a_weight_keeps_its_linear_without_adapter():
    found, left = targets_of(make("mamba2"))
    assert left["past"].names == ("out_proj",)
    assert {name.rpartition(".")[2] for name in found.names} == {"in_proj"}


@pytest.mark.parametrize("family", KINDS)
def test_a_model_without_weights_tells_the_same(family):
    """As `plan` draws it: also where a class has to be tried to know whether it is a linear map."""
    real = make(family)
    with torch.device("meta"):
        drawn = type(real)(real.config)
    assert targets_of(drawn)[0] == targets_of(real)[0]


def make_zamba2() -> torch.nn.Module:
    """With one block in two layers; its weights are tied when it is loaded, as in the real one."""
    config = CONFIG_MAPPING["zamba2"](
        **{name: value for name, value in TEXT.items() if name != "head_dim"} | {"num_hidden_layers": 4},
        layers_block_type=["linear_attention", "hybrid"] * 2,
        mamba_d_state=8,
        mamba_headdim=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        num_mem_blocks=1,
        chunk_size=8,
        adapter_rank=4,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def test_what_layers_share_gets_no_adapter_and_is_not_merged():
    """Merged, the corrections of both layers were added to the one weight."""
    model = make_zamba2()
    one, other = (model.model.layers[i].shared_transformer.feed_forward.gate_up_proj for i in (1, 3))
    assert one.weight is other.weight
    found, left = targets_of(model)
    assert {"q_proj", "gate_up_proj", "down_proj"} <= set(left["shared"].names)
    assert found.names and not any("shared_transformer" in name for name in found.names)
    adapted = adapt(make_zamba2(), AdapterSpec(rank=2))
    assert merge(adapted) is adapted.get_base_model()
    with pytest.raises(StudioError) as refused:
        merge(adapt(make_zamba2(), AdapterSpec(rank=2, target_modules="gate_up_proj")))
    assert refused.value.why.values["names"] == "gate_up_proj"


def test_a_model_that_sees_is_adapted_in_its_language_model_alone():
    model = make_gemma3()
    assert set(list_outside(model)) == {"model.vision_tower", "model.multi_modal_projector"}
    assert find_language_model(model) is model.model.language_model
    for targets in ("all-linear", "q_proj,v_proj"):
        adapted = adapt(make_gemma3(), AdapterSpec(rank=4, target_modules=targets))
        names = [name for name, p in adapted.named_parameters() if p.requires_grad]
        assert names and all(".language_model." in name for name in names), targets
    assert [one.id for one in note_parts(model, AdapterSpec())] == ["run.towers"]


def test_full_training_leaves_the_tower_alone():
    model = adapt(make_gemma3(), AdapterSpec(method="full"))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    towers = {n for n, _ in model.named_parameters() if "vision_tower" in n or "multi_modal_projector" in n}
    assert frozen == towers and towers
