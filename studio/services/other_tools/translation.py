"""A recipe in the making out of another tool's settings, with a line for each that says what became of it and why."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from studio.core.codec import to_json
from studio.core.errors import Problem, RecipeError
from studio.core.i18n import Text, literal, text
from studio.core.knob import knobs_of
from studio.core.recipe import COMPARISONS, DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.services.other_tools.written import Setting, Unresolved, Written, number, truth, words

Fate = Literal["taken", "changed", "default", "left", "differs", "unknown"]
FATES: tuple[Fate, ...] = ("taken", "changed", "default", "left", "differs", "unknown")
"""Taken as it is; in another form; not written, so the tool's own default; needed for nothing here; without a
counterpart, so that the run differs; not known."""
KNOBS = {knob.path: knob for knob in knobs_of(Recipe)}
COMPARED = {loss for losses in COMPARISONS.values() for loss in losses}
"""The losses by which answers are compared here, which have TRL's names."""
BLANK = Recipe(model=ModelChoice(source=""), data=DatasetSpec(source=""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What became of one setting."""

    key: str
    written: str
    place: str
    """Its line; `-` where it is not written."""
    fate: Fate
    setting: str = ""
    """The recipe's, as a dotted path."""
    value: Any = None
    reason: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRecipe:
    """A recipe made of another tool's file."""

    tool: str
    recipe: Recipe
    """`model.source` and `data.source` may be empty: the file does not say."""
    lines: tuple[Line, ...]
    set: tuple[str, ...]
    """The recipe's settings that the file decides."""


class Translation:
    """Takes settings one by one; what nobody took is unknown at the end."""

    def __init__(self, tool: str, written: Written) -> None:
        self.tool = tool
        self.written = written
        self._changes: dict[str, Any] = {}
        self._lines: list[Line] = []
        self._seen: set[str] = set()
        self._problems: list[Problem] = []

    # Looking --------------------------------------------------------------------------------------------------------

    def find(self, *keys: str) -> Setting | None:
        """Return the first of `keys` that is set to something, as Written.find()."""
        return self.written.find(*keys)

    def says(self, *keys: str) -> bool:
        """Return whether the first of `keys` that is set is a switch that is on."""
        found = self.find(*keys)
        return found is not None and bool(truth(found.value))

    @property
    def seen(self) -> frozenset[str]:
        """The keys of which something was told."""
        return frozenset(self._seen)

    def get(self, path: str) -> Any:
        """Return what the recipe has at `path` so far, None where nothing was set."""
        return self._changes.get(path)

    # Telling --------------------------------------------------------------------------------------------------------

    def take(self, setting: Setting | None, path: str, value: Any = None, reason: str = "same") -> None:
        """Set the recipe's `path` to `value` (or to the setting's own, read as what the path holds)."""
        if setting is not None:
            self._set(setting, path, setting.value if value is None else value, "taken", reason, {})

    def change(self, setting: Setting, path: str, value: Any, reason: str, /, **values: object) -> None:
        """Set the recipe's `path` to `value`, which is the setting in another form."""
        self._set(setting, path, value, "changed", reason, values)

    def leave(self, setting: Setting, reason: str, /, **values: object) -> None:
        """Say that the setting is needed for nothing here."""
        self._tell(setting, "left", "", None, reason, values)

    def differ(self, setting: Setting, reason: str, /, **values: object) -> None:
        """Say that the setting has no counterpart, so that the run differs from the tool's."""
        self._tell(setting, "differs", "", None, reason, values)

    def default(self, path: str, value: Any, reason: str = "default", /, **values: object) -> None:
        """Set what the file does not say to the tool's own default, where nothing is set."""
        if path not in self._changes and path in KNOBS:
            self._changes[path] = value
            said = text(f"imported.{reason}", tool=literal(self.tool), **values)
            self._lines.append(
                Line(
                    key=path.split(".")[-1],
                    written="",
                    place="-",
                    fate="default",
                    setting=path,
                    value=value,
                    reason=said,
                )
            )

    def reject(self, setting: Setting, reason: str, /, **values: object) -> None:
        """Note why the file cannot become a recipe; `finish` raises all such reasons at once."""
        self._seen.add(setting.key)
        values = {"key": setting.key, "value": words(setting.value)} | values
        message = text(
            "imported.refused",
            place=str(setting.place),
            key=setting.key,
            value=words(setting.value),
            why=text(f"imported.{reason}", **values),
        )
        self._problems.append(Problem(field=setting.key, message=message, fix=text("imported.refused.fix")))

    def _set(
        self, setting: Setting, path: str, value: Any, fate: Fate, reason: str, values: Mapping[str, object]
    ) -> None:
        if isinstance(value, Unresolved):
            self._tell(setting, "differs", "", None, "unresolved", {"words": words(value)})
            return
        value = read_as(path, value)
        if value is None:
            self._tell(setting, "differs", "", None, "unreadable.value", {"setting": path})
            return
        self._changes[path] = value
        self._tell(setting, fate, path, value, reason, values)

    def _tell(
        self, setting: Setting, fate: Fate, path: str, value: Any, reason: str, values: Mapping[str, object]
    ) -> None:
        self._seen.add(setting.key)
        said = text(f"imported.{reason}", **({"tool": literal(self.tool), "key": setting.key} | dict(values)))
        self._lines.append(
            Line(
                key=setting.key,
                written=words(setting.value),
                place=str(setting.place),
                fate=fate,
                setting=path,
                value=value,
                reason=said,
            )
        )

    # Ending ---------------------------------------------------------------------------------------------------------

    def apply(self, rules: Mapping[str, Callable[[Translation, Setting], None]]) -> None:
        """Give each setting that nobody took yet to its rule: one of its key, or of the part before the first dot."""
        for key, setting in self.written.settings.items():
            rule = rules.get(key) or rules.get(key.split(".")[0] + ".*")
            if key in self._seen or rule is None:
                continue
            if setting.value in (None, "", [], ()):
                self.leave(setting, "empty")
            else:
                rule(self, setting)

    def finish(self, known: Collection[str] = ()) -> ImportedRecipe:
        """Return the recipe; what nobody took is told as unknown, with the nearest of `known`.

        Raises RecipeError with every reason why there can be none.
        """
        if self._problems:
            raise RecipeError(tuple(self._problems))
        for key, setting in self.written.settings.items():
            if key not in self._seen and setting.value in (None, "", [], ()):
                self.leave(setting, "empty")
            elif key not in self._seen:
                near = difflib.get_close_matches(key, [one for one in known if one != key], n=1, cutoff=0.85)
                reason, values = ("unknown.near", {"near": near[0]}) if near else ("unknown", {})
                self._tell(setting, "unknown", "", None, reason, values)
        order = {fate: place for place, fate in enumerate(FATES)}
        lines = tuple(sorted(self._lines, key=lambda line: order[line.fate]))
        return ImportedRecipe(
            tool=self.tool,
            recipe=change_recipe(BLANK, self._changes),
            lines=lines,
            set=tuple(self._changes),
        )


def read_as(path: str, value: Any) -> Any:
    """Return `value` as what the recipe's `path` holds; None for what cannot be read so, or is out of its range."""
    knob = KNOBS[path]
    if knob.kind is bool:
        return truth(value)
    if knob.kind in (int, float):
        found = number(value)
        if found is None or knob.kind is int and found != int(found):
            return None
        inside = (knob.minimum is None or found >= knob.minimum) and (
            knob.maximum is None or found <= knob.maximum
        )
        return knob.kind(found) if inside else None
    if knob.kind is str:
        value = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return value if not knob.choices or value in knob.choices else None
    return value


def same(path: str) -> Callable[[Translation, Setting], None]:
    """Return the rule of a setting that means the same here."""
    return lambda translation, setting: translation.take(setting, path)


def left(reason: str) -> Callable[[Translation, Setting], None]:
    """Return the rule of a setting that is needed for nothing here."""
    return lambda translation, setting: translation.leave(setting, reason)


def switched(reason: str, method: str = "differ") -> Callable[[Translation, Setting], None]:
    """Return the rule of a method that has no counterpart here, where it is switched on."""

    def rule(translation: Translation, setting: Setting) -> None:
        off = truth(setting.value) is False or number(setting.value) == 0
        off = off or isinstance(setting.value, str) and setting.value.lower() in ("no", "none", "off")
        if off:
            translation.leave(setting, "off")
        else:
            getattr(translation, method)(setting, reason)

    return rule


def settings_json(made: ImportedRecipe) -> dict[str, Any]:
    """Return the recipe as JSON with the settings that the file decides, and empty sources where it names none."""
    whole = to_json(made.recipe)
    found: dict[str, Any] = {"version": whole["version"]}
    for path in dict.fromkeys(("model.source", "data.source", *sorted(made.set))):
        part, value = found, whole
        *parents, name = path.split(".")
        for parent in parents:
            part, value = part.setdefault(parent, {}), value[parent]
        part[name] = value[name]
    return found
