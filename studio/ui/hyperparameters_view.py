"""HTML of the Hyperparameters screen: goal cards, plain controls, what they set, presets, differences. All escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from studio.core.i18n import Catalogue
from studio.core.knobs import Knob, knobs_of
from studio.core.recipe import Recipe
from studio.services.goal_settings import CONTROLS, GOALS, LATER, OWN, Change, Wish
from studio.services.presets import Difference, Preset
from studio.ui.field_badges import show_plainly

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


def plain_card(wish: Wish, changes: Sequence[Change], words: Catalogue, say: Say) -> str:
    """Return the goals, the three plain controls, and what they set; a control that is OWN has nothing chosen."""
    goals = "".join(_goal(name, say) for name in GOALS) + "".join(_later(name, say) for name in LATER)
    own = f"<p class='soft'>{escape(say('plain.own'))}</p>" if wish.goal == OWN else ""
    controls = "".join(
        _control(name, choices, getattr(wish, name), say) for name, choices in list(CONTROLS.items())[1:]
    )
    return (
        f'<fieldset class="goals" data-chosen="{escape(wish.goal)}">'
        f"<legend><h2>{escape(say('plain.goal'))}</h2></legend>{own}<div>{goals}</div></fieldset>"
        f'<div class="plain-controls">{controls}</div>{_sets(changes, words, say)}'
    )


def tools_bar(say: Say) -> str:
    """Return the filter, the count of changed settings and the way back to the defaults."""
    label = escape(say("ui.settings.filter"))
    return (
        f"<h2>{escape(say('ui.settings.title'))}</h2>"
        '<div class="settings-tools">'
        f'<input type="search" id="settings-filter" placeholder="{label}" aria-label="{label}" autocomplete="off">'
        '<button type="button" class="say" id="settings-changed" aria-pressed="false">'
        f'<span id="settings-count">{escape(say("ui.mark.count", count=0))}</span></button>'
        '<button type="button" class="say" id="settings-reset" data-do="reset_all" '
        f'data-confirm="{escape(say("ui.settings.reset.sure"))}">{escape(say("ui.settings.reset"))}</button></div>'
        '<div id="settings-elsewhere" role="status"></div>'
    )


def presets_card(presets: Sequence[Preset], chosen: str, say: Say, details: str = "") -> str:
    """Return the list of presets, saving, import and export; below it `details` of the one that is chosen."""
    groups = ""
    for kind in ("built_in", "mine", "run"):
        options = "".join(
            f'<option value="{escape(one.id)}">{escape(say(one.name))}</option>'
            for one in presets
            if one.kind == kind
        )
        if options:
            groups += f'<optgroup label="{escape(say(f"ui.presets.{kind}"))}">{options}</optgroup>'
    label, name = escape(say("ui.presets.choose")), escape(say("ui.presets.name"))
    return (
        f"<h2>{escape(say('ui.presets.title'))}</h2><p class='lead'>{escape(say('ui.presets.lead'))}</p>"
        '<div class="presets"><div class="pick">'
        f'<select id="preset-pick" data-do="preset" data-chosen="{escape(chosen)}" aria-label="{label}" '
        f'data-focus="preset-pick"><option value="">{label}</option>{groups}</select></div>'
        f'<div class="keep" data-form><input type="text" name="name" id="preset-name" maxlength="60" '
        f'placeholder="{name}" aria-label="{name}" autocomplete="off">'
        f'<button type="button" class="say" id="preset-save" data-do="preset_save">{escape(say("ui.presets.save"))}'
        '</button></div><div class="files">'
        f'<button type="button" class="say" id="settings-import">{escape(say("ui.presets.import"))}</button>'
        '<input type="file" id="settings-file" accept=".json,application/json" hidden>'
        '<button type="button" class="say" id="settings-export" data-do="export">'
        f"{escape(say('ui.presets.export'))}</button></div></div>{details}"
    )


def difference_card(
    title: str,
    about: str,
    differences: Sequence[Difference],
    words: Catalogue,
    say: Say,
    *,
    id: str,
    mine: bool = False,
) -> str:
    """Return what a preset would change, with the buttons to do it, to leave it, and to delete one's own."""
    rows = "".join(
        f"<tr><th scope='row'>{escape(say(KNOBS[one.path].label))}</th>"
        f"<td>{_value(one.path, one.before, words)}</td><td aria-hidden='true'>→</td>"
        f"<td><b>{_value(one.path, one.after, words)}</b></td></tr>"
        for one in differences
    )
    id = escape(id)
    use = f'<button type="button" class="say primary" id="preset-apply" data-do="preset_apply" data-value="{id}">'
    parts = [f"{use}{escape(say('ui.presets.apply'))}</button>"] if differences else []
    parts.append(
        '<button type="button" class="say" id="preset-leave" data-do="preset_leave">'
        f"{escape(say('ui.presets.leave'))}</button>"
    )
    if mine:
        sure = escape(say("ui.presets.delete.sure", name=title))
        parts.append(
            f'<button type="button" class="say" id="preset-delete" data-do="preset_delete" data-value="{id}" '
            f'data-confirm="{sure}">{escape(say("ui.presets.delete"))}</button>'
        )
    count = say("ui.presets.changes" if differences else "ui.presets.same", count=len(differences))
    lead = f"<p class='soft'>{escape(about)}</p>" if about else ""
    table = f"<table>{rows}</table>" if rows else ""
    return (
        f'<div class="card differences"><h3>{escape(title)}</h3>{lead}<p>{escape(count)}</p>{table}'
        f'<div class="buttons">{"".join(parts)}</div></div>'
    )


def done_note(sentence: str, say: Say, *, undo: bool = True) -> str:
    """Return what was just done, with the way back."""
    way_back = '<button type="button" class="say" id="settings-undo" data-do="undo">'
    button = f"{way_back}{escape(say('ui.settings.undo'))}</button>" if undo else ""
    return f'<div class="done" role="status"><span>{escape(sentence)}</span>{button}</div>'


def _goal(name: str, say: Say) -> str:
    return (
        f'<label class="goal"><input type="radio" name="plain-goal" value="{name}" data-do="goal">'
        f"<b>{escape(say(f'plain.goal.{name}'))}</b><span>{escape(say(f'plain.goal.{name}.about'))}</span></label>"
    )


def _later(name: str, say: Say) -> str:
    return (
        '<div class="goal later"><b>' + escape(say(f"plain.goal.{name}")) + "</b>"
        f"<i>{escape(say('plain.later'))}</i><span>{escape(say(f'plain.goal.{name}.about'))}</span></div>"
    )


def _control(name: str, choices: Sequence[str], chosen: str, say: Say) -> str:
    radios = "".join(
        f'<label><input type="radio" name="plain-{name}" value="{choice}" data-do="{name}">'
        f"<span>{escape(say(f'plain.{name}.{choice}'))}</span></label>"
        for choice in choices
    )
    about = say("plain.own") if chosen == OWN else say(f"plain.{name}.{chosen}.about")
    return (
        f'<fieldset class="control" data-chosen="{escape(chosen)}"><legend>{escape(say(f"plain.{name}"))}</legend>'
        f'<div class="segments">{radios}</div><p class="soft">{escape(about)}</p></fieldset>'
    )


def _sets(changes: Sequence[Change], words: Catalogue, say: Say) -> str:
    """The values in one line; their reasons fold out."""
    if not changes:
        return ""
    chips = "".join(
        f"<span>{escape(say(KNOBS[one.path].label))} <b>{_value(one.path, one.value, words)}</b></span>"
        for one in changes
        if one.path in FIGURES and one.value != 0
    )
    rows = "".join(
        f"<tr><th scope='row'>{escape(say(KNOBS[one.path].label))}</th>"
        f"<td><b>{_value(one.path, one.value, words)}</b></td><td>{escape(say(one.reason))}</td></tr>"
        for one in changes
    )
    return (
        f'<details class="sets"><summary><span class="name">{escape(say("plain.sets"))}</span>'
        f'<span class="values">{chips}</span></summary><table>{rows}</table></details>'
    )


def _value(path: str, value: Any, words: Catalogue) -> str:
    return escape(show_plainly(KNOBS[path], value, words)[:120])
