"""Lifts the recipe, record, queue and event lines of older versions to today's, and refuses those of a newer studio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import EVENTS_VERSION
from studio.core.i18n import text
from studio.core.recipe import RECIPE_VERSION, RENAMED, USUAL_RATE, USUAL_RATES
from studio.core.run_record import RECORD_VERSION

QUEUE_VERSION = 2
NEWEST = {
    "recipe": RECIPE_VERSION,
    "record": RECORD_VERSION,
    "events": EVENTS_VERSION,
    "queue": QUEUE_VERSION,
}


def _lift_recipe_1(recipe: dict[str, Any]) -> dict[str, Any]:
    """Rows of a step in one number, where they were micro-batch (2) times accumulation (4); packing filled steps."""
    optim, data = recipe.get("optim"), recipe.get("data")
    lifted = dict(recipe)
    if isinstance(optim, Mapping) and "batch_size" not in optim:
        rest = {key: value for key, value in optim.items() if key not in ("micro_batch", "accumulation")}
        factors = (optim.get("micro_batch", 2), optim.get("accumulation", 4))
        # What is no number is left to be refused by its name.
        if all(isinstance(factor, int) for factor in factors):
            lifted["optim"] = {**rest, "batch_size": factors[0] * factors[1]}
    if isinstance(data, Mapping) and isinstance(data.get("packing"), bool) and "fill" not in data:
        rest = {key: value for key, value in data.items() if key != "packing"}
        lifted["data"] = {**rest, "fill": data["packing"]}
    return lifted


def _lift_recipe_2(recipe: dict[str, Any]) -> dict[str, Any]:
    """A learning rate of 2e-4 was one that nobody set; where a person wrote the file (a few keys), it is theirs.

    Of all weights and examples it stays: these took it, and have a usual one of their own today.
    """
    optim, adapter = recipe.get("optim"), recipe.get("adapter")
    if not isinstance(optim, Mapping) or "epsilon" not in optim or optim.get("learning_rate") != USUAL_RATE:
        return recipe
    full = isinstance(adapter, Mapping) and adapter.get("method") == "full"
    if full and recipe.get("objective", "auto") not in ("auto", *USUAL_RATES):
        return recipe
    return {**recipe, "optim": {key: value for key, value in optim.items() if key != "learning_rate"}}


def rename_keys(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return `recipe` with today's names for the keys of RENAMED. Where both are, the old one is left to be refused."""
    renamed = dict(recipe)
    for old, new in RENAMED.items():
        (*way, last), new_last = old.split("."), new.rpartition(".")[2]
        part = renamed
        if way:
            if not isinstance(renamed.get(way[0]), Mapping):
                continue
            part = renamed[way[0]] = dict(renamed[way[0]])
        if last in part and new_last not in part:
            part[new_last] = part.pop(last)
    return renamed


def find_earlier_names(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of `recipe` that have other names today: dotted path -> today's."""
    found = {}
    for old, new in (RENAMED | {"optim.accumulation": "optim.batch_size"}).items():
        (*way, last) = old.split(".")
        part = recipe.get(way[0]) if way else recipe
        if isinstance(part, Mapping) and last in part:
            found[old] = new
    return found


def _lift_items(queue: dict[str, Any]) -> dict[str, Any]:
    """The recipes of a queue's items, each of which tells its own version."""

    def lift_item(item: Any) -> Any:
        if not isinstance(item, Mapping) or not isinstance(item.get("recipe"), Mapping):
            return item
        return {**item, "recipe": lift("recipe", item["recipe"])}

    items = queue.get("items")
    return {**queue, "items": [lift_item(item) for item in items]} if isinstance(items, list) else queue


# (kind, version lifted from) -> the function that lifts it by one.
LIFTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    ("recipe", 1): _lift_recipe_1,
    ("recipe", 2): _lift_recipe_2,
    ("queue", 1): _lift_items,
}


def lift(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` (a recipe, record, queue or events header) at today's version; one without a version is of 1.

    Raises StudioError when a newer studio wrote it, and when it is no JSON object: a crash can leave anything.
    """
    if not isinstance(data, Mapping):
        raise StudioError(
            text("file.not_json", path=kind),
            text("migrate.not_object"),
            text("file.not_json.fix", path=kind),
        )
    lifted = dict(data)
    version = lifted.get("version", 1)
    if not isinstance(version, int) or version < 1 or version > NEWEST[kind]:
        raise StudioError(
            text("migrate.newer", kind=kind, version=str(version)),
            text("migrate.newer.why", newest=NEWEST[kind]),
            text("migrate.newer.fix"),
        )
    while version < NEWEST[kind]:
        lifted = LIFTS[kind, version](lifted)
        version += 1
    # Names changed within a version, too.
    tidy = {"recipe": rename_keys, "queue": _lift_items}.get(kind, dict)
    return tidy(lifted) | {"version": version}
