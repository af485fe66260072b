"""Lifts recipe.json, run.json and event lines of older versions to today's, and refuses those of a newer studio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import EVENTS_VERSION
from studio.core.recipe import RECIPE_VERSION
from studio.core.record import RECORD_VERSION
from studio.core.text import text

NEWEST = {"recipe": RECIPE_VERSION, "record": RECORD_VERSION, "events": EVENTS_VERSION}

# (kind, version lifted from) -> the function that lifts it by one. Version 1 is the first, so there is nothing to lift.
LIFTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}


def lift(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` (a recipe, record or events header) at today's version; without a version it is read as version 1.

    Raises StudioError when a newer studio wrote it.
    """
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
