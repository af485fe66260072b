"""What is told of a family's layers without its weights is what transformers builds."""

from __future__ import annotations

import pytest

from studio.models.decoder.structure import (
    GROUPS,
    HEAD_NORM_FORMS,
    LINEARS,
    PLACEMENTS,
    TAIL_STEP,
    TRAITS,
    caps_scores,
    find_mixers,
    find_placement,
    find_strange,
    group_linears,
    is_target,
    list_windowed,
    round_tail,
    shape_layer,
    split_mixers,
)

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module", params=sorted(TRAITS))
def built(request):
    """(model_type, its config as a dict, the modules of transformers without memory)."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(request.param, **SMALL)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return request.param, config.to_dict(), model


def test_a_familys_layers_are_those_of_transformers(built):
    family, config, model = built
    layer = model.get_decoder().layers[0]
    weights = {
        name.removesuffix(".weight"): tuple(weight.shape)
        for name, weight in layer.named_parameters()
        if name.endswith(".weight")
    }
    assert shape_layer(TRAITS[family], config) == weights


def test_a_familys_embeddings_are_tied_as_in_transformers(built):
    import transformers

    family, _, _ = built
    assert TRAITS[family].tied == transformers.AutoConfig.for_model(family).tie_word_embeddings


def test_a_familys_scores_are_capped_as_in_transformers(built):
    import transformers

    family, config, _ = built
    usual = transformers.AutoConfig.for_model(family)
    assert TRAITS[family].scores_capped == bool(getattr(usual, "attn_logit_softcapping", None))
    assert caps_scores(family, config) == caps_scores(family, {})


def test_a_familys_windows_are_those_of_transformers_where_its_config_does_not_say(built):
    family, config, _ = built
    kinds = config.pop("layer_types", None)
    if not TRAITS[family].window_every:
        return
    config.pop("sliding_window_pattern", None)
    config.pop("_sliding_window_pattern", None)
    assert list_windowed(family, config, 12) == tuple(kind == "sliding_attention" for kind in kinds)


def test_every_group_is_found_in_each_of_its_forms():
    linears = dict.fromkeys(LINEARS, (8, 4))
    for form in (0, -1):
        names = [name for forms in GROUPS.values() for name in forms[form]]
        groups = group_linears({name: linears[name] for name in names}, 16, "all-linear")
        assert set(groups) == set(GROUPS)
        assert groups["qkv"].outputs == 8 * len(GROUPS["qkv"][form])
        assert groups["qkv"].tail == round_tail(16 * len(GROUPS["qkv"][form])) == TAIL_STEP
    assert group_linears({"self_attn.o_proj": (8, 4)}) is None, "a group is missing"
    assert group_linears({name: linears[name] for name in names} | {"mlp.router": (8, 4)}) is None


def test_what_the_decoder_does_not_know_is_named():
    for place in PLACEMENTS:
        norms = dict.fromkeys(place.values(), 64)
        assert find_placement(norms) == place
        for names in HEAD_NORM_FORMS:
            assert find_strange(LINEARS, norms | dict.fromkeys(names, 8), 8, 4, 2) == []
            joint = dict(zip(names, (32, 16), strict=True))
            assert find_strange(LINEARS, norms | joint, 8, 4, 2) == [], "over all heads at once"
            half = dict(zip(names, (32, 8), strict=True))
            assert find_strange({*LINEARS, "mlp.router"}, norms | half, 8, 4, 2) == ["mlp.router", *names]
    some = {"input_layernorm": 64, "post_feedforward_layernorm": 64}
    assert find_placement(some) == {} and find_strange(LINEARS, some, 8, 4, 2) == sorted(some)


def test_targets_are_read_as_peft_reads_them():
    assert is_target("self_attn.q_proj", "q_proj, v_proj") and is_target("mlp.down_proj", "all-linear")
    assert not is_target("self_attn.q_proj", "k_proj") and not is_target("self_attn.qq_proj", "q_proj")


def test_layers_with_mixers_of_the_models_own_are_known_by_their_other_parts():
    mlp = {"mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}
    mixers = {"linear_attn.out_proj": (64, 64), "self_attn.q_proj": (128, 64), "self_attn.o_proj": (64, 64)}
    norms = dict.fromkeys([*PLACEMENTS[0].values(), "linear_attn.norm", "self_attn.q_norm"], 64)

    def find(linears, norms):
        return find_mixers(linears, norms, find_strange(linears, norms, 16, 4, 2))

    heads = {"self_attn.q_norm": 16, "self_attn.k_norm": 16}
    assert find(mlp | mixers, norms | heads) == ("linear_attn", "self_attn")
    ours = mlp | {name: (8, 8) for name in GROUPS["qkv"][0] + GROUPS["output"][0]}
    around = dict.fromkeys(PLACEMENTS[0].values(), 64)
    assert find(ours, around | heads) == (), "attention that is ours is none"
    assert find(ours, around | heads | {"self_attn.q_norm": 32}) == ("self_attn",), "heads of another width"
    assert find(ours, around | {"self_attn.gains": 4}) == ("self_attn",), "a vector of its own"
    assert find(ours, around | {"self_attn.sinks": 4}) == (), "sinks are ours, too"
    assert find(mixers, norms) == (), "no MLP"
    assert find(mlp | mixers, {"some_norm": 64}) == (), "norms elsewhere"
    assert find(mlp | mixers | {"some_gate": (8, 8)}, norms) == (), "a linear of the layer's own"
    found, by_mixer = split_mixers(mlp | mixers)
    assert found == mlp
    assert {name: set(part) for name, part in by_mixer.items()} == {
        "linear_attn": {"linear_attn.out_proj"}, "self_attn": {"self_attn.q_proj", "self_attn.o_proj"},
    }  # fmt: skip
