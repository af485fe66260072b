"""Attached adapters: what autocast casts gives the same numbers as what peft casts, with less kept."""

from __future__ import annotations

import pytest
import torch
from peft import get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, MambaConfig, PreTrainedModel

from studio.core.errors import StudioError
from studio.core.recipe import AdapterSpec
from studio.models.adapt import (
    adapt,
    cast_by_autocast,
    cast_weights,
    load_adapter,
    load_trained_state,
    note_parts,
    round_stochastically,
    trained_state,
)


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
    cast_weights(model, torch.bfloat16, seed=0)
    model.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    tokens = torch.arange(2, 130)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens).logits, again(input_ids=tokens).logits)
        assert not torch.equal(
            model.to(torch.bfloat16)(input_ids=tokens).logits, again(input_ids=tokens).logits
        )


def test_rounding_to_bf16_keeps_small_corrections_on_average():
    """To the nearest, a correction of a thousandth of its weight is lost whole."""
    base = (0.05 * torch.randn(400_000, generator=torch.Generator().manual_seed(1))).bfloat16().float()
    tuned = base * 1.001
    rounded = round_stochastically(tuned, torch.Generator().manual_seed(0)).float()
    kept = ((rounded - base) * base.sign()).sum() / (tuned - base).abs().sum()
    assert abs(kept.item() - 1) < 0.03 and torch.equal(tuned.bfloat16().float(), base)
    assert ((rounded - tuned).abs() <= tuned.abs() / 128).all(), "one of the two neighbours"
    assert torch.equal(round_stochastically(base, torch.Generator()).float(), base), "what fits stays"
    odd = torch.tensor([float("inf"), float("-inf"), 0.0, float("nan")])
    again = round_stochastically(odd, torch.Generator())
    assert torch.equal(again[:3].float(), odd[:3]) and again[3].isnan()


def test_a_model_that_is_stored_in_bf16_keeps_its_small_corrections():
    layer = torch.nn.Linear(256, 256)
    base = layer.weight.data.bfloat16().float()
    layer.weight.data = base * 1.001
    cast_weights(layer, torch.bfloat16, seed=0)
    kept = ((layer.weight.float() - base) * base.sign()).sum() / (0.001 * base.abs().sum())
    assert layer.weight.dtype == layer.bias.dtype == torch.bfloat16 and abs(kept.item() - 1) < 0.1


@pytest.mark.parametrize(
    ("targets", "missed"),
    [
        ("q_proj, v_proj", ""),
        ("mlp.down_proj", ""),
        ("q_proj, query", "query"),
        ("query,value", "query,value"),
    ],
)
def test_a_target_that_names_no_layer_is_refused_also_beside_others(tiny_models, targets, missed):
    """peft trains the others and says nothing."""
    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"))
    if not missed:
        adapt(model, AdapterSpec(target_modules=targets))
        return
    with pytest.raises(StudioError) as refusal:
        adapt(model, AdapterSpec(target_modules=targets))
    assert refusal.value.what.values["targets"] == missed
    named = refusal.value.fix.values["names"]
    assert "q_proj" in named and "down_proj" in named and "embed_tokens" not in named


def test_an_adapter_is_read_back_where_peft_renames_what_it_wrote(tmp_path):
    """transformers' renaming of mlp.shared_expert. matches Laguna's mlp.shared_experts, too."""
    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 8,
    }
    config = CONFIG_MAPPING["laguna"](
        **shape,
        num_key_value_heads=2,
        intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config)
    written = adapt(base, AdapterSpec(rank=2, target_modules="q_proj,shared_experts.gate_proj"))
    for name, parameter in written.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    written.save_pretrained(tmp_path)
    expected = get_peft_model_state_dict(written, save_embedding_layers=False)
    read = load_adapter(AutoModelForCausalLM.from_config(config), tmp_path)
    found = get_peft_model_state_dict(read, save_embedding_layers=False)
    assert any("shared_experts" in name for name in expected)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


class Bare(PreTrainedModel):
    """A model without a linear map."""

    config_class = MambaConfig

    def __init__(self, config: MambaConfig) -> None:
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = torch.nn.LayerNorm(config.hidden_size)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embed


def test_who_asked_for_all_is_not_told_to_ask_for_all():
    with pytest.raises(StudioError) as refusal:
        adapt(Bare(MambaConfig(vocab_size=32, hidden_size=16)), AdapterSpec())
    assert refusal.value.fix.id == "adapter.targets.other"


def test_what_peft_does_not_take_is_left_out_of_all_and_said():
    """It refuses Mamba's out_proj, and a model in which all are asked for trains without it."""
    config = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, state_size=4)
    model = AutoModelForCausalLM.from_config(config)
    spec = AdapterSpec(rank=2, target_modules="all-linear")
    notes = note_parts(model, spec)
    left_out = [one.values["names"] for one in notes if one.id == "run.left_out"]
    assert "out_proj" in ", ".join(left_out)
    held = {name for name, part in adapt(model, spec).named_modules() if isinstance(part, BaseTunerLayer)}
    assert any(name.endswith("in_proj") for name in held) and not any(
        name.endswith("out_proj") for name in held
    )


def test_trained_tensors_of_another_model_are_refused_by_name_and_by_shape(tiny_models):
    model = AutoModelForCausalLM.from_pretrained(tiny_models("llama"))
    kept = {name: tensor.clone() for name, tensor in trained_state(model).items()}
    first = next(iter(kept))
    for wrong in (
        kept | {first: kept[first][:-1]},  # a base with another vocabulary has fewer rows
        {name: tensor for name, tensor in kept.items() if name != first},
        kept | {"other.weight": kept[first]},
    ):
        with pytest.raises(StudioError) as caught:
            load_trained_state(model, {name: tensor + 1 for name, tensor in wrong.items()})
        assert caught.value.what.id == "chat.place.misfit"
        assert caught.value.why.values["count"] == 1
        # Nothing of it was copied.
        assert all(torch.equal(tensor, kept[name]) for name, tensor in trained_state(model).items())
