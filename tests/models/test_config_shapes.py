"""What is inside a model is read from names and shapes: heads, windows and linears are those of its modules."""

import json

import pytest

from studio.models.catalog import inspect_model
from studio.models.config_shapes import read_shapes


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3", "phi3"])
def test_real_models_agree_with_transformers(tiny_models, family):
    import torch
    import transformers

    folder = tiny_models(family)
    facts = inspect_model(str(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    layer = model.get_decoder().layers[0]
    linears = {
        name: (part.out_features, part.in_features)
        for name, part in layer.named_modules()
        if isinstance(part, torch.nn.Linear)
    }
    assert facts.linears == linears
    assert facts.norms == {
        name: part.weight.numel() for name, part in layer.named_modules() if name.endswith("norm")
    }
    assert facts.linear_parameters == 2 * sum(outputs * inputs for outputs, inputs in linears.values())
    config = model.config
    assert (facts.mlp_width, facts.query_heads, facts.key_heads) == (64, 4, 2)
    assert facts.head_dim == layer.self_attn.head_dim
    assert facts.tied_embeddings == config.tie_word_embeddings
    shared = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert facts.tied_embeddings == shared


def test_a_config_with_names_of_its_own_is_understood():
    """Kosmos-2.5 and MPT: with 0 layers the speed of a run was a division by zero."""
    for names in (("layers", "embed_dim", "attention_heads"), ("n_layers", "d_model", "n_heads")):
        found = read_shapes("x", dict(zip(names, (3, 64, 4), strict=True)), {})
        assert (found["layers"], found["hidden_size"], found["query_heads"], found["head_dim"]) == (
            3,
            64,
            4,
            16,
        )


def config_of(**values):
    return {"hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2} | values


@pytest.mark.parametrize(
    "family, values, window, windowed",
    [
        ("mistral", {"sliding_window": 4096}, 4096, ()),
        ("mistral", {"sliding_window": None}, 0, ()),
        ("qwen2", {"sliding_window": 4096, "use_sliding_window": False}, 0, ()),
        ("gemma2", {"sliding_window": 16}, 16, (True, False, True, False)),
        ("gemma3_text", {"sliding_window": 16, "sliding_window_pattern": 3}, 16, (True, True, False, True)),
        (
            "gemma3_text",
            {"sliding_window": 16, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]},
            16,
            (False, False, False, True),
        ),
        ("llama", {}, 0, ()),
    ],
)
def test_windows(family, values, window, windowed):
    found = read_shapes(family, config_of(**values), {})
    assert (found["sliding_window"], found["windowed_layers"]) == (window, windowed)


def test_packed_weights_are_unpacked_by_what_the_config_says():
    config = config_of(num_key_value_heads=1, intermediate_size=32)
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (64, 1),
        "model.layers.0.self_attn.k_proj.weight": (32, 1),
        "model.layers.0.mlp.gate_proj.weight": (256, 1),
        "model.layers.0.mlp.strange.weight": (10, 1),
        "model.layers.0.input_layernorm.weight": (8,),
        "model.embed_tokens.weight": (16, 8),
        "lm_head.weight": (16, 8),
    }
    found = read_shapes("llama", config, shapes)
    assert found["linears"] == {
        "self_attn.q_proj": (8, 8),
        "self_attn.k_proj": (4, 8),
        "mlp.gate_proj": (32, 8),
    }
    assert found["linear_parameters"] == 64 + 32 + 256 + 10
    assert found["norms"] == {"input_layernorm": 8}
    assert found["tied_embeddings"] is False and found["head_dim"] == 4


def test_other_configs_leave_what_they_do_not_tell_at_nothing(tmp_path, tiny_models):
    found = read_shapes("strange", {"intermediate_size": [1, 2], "num_attention_heads": "many"}, {})
    assert not any(any(value) if isinstance(value, tuple) else value for value in found.values())
    assert json.loads(json.dumps(found)) is not None
    assert inspect_model("some/model").linears == {}


EXPERTS = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16},
    "mixtral": {"num_local_experts": 8, "sliding_window": None},
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},
}


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_counted_without_their_biases(tmp_path, family):
    import torch
    import transformers

    shape = {"vocab_size": 300, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 128}
    config = transformers.CONFIG_MAPPING[family](**shape, **heads, **EXPERTS[family], pad_token_id=1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    facts = inspect_model(str(tmp_path))
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name and p.dim() == 3)
    linears = sum(part.weight.numel() for part in model.model.modules() if isinstance(part, torch.nn.Linear))
    assert facts.expert_parameters == experts > facts.parameters / 2
    assert facts.linear_parameters == linears, "the routers are none"
