"""Attached adapters: what autocast casts gives the same numbers as what peft casts, with less kept."""

from __future__ import annotations

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForCausalLM

from studio.core.recipe import AdapterSpec
from studio.models.adapt import adapt, cast_by_autocast, cast_weights


def test_casting_by_autocast_gives_the_same_and_keeps_less(tiny_models):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_models("llama"), dtype=torch.bfloat16)
    model = adapt(base, AdapterSpec())
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start: the adapter would not be heard
            torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.arange(2, 34).reshape(2, 16)

    def run(active: bool) -> tuple[torch.Tensor, int]:
        model.zero_grad()
        kept = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            kept[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with (
            cast_by_autocast(model, active),
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
        ):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return torch.cat([loss.detach().reshape(1), *gradients]), sum(kept.values())

    (stock, stock_bytes), (ours, our_bytes) = run(False), run(True)
    assert ours.shape == stock.shape and torch.allclose(ours, stock, rtol=1e-2, atol=1e-4)
    assert our_bytes < 0.95 * stock_bytes
    model(input_ids=tokens)  # outside the block an input of 16 bits is widened again


def test_dora_keeps_the_width_that_it_computes_in(tiny_models):
    model = adapt(AutoModelForCausalLM.from_pretrained(tiny_models("llama")), AdapterSpec(dora=True))
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    with cast_by_autocast(model, True):
        assert layers and all(layer.cast_input_dtype_enabled for layer in layers)


def test_cast_weights_compute_what_the_same_weights_from_disk_do(make_tiny_model, tmp_path):
    shape = {"hidden_size": 256, "head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
    folder = make_tiny_model(tmp_path / "m", "llama", tie_word_embeddings=True, **shape)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cast_weights(model, torch.bfloat16)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokens = torch.arange(2, 130)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens).logits, again(input_ids=tokens).logits)
        assert not torch.equal(
            model.to(torch.bfloat16)(input_ids=tokens).logits, again(input_ids=tokens).logits
        )
