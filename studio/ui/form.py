"""Turns the recipe's knobs into form components, and the form's values back into a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gradio as gr

from studio.core.codec import from_json
from studio.core.errors import Problem, RecipeError
from studio.core.i18n import Catalogue, literal, text
from studio.core.knob import AUTO, Knob, knobs_of
from studio.core.recipe import RECIPE_VERSION, Recipe, RewardSpec, change_recipe, read_value
from studio.ui.field_badges import elem_id, make_marks
from studio.ui.number_input import read_number, show_number
from studio.ui.shell.html_events import whole

HINTS = {
    name: f"ui.form.{name.removeprefix('data.')}" for name in ("data.mapping", "data.filters", "data.mix")
}
"""What a line of a mapping may look like."""
LONG_TEXTS = ("data.system_prompt",)


class Form:
    """The components of all knobs, made section by section, tab by tab; `components` is in the order of making."""

    def __init__(self, words: Catalogue, recipe: Recipe, typed: Mapping[str, Any] | None = None) -> None:
        self.words = words
        self.recipe = recipe
        self.typed = dict(typed or {})
        """Values as they were typed where they are not, or not yet, those of `recipe`, by path."""
        self.knobs = {knob.path: knob for knob in knobs_of(Recipe)}
        self.components: dict[str, gr.components.Component] = {}
        self.marks = make_marks(tuple(self.knobs.values()), words)
        """Outside of all tabs: problems and badges of all fields, see studio.ui.field_badges."""

    def field(self, path: str, **options: Any) -> gr.components.Component:
        """Make the component of one knob in the present layout."""
        shown = self.typed.get(path, show_value(self.knobs[path], read_value(self.recipe, path)))
        component = make_component(self.knobs[path], shown, self.words, **options)
        self.components[path] = component
        return component

    def fields(self, paths: Iterable[str], columns: int = 2) -> None:
        """Make the components of `paths` in a grid of `columns`, fewer where the place is narrow."""
        with gr.Column(elem_classes=["knobs", f"columns-{columns}"]):
            for path in paths:
                self.field(path)

    def section(self, prefixes: Sequence[str], levels: Sequence[str]) -> list[str]:
        """Return the paths below `prefixes` whose level is one of `levels` and that have no component yet."""
        return [
            path
            for path, knob in self.knobs.items()
            if any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)
            and knob.level in levels
            and path not in self.components
        ]

    def read(self, values: Sequence[Any], rewards: tuple[RewardSpec, ...] = ()) -> Recipe:
        """Return the recipe of the components' values and of `rewards`, which have no component.

        Raises RecipeError with a Problem for each value that cannot be read.
        """
        found = read_recipe(self.knobs, dict(zip(self.components, values, strict=True)))
        return change_recipe(found, {"rewards": rewards})

    def read_over(self, base: Recipe, values: Sequence[Any]) -> Recipe:
        """Return the recipe of the components' values; where one cannot be read yet, `base` says what it is."""
        return self.read_typed(base, dict(zip(self.components, values, strict=True)))[0]

    def read_typed(
        self, base: Recipe, values: Mapping[str, Any]
    ) -> tuple[Recipe, dict[str, Any], tuple[Problem, ...]]:
        """Return `base` with the values (by path) that can be read, those kept as typed, and the Problems of the rest.

        Kept as typed is what cannot be read, or what the recipe would show otherwise: `1e-4`, a space at the end.
        """
        changes, typed, problems = {}, {}, []
        for path, raw in values.items():
            knob, found = self.knobs[path], []
            value = _read_value(knob, raw, found)
            problems += found or check_range(knob, value)
            if not found:
                changes[path] = value
            if found or show_value(knob, value) != raw:
                typed[path] = raw
        return change_recipe(base, changes), typed, tuple(problems)

    def show(self, recipe: Recipe, typed: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the values of `components` in their order: those of `recipe`, or as they were `typed` (by path)."""
        typed = typed or {}
        return [
            typed.get(path, show_value(self.knobs[path], read_value(recipe, path)))
            for path in self.components
        ]

    def show_changes(self, changes: Mapping[str, Any], paths: Iterable[str]) -> list[Any]:
        """Return the values of the fields of `paths`: of `changes` the new ones, and nothing for the others."""
        return [
            show_value(self.knobs[path], changes[path]) if path in changes else gr.skip() for path in paths
        ]


def make_component(knob: Knob, shown: Any, words: Catalogue, **options: Any) -> gr.components.Component:
    """Return the Gradio component of one knob: label, help with unit and range, choices with their names."""
    common = {
        "label": _label(knob, words),
        "info": words.say(knob.help),
        "value": shown,
        "elem_id": elem_id(knob.path),
        "interactive": True,
    } | options
    if knob.choices:
        names = [(_choice(knob, choice, words), choice) for choice in knob.choices]
        return gr.Dropdown(choices=names, filterable=False, **common)
    if knob.kind is bool:
        return gr.Checkbox(**common)
    if knob.kind in (int, float):
        # A number field of the browser drops what it cannot read and reports another number: 1e-4 as 1, 0,5 as 0.
        return gr.Textbox(max_lines=1, **common)
    if knob.kind is tuple:
        return gr.Textbox(lines=2, max_lines=8, **common)
    if knob.kind is dict:
        return gr.Textbox(lines=2, placeholder=words.say(text(HINTS[knob.path])), **common)
    if "choices" in options:
        return gr.Dropdown(**common)
    return gr.Textbox(max_lines=4 if knob.path in LONG_TEXTS else 1, **common)


def show_all(recipe: Recipe, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every knob's component holds, by elem_id."""
    return {
        elem_id(knob.path): typed.get(knob.path, show_value(knob, read_value(recipe, knob.path)))
        for knob in knobs_of(Recipe)
    }


def show_value(knob: Knob, value: Any) -> Any:
    """Return a recipe value as its component holds it: a number as text, a mapping as one `role = column` a line."""
    if knob.auto and value == 0:
        return AUTO
    if knob.kind in (int, float):
        return show_number(value) if isinstance(value, (int, float)) else value
    if knob.kind is tuple:
        return "\n".join(value or ())
    if knob.kind is dict:
        return "\n".join(f"{role} = {column}" for role, column in (value or {}).items())
    return value


def read_recipe(knobs: dict[str, Knob], values: dict[str, Any]) -> Recipe:
    """Return the recipe of component values by path; knobs that are absent keep their default.

    Raises RecipeError with all Problems: emptied numbers, mapping lines without `=`, values of a wrong type.
    """
    problems: list[Problem] = []
    data: dict[str, Any] = {"version": RECIPE_VERSION}
    for path, raw in values.items():
        knob = knobs[path]
        value = _read_value(knob, raw, problems)
        part = data
        *parents, name = path.split(".")
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    if problems:
        raise RecipeError(tuple(problems))
    return from_json(Recipe, data)


def _read_value(knob: Knob, raw: Any, problems: list[Problem]) -> Any:
    if knob.auto and str(raw or "").strip().casefold() in (AUTO, ""):
        return 0.0
    if knob.kind in (int, float):
        value = read_number(raw, whole=knob.kind is int)
        if value is None or (knob.kind is int and not isinstance(value, int)):
            empty = raw is None or not str(raw).strip()
            id = "ui.form.number" if empty else "ui.form.not_number" if value is None else "ui.form.not_whole"
            given = {} if empty else {"value": literal(str(raw).strip()[:40]), "example": _example(knob)}
            problems.append(_problem(knob, id, **given))
            return knob.default
        return float(value) if knob.kind is float else value
    if knob.kind is dict:
        mapping = {}
        for line in whole(str(raw or "")).splitlines():
            role, sign, column = line.partition("=")
            if sign and role.strip():  # no column: the role has none
                mapping[role.strip()] = column.strip()
            elif line.strip():
                problems.append(_problem(knob, "ui.form.mapping_line", line=literal(line.strip()[:80])))
        return mapping
    if knob.kind is tuple:
        return tuple(line for line in whole(str(raw or "")).splitlines() if line.strip())
    if knob.kind is str:
        return whole(str(raw or "")).strip()
    return bool(raw)


def check_range(knob: Knob, value: Any) -> list[Problem]:
    """Return what the check before a start would say of a number outside of its range."""
    if knob.kind not in (int, float):
        return []
    if knob.minimum is not None and value < knob.minimum:
        return [_problem(knob, "check.too_low", value=value, minimum=show_number(knob.minimum))]
    if knob.maximum is not None and value > knob.maximum:
        return [_problem(knob, "check.too_high", value=value, maximum=show_number(knob.maximum))]
    return []


def _example(knob: Knob) -> str:
    return show_number(knob.useful[0] if knob.useful else knob.default)


def _problem(knob: Knob, id: str, **values: object) -> Problem:
    values = {"label": knob.label, **values}
    return Problem(field=knob.path, message=text(id, **values), fix=text(f"{id}.fix", **values))


def _label(knob: Knob, words: Catalogue) -> str:
    label = words.say(knob.label)
    unit = words.say(text(f"ui.unit.{knob.unit}")) if knob.unit else ""
    return f"{label} ({unit})" if unit and unit.casefold() not in label.casefold() else label


def _choice(knob: Knob, choice: str, words: Catalogue) -> str:
    label = knob.choice_label(choice)
    return words.say(label) if words.has(label.id) else choice
