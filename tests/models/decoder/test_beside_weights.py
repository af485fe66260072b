"""Tables and norms that are trained in full beside an adapter: gradients, the probe, and the optimizer's parts."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dispatch import bind
from torch import nn

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from tests.models.decoder.double import in_double
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder import assert_equal, ours, stock, take

ENDS = ("embed_tokens", "lm_head")
NORMS = ("input_layernorm", "norm")


def make(family: str, modules: tuple[str, ...], tied: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    return make_model(family, dtype=dtype, modules=modules, tie_word_embeddings=tied)


@pytest.mark.parametrize(
    ("family", "modules", "tied"),
    [
        *((family, ENDS, tied) for family in ("llama", "gemma3", "granite") for tied in (False, True)),
        ("llama", ("embed_tokens",), False),
        ("llama", ("lm_head",), False),
        ("qwen3", (*ENDS, *NORMS), False),
        ("llama", NORMS, True),
    ],
)
def test_in_float64_gradients_are_the_stock_models_to_the_last_digits(family, modules, tied):
    model = make(family, modules, tied, torch.float64).double()
    with in_double():
        theirs = stock(model, 0.37)
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float64)
        assert isinstance(decoder, Decoder), decoder
        mine = ours(model, decoder, 0.37)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-12)
    assert mine[1].keys() == theirs[1].keys()
    assert any("lora" not in name for name in theirs[1])
    for name, gradient in theirs[1].items():
        assert (mine[1][name] - gradient).norm() < 1e-9 * gradient.norm(), name


def test_what_is_kept_does_not_change_the_numbers():
    model = make("llama", ENDS, False)
    decoder = take(model)
    layers = (LayerPolicy(keep="input", offload=True),) * 3
    decoder.follow(MemoryPolicy(layers=layers, mlp_chunk_tokens=0, head_rows=7, head_columns=40))
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))


@pytest.mark.parametrize(("modules", "tied"), [(ENDS, True), (ENDS, False), (NORMS, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_takes_what_is_right_and_finds_what_is_not(modules, tied, dtype):
    model = make("llama", modules, tied, dtype)
    decoder = take_over(unwrap(model), bind({}), dtype=dtype)
    autocast = None if dtype == torch.float32 else dtype
    before = decoder.store.weights.clone()
    assert find_difference(unwrap(model), decoder, autocast) is None
    assert torch.equal(decoder.store.weights, before)
    if modules is ENDS:
        decoder.embedding.scale = 1.5
        assert find_difference(unwrap(model), decoder, autocast).values["part"] == "embed_tokens.weight"


@pytest.mark.parametrize("modules", [ENDS, NORMS, (*ENDS, *NORMS)])
def test_the_optimizers_parts_hold_each_weight_once(modules):
    model = make("llama", modules, False)
    store = take(model).store
    parts = store.parts
    held = [store.weights[part] for part in parts]
    inside = {
        name: [
            i
            for i, part in enumerate(held)
            if part.data_ptr() <= p.data_ptr() < part.data_ptr() + part.nbytes
        ]
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    for name, places in inside.items():
        (place,) = places
        expected = 0 if "lora" in name else len(parts) - 1 if "norm" in name else 2 + ("head" in name)
        assert place == expected, name
    assert sum(len(part) for part in held) == len(store.weights)
