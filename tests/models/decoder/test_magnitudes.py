"""DoRA in the decoder against peft's own: losses, every gradient, every base, every level of keeping."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from studio_kernels import rope
from studio_kernels.dispatch import bind
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.magnitudes import Magnitudes
from studio.models.decoder.parity_check import find_difference
from studio.models.decoder.rotary import INVERSE, NO_ROTARY, RotaryTables
from tests.models.decoder.double import in_double
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder import assert_equal, ours, stock, take

FAMILIES = ("llama", "qwen2", "gemma3", "phi3", "granite", "olmo2", "ministral3")
"""Plain, with biases, with norms after the branches, with fused linears, with scales, without norms before them, with
queries that grow with their position, whose projection's result is not had again of what is kept."""


@pytest.mark.parametrize("family", FAMILIES)
def test_in_float64_loss_and_gradients_are_pefts_to_the_last_digits(family):
    model = make_model(family, dtype=torch.float64, dora=True).double()
    with in_double():
        theirs = stock(model, 0.37)
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float64)
        assert isinstance(decoder, Decoder), decoder
        mine = ours(model, decoder, 0.37)
    assert sum("magnitude" in name for name in theirs[1]) >= 12
    assert mine[0] == pytest.approx(theirs[0], rel=1e-12)
    for name, gradient in theirs[1].items():
        assert (mine[1][name] - gradient).norm() < 1e-9 * gradient.norm(), name


@pytest.mark.parametrize("chunk", [0, 8])
def test_what_is_kept_does_not_change_the_numbers(chunk):
    model = make_model("gemma3", dora=True)
    decoder = take(model)
    theirs = stock(model, 1.0)
    for keeps in (("all",) * 3, ("input",) * 3, ("attention", "qkv", "input"))[bool(chunk) :]:
        layers = tuple(LayerPolicy(keep=keep, offload=keep != "all") for keep in keeps)
        for cached in (2, 0):
            portions = {"mlp_chunk_tokens": chunk, "head_rows": 7, "head_columns": 40}
            decoder.follow(MemoryPolicy(layers=layers, cached_layers=cached, **portions))
            assert_equal(ours(model, decoder, 1.0), theirs)


@pytest.mark.parametrize("kind", ["", NO_ROTARY])
def test_tables_turn_back_what_they_have_turned_by_whatever_factor(kind):
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=64,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
    )  # fmt: skip
    module = LlamaRotaryEmbedding(config)
    assert module.attention_scaling > 1.1
    tables = RotaryTables(module, {kind, INVERSE + kind}).up_to(9, torch.device("cpu"))
    positions = torch.arange(9, dtype=torch.int32)
    start = torch.randn(9, 96, generator=torch.Generator().manual_seed(0))
    turned = start.clone()
    rope.reference_forward(turned, *tables[kind], positions, 4, 1, 16)
    assert torch.equal(turned, start) == (kind == NO_ROTARY)
    rope.reference_forward(turned, *tables[INVERSE + kind], positions, 4, 1, 16)
    torch.testing.assert_close(turned, start)


def test_linears_without_adapters_keep_their_length():
    model = make_model("qwen2", targets=["q_proj", "v_proj", "down_proj"], dora=True)
    theirs = stock(model, 1.0)
    assert_equal(ours(model, take(model), 1.0), theirs)


def test_a_row_of_zeros_learns_no_length_and_does_no_harm():
    model = make_model("llama", dora=True)
    projection = model.base_model.model.model.layers[0].mlp.up_proj
    with torch.no_grad():
        projection.base_layer.weight[3] = 0.0
        projection.lora_B["default"].weight[3] = 0.0
        projection.lora_magnitude_vector["default"].weight[3] = 0.0
    loss, gradients = ours(model, take(model), 1.0)
    assert torch.isfinite(torch.tensor(loss)) and all(torch.isfinite(one).all() for one in gradients.values())


@pytest.mark.parametrize("cached", [0, 2])
def test_changed_adapters_are_taken_over(cached):
    model = make_model("llama", dora=True)
    decoder = take(model)
    decoder.follow(replace(decoder.policy, cached_layers=cached))
    ours(model, decoder, 1.0)
    with torch.no_grad():
        decoder.store.weights.mul_(1.3)
    decoder.note_change()
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))


def test_what_peft_computes_otherwise_is_left_to_it():
    """It drops the base's rows, too, where it drops the adapter's."""
    model = make_model("llama", dora=True, dropout=0.1)
    assert not isinstance(take_over(unwrap(model), bind({}), dtype=torch.float32), Decoder)


def test_the_probe_finds_no_difference_and_leaves_all_as_it_was():
    model = make_model("qwen2", dora=True)
    decoder = take(model)
    before = decoder.store.weights.clone()
    assert find_difference(unwrap(model), decoder, None) is None
    assert torch.equal(decoder.store.weights, before)


@pytest.mark.parametrize("fault", ["length", "gradient"])
def test_the_probe_finds_wrong_magnitudes(fault, monkeypatch):
    model = make_model("llama", dora=True)
    decoder = take(model)
    if fault == "length":
        for layer in decoder.layers:
            layer.groups[1].magnitudes.lengths.data = layer.groups[1].magnitudes.lengths.roll(1)
    else:
        right = Magnitudes.add_gradients
        monkeypatch.setattr(
            Magnitudes, "add_gradients", lambda self, dy, x, y, *rest: right(self, dy, x, y.roll(1, 1), *rest)
        )
    assert find_difference(unwrap(model), decoder, None) is not None
