"""The engine's losses are those of the plainest possible transformers loop."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.data.prepare import prepare
from studio.engine.batches import StepOrder
from studio.engine.optimizer import learning_rate


def plain_losses(recipe, steps: int, adapt=lambda model: model) -> list[float]:
    """Return the losses of a bare loop: one row at a time, labels through model.forward, torch's AdamW."""
    model = adapt(AutoModelForCausalLM.from_pretrained(recipe.model.source, dtype=torch.float32)).train()
    tokenizer = AutoTokenizer.from_pretrained(recipe.model.source)
    data = prepare(recipe.data, recipe.method, tokenizer, seed=recipe.seed)
    spec = recipe.optim
    order = StepOrder(len(data.train), spec.micro_batch * spec.accumulation, recipe.seed)
    total = max(1, round(spec.epochs * order.steps_per_epoch))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": spec.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        eps=spec.epsilon,
    )
    losses = []
    for step in range(steps):
        rows = [data.train[i] for i in order.indices(step)]
        labels = [
            torch.where(torch.tensor(row.trained), torch.tensor(row.token_ids).long(), -100) for row in rows
        ]
        tokens = sum(int((label[1:] != -100).sum()) for label in labels)
        optimizer.zero_grad()
        total_loss = 0.0
        for row, label in zip(rows, labels, strict=True):
            ids = torch.tensor(row.token_ids).long()[None]
            loss = model(input_ids=ids, labels=label[None], num_items_in_batch=tokens).loss
            loss.backward()
            total_loss += float(loss)
        torch.nn.utils.clip_grad_norm_(trained, spec.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step, total)
        optimizer.step()
        losses.append(total_loss)
    return losses


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3", "phi3"])
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


def test_packing_keeps_documents_apart(ran):
    """Packed, one row holds several documents; the loss is the same as apart, since none sees another."""
    apart = ran({"optim.micro_batch": 24, "optim.accumulation": 1, "optim.epochs": 1})
    packed = ran({"optim.micro_batch": 24, "optim.accumulation": 1, "optim.epochs": 1, "data.packing": True})
    assert packed.losses[0] == pytest.approx(apart.losses[0], abs=1e-5)
