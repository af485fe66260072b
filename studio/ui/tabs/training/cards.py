"""What is told of a run: what is to be done about it, its log, its sample answers, its frozen settings.

The Training tab and what guests see are made of the same parts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from studio.core.codec import to_json
from studio.core.errors import Problem
from studio.core.events import Diagnosis, RunStalled, SampleWritten
from studio.core.facts import Slower
from studio.core.i18n import Catalogue, Text, text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, read_value
from studio.core.run_record import RunRecord
from studio.planning.slow_paths import say_slower
from studio.services.recipe_problems import SourceProblem
from studio.ui.cards import fix_of
from studio.ui.field_badges import elem_id, show_plainly, tab_of
from studio.ui.quantities import time_words
from studio.ui.run_state import LiveView
from studio.ui.tabs.training.run_advice import RunVerdict
from studio.ui.tabs.training.status import worked_s
from studio.ui.templates import render

Say = Callable[..., str]
SIGNS = {"good": "✓", "info": "i", "warn": "!", "bad": "✕"}


def place_of(field: str) -> tuple[str, str]:
    """Return the tab and the element id of a setting's field."""
    return tab_of(field), elem_id(field)


def place_of_problem(problem: Problem) -> tuple[str, str]:
    """Return the tab and the element id of what settles a problem: a question about the data is answered below it."""
    if isinstance(problem, SourceProblem) and problem.asks:
        return "dataset", "dataset-questions"
    return place_of(problem.field)


def slower_card(slower: Sequence[Slower], say: Say) -> Markup:
    """Return what makes a run slower than it could be, costliest first; "" where nothing does."""
    return render("tabs/training/slower.html", say, slower=[say_slower(one) for one in slower])


def check_card(problems: Sequence[Problem], recipe: Recipe, say: Say) -> Markup:
    """Return what the check found, each problem with a way to its field, and what happens first after Start.

    A button for a change that helps says {do: "way", value: the change as JSON}.
    """
    labels = {knob.path: say(knob.label) for knob in knobs_of(Recipe)} | {"rewards": say("ui.rewards.title")}
    errors = sum(problem.severity == "error" for problem in problems)
    if errors:
        title, kind = say("ui.check.errors", count=errors), "bad"
    elif problems:
        title, kind = say("ui.check.warnings", count=len(problems)), "warn"
    else:
        title, kind = say("ui.check.fine"), "good"
    return render(
        "tabs/training/check.html",
        say,
        problems=[_describe(one, labels, say) for one in sorted(problems, key=lambda one: one.severity)],
        errors=errors,
        title=title,
        kind=kind,
        trial="ui.check.trial" if recipe.run.trial else "ui.check.no_trial",
    )


def _describe(problem: Problem, labels: Mapping[str, str], say: Say) -> dict[str, Any]:
    field, place = labels.get(problem.field, problem.field), place_of_problem(problem)
    asks = place != place_of(problem.field)
    return {
        "severity": problem.severity,
        "sign": SIGNS["bad" if problem.severity == "error" else "warn"],
        "field": field,
        "message": problem.message,
        "fix": fix_of(problem),
        "ways": [(way.title, json.dumps(dict(way.change), sort_keys=True)) for way in problem.ways],
        "show": say("ui.check.answer.show") if asks else say("ui.check.show", field=field),
        "place": place,
    }


def controls(state: str, active: bool, resumable: bool, say: Say) -> Markup:
    """Return the buttons of the run on show: what can be done with it as it stands; "" when nothing can.

    `active` says whether this window trains it, `resumable` whether it may go on.
    """
    values = {"active": active, "resumable": resumable, "paused": state == "paused"}
    return render("tabs/training/controls.html", say, **values)


def stall_card(stall: RunStalled | None, say: Say) -> Markup:
    """Return what stands still, why and where as far as it can be told, and what to choose from; "" while it moves."""
    return render("tabs/training/stall.html", say, stall=stall)


def failure_card(diagnosis: Diagnosis | None, say: Say, fixable: bool = True) -> Markup:
    """Return what ended a run, why, and what helps; fixes that change a setting are buttons. "" without a failure.

    A button says {do: "fix", value: number of the fix}; `fixable` False leaves the buttons out, as for guests.
    """
    if diagnosis is None:
        return Markup()
    fixes = [(number, fix) for number, fix in enumerate(diagnosis.fixes or ()) if fix.title is not None]
    return render(
        "tabs/training/failure.html",
        say,
        what=diagnosis.what or text("failure.unknown"),
        why=diagnosis.why,
        buttons=[(number, fix.title) for number, fix in fixes if fix.change and fixable],
        words=[fix.title for _, fix in fixes if not (fix.change and fixable)],
    )


def verdict_cards(verdicts: Sequence[RunVerdict], say: Say, show_fields: bool = True) -> Markup:
    """Return what is to be said of a run, each with what to do about it."""
    placed = [(one, place_of(one.field) if show_fields and one.field else None) for one in verdicts]
    return render("tabs/training/verdicts.html", say, verdicts=placed, signs=SIGNS)


def done_card(record: RunRecord, view: LiveView, say: Say, *, former: bool = False) -> Markup:
    """Return what comes after a finished run: talk to it, take it away.

    `former`: the form is about another run by now, whose Start is the page's one prominent button.
    """
    took = time_words(worked_s(view, "finished", record, view.updated_s))
    words = say("ui.done.former") if former else say("ui.done.words", steps=view.step, took=took)
    title = "" if former else "ui.done.title"
    return render("tabs/training/done.html", say, run=record.run, title=title, words=words, former=former)


def stopped_card(run: str, say: Say) -> Markup:
    """Return what can be done with the newest checkpoint of a run that did not come to its end."""
    words = say("ui.done.checkpoint")
    return render("tabs/training/done.html", say, run=run, title="", words=words, former=False)


def samples_card(
    samples: Sequence[SampleWritten], chosen: int | None, say: Say, *, held_out: bool = True
) -> Markup:
    """Return the answers of one evaluation beside those of the base, with a picker; `chosen` None is the newest.

    held_out: whether their prompts are of rows that are not trained on.
    """
    steps = sorted({sample.step for sample in samples}, reverse=True)
    at = chosen if chosen in steps else steps[0] if steps else 0
    # A run that went on from an earlier step wrote some of them twice: the later ones count.
    shown = {one.prompt: one for one in samples if one.step == at}.values()
    return render(
        "tabs/training/samples.html",
        say,
        steps=steps,
        at=at,
        held_out=held_out,
        shown=[(one, _judge(one) if at > 0 and one.expected else "") for one in shown],
    )


def _judge(sample: SampleWritten) -> str:
    return "hit" if sample.answer.strip() == sample.expected.strip() else "other"


def log_card(view: LiveView, say: Callable[[Text], str] | Say) -> Markup:
    """Return the log's last lines, oldest first."""
    lines = [(line, time.strftime("%H:%M:%S", time.localtime(line.time_s))) for line in view.log]
    return render("tabs/training/log.html", say, lines=lines)


def settings_card(recipe: Recipe, words: Catalogue) -> Markup:
    """Return the settings of a run as they were when it started: those that are not the default, and all as JSON."""

    def say(id: str, **values: object) -> str:
        return words.say(text(id, **values))

    defaults = Recipe(model=type(recipe.model)(source=""), data=type(recipe.data)(source=""))
    changed = [
        (words.say(knob.label), show_plainly(knob, value, words))
        for knob in knobs_of(Recipe)
        if (value := read_value(recipe, knob.path)) != read_value(defaults, knob.path) and knob.path != "name"
    ]
    if recipe.rewards:
        listed = ", ".join(f"{Path(one.name).name} × {one.weight:g}" for one in recipe.rewards)
        changed.append((say("ui.rewards.title"), listed))
    whole = json.dumps(to_json(recipe), ensure_ascii=False, indent=1)
    return render("tabs/training/settings.html", say, rows=changed, json=whole)


def fold_card(title: str, inside: Markup) -> Markup:
    """Return a card that is folded up."""
    return render("tabs/training/fold.html", title=title, inside=inside)
