"""Lifts the recipe, record, queue and event lines of older versions to today's, and refuses those of a newer studio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import EVENTS_VERSION
from studio.core.recipe import RECIPE_VERSION
from studio.core.record import RECORD_VERSION
from studio.core.text import text

QUEUE_VERSION = 1
NEWEST = {
    "recipe": RECIPE_VERSION,
    "record": RECORD_VERSION,
    "events": EVENTS_VERSION,
    "queue": QUEUE_VERSION,
}

# (kind, version lifted from) -> the function that lifts it by one. Version 1 is the first, so there is nothing to lift.
LIFTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


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
    return lifted | {"version": version}
