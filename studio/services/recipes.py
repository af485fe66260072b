"""Recipes in files: the person's own, whose local sources count from their folder, and the bundled demo's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from studio.core.codec import from_json
from studio.core.errors import StudioError
from studio.core.i18n import LOCALES, Text, text
from studio.core.json_file import read_json
from studio.core.knob import Knob
from studio.core.migrate import find_earlier_names, lift
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe, read_value
from studio.models.catalog import inspect_model
from studio.models.rope_scaling import count_positions

FILE = "file:"
"""Before the path of a reward that is a person's own code."""
DEMO_RECIPE = LOCALES.parent / "recipes" / "demo.json"
DEMO_SETTINGS = (
    "adapter.rank",
    "adapter.alpha",
    "data.too_long",
    "data.reasoning",
    "data.validation_share",
    "optim.schedule",
    "optim.warmup_share",
    "optim.weight_decay",
)
"""What the demo's recipe sets for its own rows, which are a format; length and rate follow from the model anyhow."""
DEFAULTS = Recipe(model=ModelChoice(source=""), data=DatasetSpec(source=""))


def read_recipe(path: str | Path, tell: Callable[[Text], None] = lambda note: None) -> Recipe:
    """Return the recipe in a file; relative local sources in it count from the recipe's own folder.

    `tell` hears that some of its keys have other names today. Raises StudioError with every problem of its keys and
    types at once.
    """
    file = Path(path)
    data = read_json(file)
    if not isinstance(data, dict):
        raise StudioError(
            text("file.no_object", path=file.name), text("recipe.not_object"), text("file.no_object.fix")
        )
    recipe = from_json(Recipe, lift("recipe", data))
    if earlier := find_earlier_names(data):
        names = ", ".join(f"{old} → {new}" for old, new in earlier.items())
        tell(text("recipe.earlier_names", names=names))
    base = file.absolute().parent

    def place(source: str) -> str:
        return str(base / source) if source and (base / source).exists() else source

    recipe = dataclasses.replace(
        recipe,
        model=dataclasses.replace(
            recipe.model, source=place(recipe.model.source), adapter=place(recipe.model.adapter)
        ),
        data=dataclasses.replace(
            recipe.data, source=place(recipe.data.source), validation=place(recipe.data.validation)
        ),
        rewards=tuple(
            dataclasses.replace(
                one,
                name=FILE + place(one.name.removeprefix(FILE)) if one.name.startswith(FILE) else one.name,
                options=one.options
                | {key: place(str(one.options[key])) for key in ("folder",) if key in one.options},
            )
            for one in recipe.rewards
        ),
    )
    return fit_length(recipe, data)


def fit_length(recipe: Recipe, written: Mapping[str, Any]) -> Recipe:
    """Return `recipe` with no longer examples than its model reads, where `written`, its JSON, does not say how long.

    The default is what most models take; one that reads 512 tokens would refuse a recipe for a number that nobody set.
    """
    data = written.get("data")
    if not recipe.model.source or (isinstance(data, Mapping) and "max_length" in data):
        return recipe
    return change_recipe(recipe, {"data.max_length": usual_length(recipe)})


def usual_length(recipe: Recipe) -> int:
    """Return the limit of length that a recipe for its model has where nobody set one: the default, or all it reads."""
    try:
        most = count_positions(inspect_model(recipe.model.source, revision=recipe.model.revision), recipe)
    except (StudioError, OSError):  # the check says what is wrong with the model
        most = 0
    return min(DEFAULTS.data.max_length, most) if most > 0 else DEFAULTS.data.max_length


def usual_value(recipe: Recipe, knob: Knob) -> Any:
    """Return the value that a setting has where nobody set it: its default, or what the recipe's model asks for."""
    return usual_length(recipe) if knob.path == "data.max_length" else knob.default


def follow_model(before: Recipe, after: Recipe) -> Recipe:
    """Return `after` with what nobody set made for its model: `before` had another one.

    The demo's own settings go with the demo's model: its schedule and its short rows fit no other.
    """
    changes: dict[str, Any] = {}
    if before.data.max_length == after.data.max_length == usual_length(before):
        changes["data.max_length"] = usual_length(after)
    demo = read_recipe(DEMO_RECIPE)
    leaves, comes = (one.model.source == demo.model.source for one in (before, after))
    for path in DEMO_SETTINGS if leaves != comes else ():
        old, new = (demo, DEFAULTS) if leaves else (DEFAULTS, demo)
        if read_value(before, path) == read_value(after, path) == read_value(old, path):
            changes[path] = read_value(new, path)
    return change_recipe(after, changes)
