"""How keys are turned is found by trying, in each dtype, and an attention that does something else is refused."""

from __future__ import annotations

import pytest
import torch

from studio.models.adapt import unwrap
from studio.models.decoder.rotary import NO_ROTARY, to_halves
from studio.models.decoder.spec import read_decoder
from tests.models.decoder.models import FAMILIES, make_model

HALVES, PAIRS, LAST, STILL = "halves", "pairs", "halves, then norm", "still"
FOUND = dict.fromkeys(FAMILIES, [HALVES] * 3) | {
    "smollm3": [HALVES, STILL, HALVES],
    "exaone4": [HALVES, STILL, HALVES],
    "hunyuan": [LAST] * 3,
    "gemma4_e2b": [HALVES] * 6,
    "gemma3n": [HALVES] * 6,
    **dict.fromkeys(("glm", "glm4", "ernie4_5", "helium", "latent", "latent_v2"), [PAIRS] * 3),
}


def name(layer) -> str:
    if layer.rotary == NO_ROTARY:
        return STILL
    return LAST if layer.turning.norm_last else PAIRS if layer.turning.interleaved else HALVES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_turning_of_every_familys_keys_is_found(family, dtype):
    model = make_model(family, dtype=dtype, dropout=0.5).train()
    for key, parameter in model.named_parameters():
        if "norm" in key:  # as fresh ones are: equal weights give the same before the rotation and after it
            parameter.data.fill_(1.0)
    state = torch.get_rng_state()
    spec = read_decoder(unwrap(model))
    assert [name(layer) for layer in spec.layers] == FOUND[family] and not spec.mixers
    assert torch.equal(torch.get_rng_state(), state) and all(module.training for module in model.modules())


def test_keys_that_are_turned_otherwise_are_left_to_the_models_own_module():
    model = unwrap(make_model("llama"))
    attention = model.get_decoder().layers[1].self_attn
    attention.slow = True  # a plain value of its own: another kind of layer
    forward = attention.forward

    def turn_back(hidden_states, position_embeddings, past_key_values=None, **options):
        cos, sin = position_embeddings
        return forward(hidden_states, (cos, -sin), past_key_values=past_key_values, **options)

    attention.forward = turn_back
    found = read_decoder(model)
    assert [layer.mixer is not None for layer in found.layers] == [False, True, False]


def test_tables_of_neighbours_become_tables_of_halves():
    angles = torch.rand(5, 4)
    halves = torch.cat((angles, angles), -1)
    assert torch.equal(to_halves(halves), halves)
    assert torch.equal(to_halves(angles.repeat_interleave(2, -1)), halves)
    assert torch.equal(to_halves(angles), halves), "each once, as gpt-oss has them"
