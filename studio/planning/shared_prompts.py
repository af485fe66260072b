"""Whether the answers of a row share their prompt in training, so that it is computed once: what is spared, or why not.

A pair has P tokens of a prompt twice, and C of each answer: 2 (P + C) tokens, of which P + 2 C + 1 are needed. Of G
answers to a prompt that go together G (P + C), of which P + G C + G - 1 are.
"""

from __future__ import annotations

import dataclasses

from studio.core.facts import BackendPlan, Choice, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import SAMPLING, Recipe, change_recipe
from studio.core.row_lengths import RowLengths
from studio.planning.decoder_shape import DecoderShape, count_sequences, list_mixers, read_decoder
from studio.planning.memory_estimate import count_rows, is_small
from studio.planning.speed_estimate import MEAN_SHARE, RowFigures

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
    if rows is None or not (plan.shared_prompts.value and rows.longest_shared_tokens):
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

    sampled = recipe.objective in SAMPLING
    if count_sequences(recipe) == 1 and not sampled:
        return _part("none")
    if shape is None:
        return _part("stock")
    if mixers := list_mixers(model):
        return _part("mixers", parts=", ".join(mixers))
    if rows is None or not (sampled or rows.mean_shared_tokens):
        return _part("unknown")
    spared = _spare_groups(recipe, rows) if sampled else 1 - rows.mean_shared_tokens / rows.mean_tokens
    values = {"share": round(100 * spared)}
    if spared < LEAST_SPARED:
        return _part("little", **values)
    # Which answers meet in a micro-step is only known when they are drawn: that is not recorded with shared prompts.
    recordable = sampled and str(plan.device.value).startswith("cuda") and shape.recordable
    if recordable and is_small(6 * shape.weights_a_token, round(count_rows(recipe) * rows.mean_tokens)):
        return _part("recorded")
    id = "plan.shared_prompts.group" if sampled else "plan.shared_prompts.on"
    return Choice(value=round(spared, 4), reason=text(id, **values))


def expect_shared(plan: BackendPlan, model: ModelFacts, recipe: Recipe, rows: RowFigures) -> BackendPlan:
    """Return `plan` with whether prompts are shared, as far as `rows` tell before a run has read them."""
    if plan.memory is None or not rows.mean_tokens:
        return plan
    answer = recipe.sampling.answer_tokens if recipe.objective in SAMPLING else 0
    spared = rows.repeated_tokens / rows.count
    lengths = RowLengths(
        longest_tokens=0,  # no length is planned by it
        mean_tokens=rows.mean_tokens + answer,
        mean_shared_tokens=rows.mean_tokens - spared if spared else 0.0,
    )
    shape = read_decoder(plan, model, recipe)
    return dataclasses.replace(
        plan, shared_prompts=choose_shared_prompts(plan, model, recipe, shape, lengths)
    )


def _spare_groups(recipe: Recipe, rows: RowLengths) -> float:
    """Return what is spared of answers to be drawn, of which `rows` have the longest: as they are on average."""
    spec = recipe.sampling
    prompt = max(1.0, rows.mean_tokens - spec.answer_tokens)
    together = min(spec.group_size, count_rows(recipe))
    return (together - 1) / together * (prompt - 1) / (prompt + MEAN_SHARE * spec.answer_tokens)


def tell_shared(plan: BackendPlan) -> tuple[Text, ...]:
    """Return whether prompts are shared, and why not, in words; nothing where no row or step has several answers."""
    reason = plan.shared_prompts.reason
    return () if reason.id == "plan.shared_prompts.none" else (reason,)


def part_prompts(plan: BackendPlan) -> Choice:
    """Return what is left of the choice in `plan` where the model's own code trains after all."""
    return _part("stock") if plan.shared_prompts.value else plan.shared_prompts


def _part(id: str, **values: object) -> Choice:
    return Choice(value=0.0, reason=text(f"plan.shared_prompts.{id}", **values))
