"""Layers of several residual streams: what is read of them, what is refused, and what 4 bits leave as it is."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from studio_kernels.dispatch import bind

from studio.core.i18n import Text
from studio.models.adapt import unwrap
from studio.models.catalog import inspect_model
from studio.models.decoder.blocks import gate_cut
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from studio.models.decoder.structure import STREAM_MAPS
from studio.models.load import load_model
from tests.conftest import make_tokenizer
from tests.models.decoder.double import in_double
from tests.models.decoder.models import make_model


@pytest.mark.parametrize("quantile", [1.6, 0.0, -0.4])
def test_a_cut_gates_gradient_is_autograds(monkeypatch, quantile):
    """In portions of rows, and into the gate's own place."""
    monkeypatch.setattr(gate_cut, "CUT_ROWS", 3)
    generator = torch.Generator().manual_seed(0)
    gate, upstream = (torch.randn(7, 40, generator=generator, dtype=torch.float64) for _ in range(2))
    leaf = gate.clone().requires_grad_()
    spread, mean = torch.std_mean(leaf, 1, correction=0, keepdim=True)
    expected = torch.relu(leaf - (mean + quantile * spread))
    expected.backward(upstream)
    with in_double():
        assert torch.equal(gate_cut.cut_gate(gate, quantile), expected.detach())
        gate_cut.cut_gate_backward(upstream.clone(), gate, quantile, gate)
    assert (gate - leaf.grad).norm() < 1e-14 * leaf.grad.norm()


def test_a_cut_leaves_the_gate_as_it_was():
    gate = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    before = gate.clone()
    gate_cut.cut_gate(gate, 0.5)
    gate_cut.cut_gate_backward(torch.ones_like(gate), gate, 0.5, torch.empty_like(gate))
    assert torch.equal(gate, before)


def test_adapters_on_what_weighs_the_streams_are_left_to_the_models_own_code():
    model = make_model("gemma3n").unload()
    model.requires_grad_(False)
    targets = ["q_proj", "prediction_coefs"]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    found = take_over(unwrap(adapted), bind({}), dtype=torch.float32)
    assert isinstance(found, Text) and found.values["part"] == "altup"


def test_dropout_on_the_ends_is_left_to_the_models_own_code():
    found = take_over(unwrap(make_model("gemma3n", dropout=0.1)), bind({}), dtype=torch.float32)
    assert isinstance(found, Text) and "dropout" in found.values["part"]


def test_a_wrong_end_is_refused():
    """How streams are made and brought together, forward and backward."""
    model = make_model("gemma3n")
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
    assert isinstance(decoder, Decoder) and find_difference(unwrap(model), decoder, None) is None
    parts = decoder.ends.parts
    for changed in (
        type(parts)(parts.spread[::-1], parts.gather),
        type(parts)(parts.spread, parts.gather[::-1]),
    ):
        decoder.ends.parts = changed
        assert find_difference(unwrap(model), decoder, None).id == "model.decoder.mismatch"
    decoder.ends.parts = parts
    place = decoder.ends.trained.pop(id(parts.trained[0]))
    decoder.ends.trained[id(parts.trained[0])] = torch.zeros_like(place)
    assert find_difference(unwrap(model), decoder, None) is not None


def test_4_bits_leave_what_weighs_the_streams_and_the_decoder_takes_it(tmp_path):
    """transformers' own choice would have packed them, and in training mode the model reads them past their modules."""
    make_model("gemma3n", intermediate_size=128, dtype=torch.bfloat16).unload().save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    facts = inspect_model(str(tmp_path))
    model = load_model(facts, device="cpu", dtype="bf16", quantization="nf4", attention="sdpa").model
    for name, module in model.get_decoder().layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            plain = type(module) is torch.nn.Linear
            assert plain == name.endswith(STREAM_MAPS), name
    assert model(torch.arange(5)[None]).logits.isfinite().all()
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith((*STREAM_MAPS, "lm_head"))
    ]
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM"))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    decoder = take_over(unwrap(adapted), bind({}), dtype=torch.bfloat16)
    assert isinstance(decoder, Decoder)
    assert find_difference(unwrap(adapted), decoder, torch.bfloat16) is None
