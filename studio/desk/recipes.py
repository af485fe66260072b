"""Recipes in files: the person's own, whose local sources count from their folder, and the bundled demo's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from studio.core.codec import from_json
from studio.core.errors import StudioError
from studio.core.migrate import lift
from studio.core.recipe import Recipe
from studio.core.text import LOCALES, text
from studio.engine.folder import read_json

DEMO_RECIPE = LOCALES.parent / "recipes" / "demo.json"


def read_recipe(path: str | Path) -> Recipe:
    """Return the recipe in a file; relative local sources in it count from the recipe's own folder.

    Raises StudioError with every problem of its keys and types at once.
    """
    file = Path(path)
    if file.exists() and not file.is_file() and not file.is_dir():  # /dev/zero has no end
        raise StudioError(
            text("file.unreadable", path=file.name),
            text("data.source.special"),
            text("data.source.special.fix"),
        )
    data = read_json(file)
    if not isinstance(data, dict):
        raise StudioError(
            text("file.not_json", path=file.name),
            text("recipe.not_object"),
            text("file.not_json.fix", path=file.name),
        )
    recipe = from_json(Recipe, lift("recipe", data))
    base = file.absolute().parent

    def place(source: str) -> str:
        return str(base / source) if source and (base / source).exists() else source

    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(
            recipe.model, source=place(recipe.model.source), adapter=place(recipe.model.adapter)
        ),
        data=dataclasses.replace(
            recipe.data, source=place(recipe.data.source), validation=place(recipe.data.validation)
        ),
    )
