"""Layers with experts against the model's own forward and autograd: losses, every gradient, every level of keeping."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from studio_kernels.dispatch import bind

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models.adapt import load_adapter, unwrap
from studio.models.decoder.blocks.gated_mlp import GatedMLP
from studio.models.decoder.blocks.routed_mlp import RoutedMLP
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.fp32_reference import run_finer, run_module
from studio.models.decoder.parity_check import find_difference
from tests.each_time import some
from tests.models.decoder.double import in_double
from tests.models.decoder.routed_models import FAMILIES, FOREIGN, make_routed
from tests.models.decoder.test_decoder import assert_equal, ours, stock, take


@pytest.mark.parametrize(
    "family", some([*FAMILIES, *FOREIGN], "qwen3_moe", "gpt_oss", "deepseek_v3", "gemma4_moe")
)
def test_in_float64_loss_and_gradients_are_the_stock_models_to_the_last_digits(family):
    model = make_routed(family, dtype=torch.float64)
    with in_double():
        theirs = stock(model, 0.37)
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float64)
        assert isinstance(decoder, Decoder), decoder
        mine = ours(model, decoder, 0.37)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-12)
    assert mine[1].keys() == theirs[1].keys()
    assert any(".experts" in name for name in mine[1]) == (family != "nemotron_3"), (
        "experts without a gate get none"
    )
    for name, gradient in theirs[1].items():
        assert gradient.norm() > 0 and (mine[1][name] - gradient).norm() < 1e-9 * gradient.norm(), name


@pytest.mark.parametrize("packed", some([False, True], True), ids=["fp32", "nf4"])
@pytest.mark.parametrize("family", some([*FAMILIES, *FOREIGN], "qwen3_moe", "gpt_oss"))
def test_what_is_kept_does_not_change_the_numbers(family, packed):
    model = make_routed(family, packed=packed)
    decoder = take(model)
    theirs = stock(model, 1.0)
    for keeps in (("all",) * 3, ("input",) * 3, ("attention", "qkv", "input")):
        layers = tuple(
            LayerPolicy(keep=keep, offload=offload)
            for keep, offload in zip(keeps, (True, False, True), strict=True)
        )
        decoder.follow(MemoryPolicy(layers=layers))
        assert_equal(ours(model, decoder, 1.0), theirs)


def test_experts_may_stay_frozen():
    model = make_routed("qwen3_moe", targets="q_proj,k_proj,v_proj,o_proj")
    theirs = stock(model, 1.0)
    assert not any("experts" in name for name in theirs[1])
    assert_equal(ours(model, take(model), 1.0), theirs)


def test_layers_may_differ():
    decoder = take(make_routed("qwen3_moe"))
    assert [type(layer.mlp) for layer in decoder.layers] == [GatedMLP, RoutedMLP, RoutedMLP]


@pytest.mark.parametrize("packed", some([False, True], True), ids=["fp32", "nf4"])
@pytest.mark.parametrize("family", some([*FAMILIES, *FOREIGN], "qwen3_moe", "gpt_oss"))
def test_the_probe_finds_no_difference_and_leaves_all_as_it_was(family, packed):
    model = make_routed(family, packed=packed)
    decoder = take(model)
    weights, random = decoder.store.weights.clone(), torch.get_rng_state()
    assert find_difference(unwrap(model), decoder, None) is None
    assert torch.equal(decoder.store.weights, weights) and torch.equal(torch.get_rng_state(), random)
    assert_equal(ours(model, decoder, 1.0), stock(model, 1.0))


@pytest.mark.parametrize("packed", some([False, True], False), ids=["16 bits", "nf4"])
def test_an_adapter_that_the_decoder_trained_is_read_by_plain_peft_and_merges(tmp_path, packed):
    model = make_routed("qwen3_moe", packed=packed)
    decoder = take(model)
    decoder.store.weights.mul_(1.5)  # as a step would
    decoder.note_change()
    decoder.release()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        model.save_pretrained(tmp_path)
        again = load_adapter(make_routed("qwen3_moe", packed=packed).unload(), tmp_path).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, expected)
        if not packed:
            plain = PeftModel.from_pretrained(make_routed("qwen3_moe").unload(), tmp_path).eval()
            torch.testing.assert_close(plain(input_ids=ids).logits, expected)
            torch.testing.assert_close(
                plain.merge_and_unload()(input_ids=ids).logits, expected, rtol=1e-3, atol=1e-4
            )


def test_the_truth_in_fp64_is_there_for_experts_too():
    model = make_routed("qwen3_moe")
    layer, x = (
        unwrap(model).model.layers[1],
        torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(1)),
    )
    tables = unwrap(model).model.rotary_emb(x, torch.arange(9)[None])
    given, parameters = {"position_embeddings": tables}, [p for p in layer.parameters() if p.requires_grad]
    plain = run_module(layer, x, x, given, parameters)
    for one, finer in zip(plain, run_finer(layer, torch.float32, x, x, given, parameters), strict=True):
        torch.testing.assert_close(one.double(), finer.double(), rtol=1e-3, atol=1e-4)
