"""Marks on the form's fields: problems beside them, "changed" badges, what each costs; one unseen component for all."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr

from studio.core.errors import Problem
from studio.core.i18n import Catalogue, Text, text
from studio.core.knob import AUTO, Knob, knobs_of
from studio.core.recipe import Recipe, read_value
from studio.services.recipes import usual_value
from studio.ui.number_input import show_number
from studio.ui.shell.scripts import read_script

ELEM_IDS = {"model.source": "model-source", "data.source": "dataset-source", "rewards": "settings-rewards"}
"""Names that other software already knows, and a section; every other knob is `knob-` and its path."""
TABS = {"model": "model", "data": "dataset"}
"""First part of a path -> the tab with its field; all others are in Hyperparameters."""
ENDLESS = 100_000
"""A range that ends beyond is told without its end."""
WORDS = ("back", "help", "elsewhere", "nothing", "useful", "key")


def elem_id(path: str) -> str:
    """Return the stable id of a knob's component: `knob-optim-learning-rate`."""
    return ELEM_IDS.get(path, "knob-" + path.replace(".", "-").replace("_", "-"))


def tab_of(path: str) -> str:
    """Return the tab with a setting's field; of no setting the one where a run is started."""
    return TABS.get(path.partition(".")[0], "hyperparameters") if path else "training"


def make_marks(knobs: Sequence[Knob], words: Catalogue) -> gr.HTML:
    """Return the component whose script (field_badges.js) dresses every field of `knobs` wherever it stands.

    Its value, sent by a handler, is what mark_problems() or mark_changes() return, or both merged. Its event `said`
    comes with {do, value}: `look` (a tab of the form was opened), `reset` (elem_id), `import` (a file's text).
    """
    facts = [_describe(knob, words) for knob in knobs]
    said = {name: words.say(text(f"ui.mark.{name}")) for name in WORDS}
    tabs = {name: words.say(text(f"ui.tab.{name}")) for name in ("model", "dataset", "hyperparameters")}
    return gr.HTML(
        {"facts": facts, "words": said, "tabs": tabs},
        html_template="<i></i>",
        js_on_load=read_script("field_badges.js"),
        elem_id="form-marks",
        elem_classes=["unseen"],
    )


def mark_problems(
    problems: Iterable[Problem], words: Catalogue, *, of: str = "", more: bool = False
) -> dict[str, Any]:
    """Return the value for `form.marks` that shows `problems` beside their fields and clears all others.

    of: path of the only field whose marks change; "" for all fields. more: whether all others stay.
    """
    marks = [
        {
            "elem_id": elem_id(problem.field),
            "message": f"{words.say(problem.message)} {words.say(problem.fix)}",
            "severity": problem.severity,
        }
        for problem in problems
        if problem.field
    ]
    return {"problems": marks, "of": elem_id(of) if of else "", "more": more, "number": _stamp()}


def mark_changes(recipe: Recipe, words: Catalogue) -> dict[str, Any]:
    """Return the value for `form.marks` that badges every field of `recipe` with a value other than its default."""
    changed = {
        elem_id(knob.path): _back(knob, usual_value(recipe, knob), words) for knob in changed_knobs(recipe)
    }
    count = words.say(text("ui.mark.count", count=len(changed)))
    return {"changed": changed, "count": count, "number": _stamp()}


def changed_knobs(recipe: Recipe) -> tuple[Knob, ...]:
    """Return all settings that differ from what nobody set; name, model and data have no such value."""
    return tuple(
        knob
        for knob in knobs_of(Recipe)
        if not knob.required and knob.path != "name"
        and read_value(recipe, knob.path) != usual_value(recipe, knob)
    )  # fmt: skip


def show_plainly(knob: Knob, value: Any, words: Catalogue) -> str:
    """Return a value in words, for a sentence or a list of differences."""
    if knob.choices:
        label = knob.choice_label(str(value))
        return words.say(label) if words.has(label.id) else str(value)
    if knob.kind is bool:
        return words.say(text("ui.form.on" if value else "ui.form.off"))
    if knob.auto and value == 0:
        return AUTO
    if knob.kind in (int, float) and isinstance(value, (int, float)):
        return show_number(value)
    if isinstance(value, dict):
        value = ", ".join(f"{name} = {column}" for name, column in value.items())
    return str(value) if value not in ("", None) else words.say(text("ui.form.empty"))


def range_of(knob: Knob) -> Text | None:
    """Return which numbers a field takes, in words."""
    if knob.kind not in (int, float) or knob.minimum is None or knob.maximum is None:
        return None
    id = "ui.form.range" if knob.maximum < ENDLESS else "ui.form.least"
    return text(id, low=show_number(knob.minimum), high=show_number(knob.maximum))


def _stamp() -> str:
    """A new value each time: the page hears nothing of a value that is the same as before."""
    return str(time.monotonic_ns())


def _describe(knob: Knob, words: Catalogue) -> dict[str, Any]:
    """What the script needs of one field, in the window's language."""
    say, number = words.say, knob.kind in (int, float)
    normal = "" if knob.required else show_plainly(knob, knob.default, words)
    return {
        "id": elem_id(knob.path),
        "path": knob.path,
        "tab": tab_of(knob.path),
        "label": say(knob.label),
        "search": f"{say(knob.label)} {knob.path} {say(knob.help)}".casefold(),
        "cost": say(knob.cost) if knob.cost else "",
        "range": say(range_of(knob)) if number else "",
        "normal": normal and say(text("ui.form.normal", value=normal)),
        "back": normal and _back(knob, knob.default, words),
        "useful": [show_number(value) for value in knob.useful],
        "number": number,
        "low": knob.minimum,
        "high": knob.maximum,
        "step": _step(knob) if number else 0,
        "whole": knob.kind is int,
    }


def _back(knob: Knob, usual: Any, words: Catalogue) -> str:
    """What a changed field's badge says: the value that it goes back to."""
    return words.say(text("ui.mark.changed", value=show_plainly(knob, usual, words)))


def _step(knob: Knob) -> float:
    """The arrow keys move by one unit of the default's first digit."""
    value = knob.default or (knob.maximum or 1.0) / 10
    step = 10.0 ** math.floor(math.log10(abs(value)))
    return max(1.0, min(step, 10.0)) if knob.kind is int else step
