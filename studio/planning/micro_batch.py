"""Decides how many rows of a step go at once: as many as memory takes without computing much twice.

Fewer micro-steps are faster: each reads all weights once more and leaves the card partly idle at its start and end.
Larger ones keep more for the backward pass, so that layers must be computed again. What is learned is the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from studio.core.facts import BackendPlan, Choice, ModelFacts
from studio.core.i18n import Text, text
from studio.core.memory_policy import Calibration
from studio.core.recipe import FOUR_BITS, Recipe, change_recipe
from studio.core.row_lengths import RowLengths
from studio.planning.decoder_shape import DecoderShape, longest
from studio.planning.layer_flops import head_work, measure_work, micro_step_work, slowdown
from studio.planning.memory_estimate import count_rows, predict
from studio.planning.memory_planner import MemoryChoice, choose_policy

CPU_TOKENS = 512
"""A processor takes rows together up to so many tokens: of smollm2, eight rows of 128 or 256 tokens took 1.15 to 1.3
times as long at once as in parts of 512, one by one up to 1.2 times; rows of 48 one by one 1.5 to 1.7 times (two cores,
fp32, adapters)."""
CPU_ROOM_TOKENS = 4096
"""For so many tokens at most its rows are planned: memory is reckoned with rows as long as they may be."""
MOST_TOKENS = 65_536
"""A card gains less than 1 % from larger micro-steps."""
CARD_OWN_TOKENS = 4096
"""What a micro-batch of the model's own code takes beside its tokens, in tokens (engine/train_step.py, OWN_TOKENS)."""
RECOMPUTED = 1.33
"""Time of a step whose activations are computed again, as a multiple of one that keeps them."""


def choose_decoder_rows(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    shape: DecoderShape,
    budget_bytes: int,
    ram_bytes: int,
    *,
    calibration: Calibration | None,
    rows: RowLengths | None = None,
) -> tuple[Choice, MemoryChoice]:
    """Return the most rows (as long as they may be) of a micro-step of the decoder, and what is then kept.

    `rows`: how long they really are, where that is known; else all count as long as they may be.
    """
    found = []
    for count in list_counts(recipe, longest(model, recipe)):
        one = change_recipe(recipe, {"optim.micro_batch": count})
        choice = choose_policy(plan, model, one, budget_bytes, ram_bytes, calibration=calibration)
        found.append((count, choice))
        if choice.fits and not slowdown(shape, choice.policy, longest(model, one)):
            break  # smaller ones are slower, and keep no more
    fitting = [one for one in found if one[1].fits] or found[-1:]
    tokens, most = _count_step_tokens(model, recipe, rows), longest(model, recipe)
    works = [measure_work(shape, window, most) for window in shape.windows]
    work = tokens * (sum(one.forward + one.backward for one in works) + head_work(shape))
    own = micro_step_work(shape, opened=plan.quantization.value in FOUR_BITS or shape.magnitudes)

    def take(one: tuple[int, MemoryChoice]) -> float:
        steps = count_micro_steps(tokens, one[0] * most)
        return work * (1 + slowdown(shape, one[1].policy, most)) + steps * own

    count, choice = min(fitting, key=take)
    steps = count_micro_steps(tokens, count * most)
    return Choice(value=count, reason=explain(recipe, count, steps, stream=True)), choice


def choose_own_rows(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    budget_bytes: int,
    *,
    calibration: Calibration | None,
    may_recompute: bool,
) -> tuple[int, bool]:
    """Return the most rows of a micro-batch of the model's own code, and whether activations are computed again.

    `budget_bytes`: 0 where it is not known.
    """
    counts = list(list_counts(recipe, longest(model, recipe)))
    if plan.device.value == "cpu":
        most = max(1, CPU_ROOM_TOKENS // longest(model, recipe))
        counts = [count for count in counts if count <= most] or [min(counts)]
    ways = [(count, again) for count in counts for again in ((False, True) if may_recompute else (False,))]

    def needs(way: tuple[int, bool]) -> int:
        one = change_recipe(recipe, {"optim.micro_batch": way[0]})
        again = dataclasses.replace(plan.checkpointing, value=way[1] or plan.checkpointing.value)
        return sum(
            predict(
                dataclasses.replace(plan, checkpointing=again), model, one, calibration=calibration
            ).values()
        )

    def take(way: tuple[int, bool]) -> float:
        count, again = way
        tokens = recipe.optim.batch_size * longest(model, recipe)
        own = CARD_OWN_TOKENS * math.ceil(recipe.optim.batch_size / count)
        return tokens * (RECOMPUTED if again else 1.0) + own

    fitting = [way for way in ways if not budget_bytes or needs(way) <= budget_bytes]
    return min(fitting, key=take) if fitting else (min(counts), may_recompute)


def list_counts(recipe: Recipe, longest_tokens: int) -> Iterator[int]:
    """Yield how many rows could go at once: all that are allowed, up to MOST_TOKENS, and half as many each time."""
    count = max(1, min(count_rows(recipe), MOST_TOKENS // longest_tokens))
    while True:
        yield count
        if count == 1:
            return
        count = -(-count // 2)


def count_micro_steps(tokens: int, most_tokens: int) -> int:
    """Return how many micro-steps of at most `most_tokens` a step of so many tokens takes, rows being whole."""
    return max(1, math.ceil(tokens / most_tokens))


def explain(recipe: Recipe, count: int, steps: int, *, stream: bool, cpu: bool = False) -> Text:
    """Return in words how the rows of a step go."""
    values = {"batch": recipe.optim.batch_size, "count": count, "steps": steps}
    if recipe.optim.batch_size == 1:
        return text("plan.micro_batch.one")
    if recipe.optim.micro_batch and count == count_rows(recipe) < recipe.optim.batch_size:
        return text("plan.micro_batch.wanted", **values)
    if cpu:
        return text("plan.micro_batch.cpu", batch=recipe.optim.batch_size, tokens=CPU_TOKENS)
    if count == recipe.optim.batch_size or (stream and steps == 1):
        return text("plan.micro_batch.all", **values)
    return text("plan.micro_batch.some", **values)


def _count_step_tokens(model: ModelFacts, recipe: Recipe, rows: RowLengths | None) -> int:
    mean = rows.mean_tokens if rows else longest(model, recipe)
    return max(1, round(recipe.optim.batch_size * mean))
