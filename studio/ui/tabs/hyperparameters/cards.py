"""What the Hyperparameters screen tells: goals, plain controls and what they set, presets, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from studio.core.i18n import Catalogue
from studio.core.knob import Knob, knobs_of
from studio.core.recipe import Recipe
from studio.services.goal_settings import CONTROLS, GOALS, OWN, Change, Wish
from studio.services.presets import Difference, Preset
from studio.ui.field_badges import show_plainly
from studio.ui.templates import render

Say = Callable[..., str]
KNOBS: Mapping[str, Knob] = {knob.path: knob for knob in knobs_of(Recipe)}

FIGURES = (
    "optim.epochs",
    "optim.max_steps",
    "optim.learning_rate",
    "adapter.rank",
    "model.quantization",
    "optim.batch_size",
)
"""What stands in the line of what is set; the rest folds out."""


def plain_card(wish: Wish, changes: Sequence[Change], words: Catalogue, say: Say) -> Markup:
    """Return the goals, the three plain controls, and what they set; a control that is OWN has nothing chosen."""
    return render(
        "tabs/hyperparameters/plain.html",
        say,
        wish=wish,
        own=OWN,
        goals=GOALS,
        controls=[(name, choices, getattr(wish, name)) for name, choices in list(CONTROLS.items())[1:]],
        changes=[
            {
                "name": say(KNOBS[one.path].label),
                "value": _value(one.path, one.value, words),
                "reason": one.reason,
                "shown": one.path in FIGURES and one.value != 0,
            }
            for one in changes
        ],
    )


def presets_card(presets: Sequence[Preset], chosen: str, say: Say, details: str = "") -> Markup:
    """Return the list of presets, saving, import and export; below it `details` of the one that is chosen."""
    kinds = ("built_in", "mine", "run")
    groups = [(kind, [one for one in presets if one.kind == kind]) for kind in kinds]
    return render("tabs/hyperparameters/presets.html", say, groups=groups, chosen=chosen, details=details)


def difference_card(
    title: str,
    about: str,
    differences: Sequence[Difference],
    words: Catalogue,
    say: Say,
    *,
    id: str,
    mine: bool = False,
    more: str = "",
) -> Markup:
    """Return what a preset would change, `more` to read, and the buttons to do it, to leave it, to delete one's own."""
    rows = [
        (
            say(KNOBS[one.path].label),
            _value(one.path, one.before, words),
            _value(one.path, one.after, words),
        )
        for one in differences
    ]
    return render(
        "tabs/hyperparameters/difference.html",
        say,
        title=title,
        about=about,
        rows=rows,
        id=id,
        mine=mine,
        more=more,
    )


def done_note(sentence: str, say: Say, *, undo: bool = True) -> Markup:
    """Return what was just done, with the way back."""
    return render("tabs/hyperparameters/done.html", say, sentence=sentence, undo=undo)


def _value(path: str, value: Any, words: Catalogue) -> str:
    return show_plainly(KNOBS[path], value, words)[:120]
