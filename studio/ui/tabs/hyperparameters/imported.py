"""A settings file that a person opens in the window: a recipe of the studio, or another tool's config or script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from markupsafe import Markup

from studio.core.errors import StudioError
from studio.core.recipe import Recipe, change_recipe, read_value
from studio.services import presets
from studio.services.other_tools.importer import import_words
from studio.services.other_tools.translation import FATES, ImportedRecipe
from studio.ui.templates import render

Say = Callable[..., str]


@dataclass(frozen=True, slots=True)
class OpenedSettings:
    """What a file would make of the draft."""

    recipe: Recipe
    imported: ImportedRecipe | None = None
    """What became of each of its settings, where another tool wrote it."""


def open_settings(words: str, name: str, draft: Recipe) -> OpenedSettings:
    """Return what the file `name` would make of `draft`; a model or data that it does not name stay the draft's.

    Raises StudioError, RecipeError with every problem at once.
    """
    name = PurePosixPath(name.replace("\\", "/")).name or "recipe.json"
    if name.endswith(".json"):
        try:
            return OpenedSettings(presets.read(words))
        except StudioError as own:
            try:
                found = import_words(words, name)
            except StudioError:
                raise own from None  # what is wrong with a recipe of ours says more
    else:
        found = import_words(words, name)
    kept = [
        path
        for path in ("model.source", "model.adapter", "model.revision")
        if "model.source" not in found.set
    ]
    kept += ["data.source"] if "data.source" not in found.set else []
    recipe = change_recipe(found.recipe, {path: read_value(draft, path) for path in kept})
    return OpenedSettings(recipe, found)


def imported_card(found: ImportedRecipe, say: Say) -> Markup:
    """Return what became of each setting of the file, by fate, each with its line and its reason."""
    groups = [(fate, [line for line in found.lines if line.fate == fate]) for fate in reversed(FATES)]
    return render(
        "tabs/hyperparameters/imported.html",
        say,
        tool=found.tool,
        count=len(found.lines),
        groups=[(fate, lines) for fate, lines in groups if lines],
    )
