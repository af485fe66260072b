"""Turns the recipe's knobs into form components, and the form's values back into a recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr

from studio.core.codec import from_json
from studio.core.errors import Problem, RecipeError
from studio.core.fields import Knob, knobs_of
from studio.core.recipe import RECIPE_VERSION, Recipe, read_value
from studio.core.text import Catalogue, literal, text

ELEM_IDS = {"model.source": "model-source", "data.source": "dataset-source"}
"""Names that other software already knows; every other knob is `knob-` and its path."""
HINTS = {
    name: f"ui.form.{name.removeprefix('data.')}" for name in ("data.mapping", "data.filters", "data.mix")
}
"""What a line of a mapping may look like."""


def elem_id(path: str) -> str:
    """Return the stable id of a knob's component: `knob-optim-learning-rate`."""
    return ELEM_IDS.get(path, "knob-" + path.replace(".", "-").replace("_", "-"))


class Form:
    """The components of all knobs, made section by section, tab by tab; `components` is in the order of making."""

    def __init__(self, words: Catalogue, recipe: Recipe) -> None:
        self.words = words
        self.recipe = recipe
        self.knobs = {knob.path: knob for knob in knobs_of(Recipe)}
        self.components: dict[str, gr.components.Component] = {}

    def field(self, path: str, **options: Any) -> gr.components.Component:
        """Make the component of one knob in the present layout."""
        component = make_component(self.knobs[path], read_value(self.recipe, path), self.words, **options)
        self.components[path] = component
        return component

    def fields(self, paths: Iterable[str], columns: int = 2) -> None:
        """Make the components of `paths` in rows of `columns`."""
        paths = list(paths)
        for start in range(0, len(paths), columns):
            with gr.Row(equal_height=False):
                row = paths[start : start + columns]
                for path in row:
                    with gr.Column(min_width=200):
                        self.field(path)
                for _ in range(columns - len(row)):
                    gr.Column(min_width=200)

    def section(self, prefixes: Sequence[str], levels: Sequence[str]) -> list[str]:
        """Return the paths below `prefixes` whose level is one of `levels` and that have no component yet."""
        return [
            path
            for path, knob in self.knobs.items()
            if any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)
            and knob.level in levels
            and path not in self.components
        ]

    def read(self, values: Sequence[Any]) -> Recipe:
        """Return the recipe of the components' values. Raises RecipeError with a Problem for each unreadable one."""
        return read_recipe(self.knobs, dict(zip(self.components, values, strict=True)))

    def show(self, recipe: Recipe) -> list[Any]:
        """Return the components' values for `recipe`, in the order of `components`."""
        return [show_value(self.knobs[path], read_value(recipe, path)) for path in self.components]


def make_component(knob: Knob, value: Any, words: Catalogue, **options: Any) -> gr.components.Component:
    """Return the Gradio component of one knob: label, help with unit and range, choices with their names."""
    common = {
        "label": _label(knob, words),
        "info": _help(knob, words),
        "value": show_value(knob, value),
        "elem_id": elem_id(knob.path),
        "interactive": True,
    } | options
    if knob.choices:
        names = [(_choice(knob, choice, words), choice) for choice in knob.choices]
        return gr.Dropdown(choices=names, filterable=False, **common)
    if knob.kind is bool:
        return gr.Checkbox(**common)
    if knob.kind is int:
        return gr.Number(precision=0, **common)
    if knob.kind is float:
        return gr.Number(step=_step(knob), **common)
    if knob.kind is dict:
        return gr.Textbox(lines=2, placeholder=words.say(text(HINTS[knob.path])), **common)
    if "choices" in options:
        return gr.Dropdown(**common)
    return gr.Textbox(max_lines=4 if knob.path == "data.system_prompt" else 1, **common)


def show_value(knob: Knob, value: Any) -> Any:
    """Return a recipe value as its component holds it: a mapping becomes one `role = column` a line."""
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
    if knob.kind in (int, float):
        if raw is None or (isinstance(raw, float) and not math.isfinite(raw)):
            problems.append(_problem(knob, "ui.form.number"))
            return knob.default
        return raw
    if knob.kind is dict:
        mapping = {}
        for line in (raw or "").splitlines():
            role, sign, column = line.partition("=")
            if sign and role.strip():  # no column: the role has none
                mapping[role.strip()] = column.strip()
            elif line.strip():
                problems.append(_problem(knob, "ui.form.mapping_line", line=literal(line.strip()[:80])))
        return mapping
    if knob.kind is str:
        return str(raw or "").strip()
    return raw


def _problem(knob: Knob, id: str, **values: object) -> Problem:
    message = text(id, label=knob.label, **values)
    return Problem(field=knob.path, message=message, fix=text(f"{id}.fix", label=knob.label))


def _label(knob: Knob, words: Catalogue) -> str:
    label = words.say(knob.label)
    unit = words.say(text(f"ui.unit.{knob.unit}")) if knob.unit else ""
    return f"{label} ({unit})" if unit and unit.casefold() not in label.casefold() else label


def _help(knob: Knob, words: Catalogue) -> str:
    """The help sentence; the range stands in the check's answer, not here, to keep the form calm."""
    return words.say(knob.help)


def _choice(knob: Knob, choice: str, words: Catalogue) -> str:
    label = knob.choice_label(choice)
    return words.say(label) if words.has(label.id) else choice


def _step(knob: Knob) -> float:
    """The arrows of a number field move by one unit of the default's first digit."""
    value = knob.default or (knob.maximum or 1.0) / 10
    return 10.0 ** math.floor(math.log10(abs(value)))
