"""The engine's losses are those of the plainest possible transformers loop."""

from __future__ import annotations

import pytest
import torch

from tests.each_time import some
from tests.engine.plain_loop import plain_losses


@pytest.mark.parametrize("family", some(["llama", "qwen3", "mistral", "gemma3", "phi3"], "llama"))
def test_full_fine_tuning_equals_the_plain_loop(ran, tiny_models, recipe, family):
    changes = {
        "model.source": str(tiny_models(family)),
        "adapter.method": "full",
        "optim.learning_rate": 1e-3,
    }
    result = ran(changes)
    assert result.record.state == "finished", result.record.diagnosis
    expected = plain_losses(result.folder.read_recipe(), steps=len(result.losses))
    assert result.losses == pytest.approx(expected, abs=1e-5)


def test_lora_equals_the_plain_peft_loop(ran):
    from peft import LoraConfig, get_peft_model

    def adapt(model):
        torch.manual_seed(42)
        config = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
        return get_peft_model(model, config)

    result = ran()
    expected = plain_losses(result.folder.read_recipe(), steps=len(result.losses), adapt=adapt)
    assert result.losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.computing
def test_packing_keeps_documents_apart(ran):
    """Packed, one row holds several documents; the loss is the same as apart, since none sees another."""
    apart = ran({"optim.batch_size": 24, "optim.epochs": 1})
    packed = ran({"optim.batch_size": 24, "optim.epochs": 1, "data.fill": True})
    assert packed.losses[0] == pytest.approx(apart.losses[0], abs=1e-5)
