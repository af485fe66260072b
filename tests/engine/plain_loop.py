"""The plainest possible training loop with transformers and torch, which the engine's losses are held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.recipe import Recipe
from studio.data.prepare import PreparedData, prepare
from studio.data.sequence_packing import Example
from studio.engine.batches import StepOrder
from studio.engine.learning_rate import learning_rate


def rows_a_step(recipe: Recipe) -> int:
    """Return how many rows the recipe has in one step of the optimizer."""
    return recipe.optim.batch_size


def prepare_rows(recipe: Recipe, cache: Path | None = None) -> PreparedData:
    """Return the recipe's examples; `cache` keeps converted data sets."""
    tokenizer = AutoTokenizer.from_pretrained(recipe.model.source)
    return prepare(recipe.data, recipe.objective, tokenizer, seed=recipe.seed, cache=cache)


def plain_losses(
    recipe: Recipe,
    steps: int,
    adapt: Callable[[Any], Any] = lambda model: model,
    data: PreparedData | None = None,
    **settings: Any,
) -> list[float]:
    """Return the losses of a bare loop: one row at a time, labels through model.forward, torch's AdamW.

    `settings` are from_pretrained's, `data` the recipe's prepared rows where they are known.
    """
    model = AutoModelForCausalLM.from_pretrained(recipe.model.source, dtype=torch.float32, **settings)
    model = adapt(model).train()
    data = data or prepare_rows(recipe)
    spec = recipe.optim
    order = StepOrder(len(data.train), rows_a_step(recipe), recipe.seed)
    total = spec.max_steps or max(1, round(spec.epochs * order.steps_per_epoch))
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
        tokens = sum(count_labels(row) for row in rows)
        optimizer.zero_grad()
        total_loss = 0.0
        for row in rows:
            ids, labels = make_labels(row)
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=tokens).loss
            loss.backward()
            total_loss += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, spec.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(spec, step, total)
        optimizer.step()
        losses.append(total_loss)
    return losses


@torch.no_grad()
def held_out_loss(model: Any, rows: Sequence[Example]) -> float:
    """Return the mean loss of `model` over the trained tokens of `rows`."""
    tokens = sum(count_labels(row) for row in rows)
    total = 0.0
    for row in rows:
        ids, labels = make_labels(row)
        total += float(model(input_ids=ids, labels=labels, num_items_in_batch=tokens).loss)
    return total


def make_labels(row: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids and the labels of a row, each (1, S) int64."""
    ids = torch.tensor(row.token_ids).long()
    return ids[None], torch.where(torch.tensor(row.trained), ids, -100)[None]


def count_labels(row: Example) -> int:
    """Return how many tokens of a row are predicted."""
    return int((make_labels(row)[1][0, 1:] != -100).sum())
