"""Settings under a name: those that come with the studio, the person's own, those of earlier runs; recipes as files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.core.atomic_files import write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import StudioError
from studio.core.i18n import LOCALES, Text, literal, text
from studio.core.json_file import read_json, read_words
from studio.core.knob import knobs_of
from studio.core.migrate import lift
from studio.core.recipe import Recipe, change_recipe, read_value
from studio.machine.workspace import Workspace
from studio.services.runs import Runs

BUILT_IN = ("quick", "style", "facts", "format", "pairs", "long", "low_memory", "full")
"""In the order of the screen; each is assets/recipes/NAME.json, a recipe for the demo's model and data.
"""
RECIPES = LOCALES.parent / "recipes"
RUNS = 12
"""So many of the newest runs are offered."""
LONGEST_NAME = 60
LARGEST_FILE = 200_000
"""Characters of an imported recipe; one with every key has 3,000."""
BOUND = (
    "name",
    "model.source",
    "model.adapter",
    "model.revision",
    *(
        f"data.{name}"
        for name in (
            "source", "format", "mapping", "speaker", "encoding", "sheet", "config", "split", "mix", "validation",
            "system_prompt", "template", "filters", "max_rows", "accept_bad_rows",
        )
    ),
)  # fmt: skip
"""What belongs to one model or one data set: no preset touches it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Settings that can be applied to a recipe; what `settings` does not name stays as it is."""

    id: str
    """`built_in:NAME`, `mine:FILE` or `run:ID`."""
    name: Text
    about: Text | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By path. Empty for a run, whose recipe is read when it is chosen."""

    @property
    def kind(self) -> str:
        """built_in, mine or run."""
        return self.id.partition(":")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting that would change."""

    path: str
    before: Any
    after: Any


class Presets:
    """The presets of one workspace; the person's own are files in workspace/presets."""

    def __init__(self, workspace: Workspace, runs: Runs) -> None:
        self.folder = workspace.root / "presets"
        self._runs = runs

    def all(self) -> tuple[Preset, ...]:
        """Return built-in presets, the person's own by name, and the newest runs; damaged files are left out."""
        runs = (
            Preset(id=f"run:{record.run}", name=literal(record.name or record.run))
            for record in self._runs.list()[:RUNS]
        )
        mine = sorted(self._mine(), key=lambda preset: str(preset.name.values["words"]).casefold())
        return (*map(read_built_in, BUILT_IN), *mine, *runs)

    def find(self, id: str) -> Preset:
        """Return the preset with that id, a run's with its settings. Raises StudioError when there is none."""
        kind, _, name = id.partition(":")
        found = next((preset for preset in self.all() if preset.id == id), None)
        if found is None:
            raise StudioError(text("preset.missing"), text("preset.missing.why"), text("preset.missing.fix"))
        if kind != "run":
            return found
        return Preset(id=id, name=found.name, settings=_settings(to_json(self._runs.recipe(name))))

    def save(self, name: str, recipe: Recipe) -> Preset:
        """Keep the recipe's settings under `name`, in place of those of that name. Raises StudioError, OSError."""
        name = " ".join(name.split())
        if not name or len(name) > LONGEST_NAME:
            raise StudioError(
                text("preset.name"), text("preset.name.why", most=LONGEST_NAME), text("preset.name.fix")
            )
        # A name may hold what no file name can: the file is named for its digest.
        file = self.folder / f"{hashlib.sha256(name.casefold().encode('utf-8')).hexdigest()[:16]}.json"
        self.folder.mkdir(exist_ok=True)
        data = to_json(recipe)
        write_json(file, {"name": name, "recipe": data}, lasting=True)
        return Preset(id=f"mine:{file.stem}", name=literal(name), settings=_settings(data))

    def delete(self, id: str) -> None:
        """Delete one of the person's own presets. Raises StudioError when there is no such one."""
        preset = self.find(id)
        if preset.kind != "mine":
            raise StudioError(
                text("preset.not_mine"), text("preset.not_mine.why"), text("preset.not_mine.fix")
            )
        (self.folder / f"{id.partition(':')[2]}.json").unlink(missing_ok=True)

    def _mine(self) -> Iterator[Preset]:
        for file in sorted(self.folder.glob("*.json")):
            try:
                data = read_json(file)
                recipe = to_json(from_json(Recipe, lift("recipe", data["recipe"])))
                name = literal(str(data["name"])[:LONGEST_NAME])
            except (StudioError, KeyError, TypeError):
                continue  # one damaged file must not hide the others
            yield Preset(id=f"mine:{file.stem}", name=name, settings=_settings(recipe))


def read_built_in(name: str) -> Preset:
    """Return a preset that comes with the studio: only the keys in its file are its settings."""
    data = read_json(RECIPES / f"{name}.json")
    return Preset(
        id=f"built_in:{name}",
        name=text(f"preset.{name}.name"),
        about=text(f"preset.{name}.about"),
        settings=_settings(data),
    )


def apply(preset: Preset, recipe: Recipe, positions: int = 0) -> Recipe:
    """Return `recipe` with the preset's settings; model and data stay.

    positions: the longest input that the model takes, where it is known; no example gets longer.
    """
    settings = dict(preset.settings)
    if positions and settings.get("data.max_length", 0) > positions:
        settings["data.max_length"] = positions
    return change_recipe(recipe, settings)


def compare(before: Recipe, after: Recipe) -> tuple[Difference, ...]:
    """Return every setting that differs, in the recipe's order."""
    pairs = (
        (knob.path, read_value(before, knob.path), read_value(after, knob.path)) for knob in knobs_of(Recipe)
    )
    return tuple(Difference(path=path, before=old, after=new) for path, old, new in pairs if old != new)


def read(words: str) -> Recipe:
    """Return the recipe in a file's text. Raises StudioError, with every problem of its keys and types at once."""
    name = text("preset.file")
    if len(words) > LARGEST_FILE:
        raise StudioError(
            text("preset.too_large"), text("preset.too_large.why"), text("preset.too_large.fix")
        )
    data = read_words(words, name)
    if not isinstance(data, dict):
        raise StudioError(
            text("file.no_object", path=name), text("recipe.not_object"), text("file.no_object.fix")
        )
    return from_json(Recipe, lift("recipe", data))


def write(recipe: Recipe) -> str:
    """Return the recipe as a file's text, which read() and `launch.py train` read back."""
    return json.dumps(to_json(recipe), ensure_ascii=False, indent=1) + "\n"


def _settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a recipe's JSON sets, by path, of the right types, without what is bound to a model or data."""
    whole = from_json(Recipe, data)
    settings = {}
    for knob in knobs_of(Recipe):
        *parents, name = knob.path.split(".")
        part: Any = data
        for parent in parents:
            part = part.get(parent, {})
        if name in part and knob.path not in BOUND:
            settings[knob.path] = read_value(whole, knob.path)
    return settings
