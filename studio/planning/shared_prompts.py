"""Whether the answers of a row share their prompt in training, so that it is computed once: what is spared, or why not.

A pair has P tokens of a prompt twice, and C of each answer: 2 (P + C) tokens, of which P + 2 C + 1 are needed.
"""

from __future__ import annotations

import dataclasses

from studio.core.facts import BackendPlan, Choice, ModelFacts
from studio.core.i18n import text
from studio.core.recipe import Recipe, change_recipe
from studio.core.row_lengths import RowLengths
from studio.planning.decoder_shape import DecoderShape, count_sequences, list_mixers
from studio.planning.memory_estimate import is_small

LEAST_SPARED = 0.1
"""Of a step's tokens: attention's rows are written out and gathered again, 2 % of a layer's time where it is 4,096
wide and an eighth where it is 1,024 (bytes over operations; not measured on a card yet)."""


def limit_length(recipe: Recipe, rows: RowLengths | None) -> Recipe:
    """Return `recipe` with sequences no longer than those of the longest of `rows`."""
    if rows is None:
        return recipe
    most = -(-rows.longest_tokens // count_sequences(recipe))
    return change_recipe(recipe, {"data.max_length": min(most, recipe.data.max_length)})


def share_lengths(plan: BackendPlan, rows: RowLengths | None) -> RowLengths | None:
    """Return how long rows are as `plan` has them computed."""
    if rows is None or not plan.shared_prompts.value:
        return rows
    return dataclasses.replace(
        rows, longest_tokens=rows.longest_shared_tokens, mean_tokens=rows.mean_shared_tokens
    )


def choose_shared_prompts(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    shape: DecoderShape | None,
    rows: RowLengths | None,
) -> Choice:
    """Return which share of a step's tokens is spared, 0.0 where prompts are not shared; `shape`: of the decoder."""

    if count_sequences(recipe) == 1:
        return _part("none")
    if shape is None:
        return _part("stock")
    if mixers := list_mixers(model):
        return _part("mixers", parts=", ".join(mixers))
    if rows is None or not rows.mean_shared_tokens:
        return _part("unknown")
    spared = 1 - rows.mean_shared_tokens / rows.mean_tokens
    values = {"share": round(100 * spared)}
    if spared < LEAST_SPARED:
        return _part("little", **values)
    step_tokens = round(recipe.optim.batch_size * rows.mean_tokens)
    recordable = str(plan.device.value).startswith("cuda") and not shape.composed_attention
    if recordable and is_small(6 * shape.weights_a_token, step_tokens):
        return _part("recorded")
    return Choice(value=round(spared, 4), reason=text("plan.shared_prompts.on", **values))


def part_prompts(plan: BackendPlan) -> Choice:
    """Return what is left of the choice in `plan` where the model's own code trains after all."""
    return _part("stock") if plan.shared_prompts.value else plan.shared_prompts


def _part(id: str, **values: object) -> Choice:
    return Choice(value=0.0, reason=text(f"plan.shared_prompts.{id}", **values))
