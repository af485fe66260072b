"""How long a run trains, in words, and what is to be done where that is long: found out before it starts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from studio.core.errors import Problem
from studio.core.events import Fix
from studio.core.facts import BackendPlan, DataFacts, Gpu, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe, change_recipe
from studio.planning.run_plan import choose_device
from studio.planning.speed_estimate import Duration, RowFigures, predict_duration, read_rows

LONG_S = 4 * 3600.0
"""A warning above: half a working day. Who starts a run expects its end the same day, and what is reckoned may be off
by two times."""
SHORT_S = 3600.0
"""What fewer rows or steps are proposed for: a first result within the hour."""
SHORTER_LENGTH = 512
LEAST_ROWS = 50
DAY_S, HOUR_S, MINUTE_S = 86_400, 3600, 60


def say_duration(seconds: float) -> Text:
    """Return a duration as one number with its unit, for what is only about right: `16 hours`."""
    if seconds < MINUTE_S:
        return text("duration.moment")
    for unit_s, name, most in ((MINUTE_S, "minutes", 100), (HOUR_S, "hours", 48)):
        if seconds < most * unit_s:
            return text(f"duration.{name}", count=_round(seconds / unit_s))
    return text("duration.days", count=f"{_round(seconds / DAY_S):,}")


def describe(found: Duration | None) -> Text:
    """Return how long the training takes and what that was reckoned from; None: it is not known yet."""
    if found is None:
        return text("plan.time.unknown")
    return text("plan.time", time=say_duration(found.seconds), reason=found.speed.reason)


def _round(count: float) -> int | float:
    """Return `count` with two digits, below 10 with one behind the point where it is not whole."""
    if count < 10:
        return round(count) if abs(count - round(count)) < 0.05 else round(count, 1)
    return round(count) if count < 100 else int(float(f"{count:.2g}"))


def check_duration(
    recipe: Recipe, machine: MachineFacts, model: ModelFacts, chosen: BackendPlan, data: DataFacts | None
) -> Iterator[Problem]:
    """Yield the warning of a run of more than LONG_S, with the ways out."""
    rows, gpu = read_rows(data), choose_device(machine, recipe)[1]
    found = predict_duration(chosen, machine, model, recipe, gpu, rows)
    if found is None or found.seconds <= LONG_S:
        return
    message = text(
        "check.long",
        time=say_duration(found.seconds),
        tokens=f"{int(float(f'{found.tokens:.2g}')):,}",
        speed=f"{int(float(f'{found.speed.tokens_per_s:.2g}')):,}",
        reason=found.speed.reason,
    )
    ways = tuple(_list_ways(found, recipe, machine, model, chosen, gpu, rows))
    field = "optim.max_steps" if recipe.optim.max_steps else "optim.epochs"
    yield Problem(field=field, message=message, fix=text("check.long.fix"), ways=ways, severity="warning")


def _list_ways(
    found: Duration,
    recipe: Recipe,
    machine: MachineFacts,
    model: ModelFacts,
    chosen: BackendPlan,
    gpu: Gpu | None,
    rows: RowFigures,
) -> Iterator[Fix]:
    """Yield the changes that make it clearly shorter, each with the time that is left."""

    def way(id: str, change: dict[str, object], **values: object) -> Iterator[Fix]:
        after = predict_duration(chosen, machine, model, change_recipe(recipe, change), gpu, rows)
        if after is not None and after.seconds < 0.8 * found.seconds:
            yield Fix(title=text(id, time=say_duration(after.seconds), **values), change=change)

    if recipe.optim.max_steps:
        steps = _round_down(recipe.optim.max_steps * SHORT_S / found.seconds)
        yield from way("check.long.steps", {"optim.max_steps": max(1, steps)}, steps=f"{max(1, steps):,}")
        return
    if recipe.optim.epochs > 1:
        yield from way("check.long.epochs", {"optim.epochs": 1.0})
    count = _round_down(rows.count * SHORT_S / found.seconds * recipe.optim.epochs)
    if rows.count and count >= LEAST_ROWS:
        change = {"data.max_rows": count, "optim.epochs": 1.0}
        yield from way("check.long.take", change, rows=f"{count:,}")
    if recipe.data.max_length > SHORTER_LENGTH and recipe.data.too_long == "cut":
        yield from way("check.long.length", {"data.max_length": SHORTER_LENGTH}, length=SHORTER_LENGTH)


def _round_down(count: float) -> int:
    """Return `count` with its first digit alone."""
    if count < 1:
        return 0
    unit = 10 ** math.floor(math.log10(count))
    return int(count // unit * unit)
