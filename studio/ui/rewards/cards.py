"""What the Rewards section tells: chosen rewards with their options, code, and what a trial has found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from studio.core.errors import StudioError
from studio.core.recipe import Recipe
from studio.services.reward_code import path_of
from studio.services.worker import Job
from studio.ui.cards import note_card
from studio.ui.context import Context
from studio.ui.templates import render

ROWS_SHOWN = 8
"""Of a trial; all are in the command's --json."""
SHOWN_CHARACTERS = 600


def section_card(recipe: Recipe, wish: Mapping[str, int], context: Context) -> Markup:
    """Return the rewards of a recipe, what can be added, and the test's fields."""
    from studio.engine.rewards import REWARDS
    from studio.engine.rewards.code import Code

    say = context.say
    return render(
        "rewards/section.html",
        say,
        chosen=[_describe(place, spec, context) for place, spec in enumerate(recipe.rewards)],
        library=[(kind.name, say(f"reward.{kind.name}")) for kind in (*REWARDS, Code)],
        problems=[
            f"{say(one.message)} {say(one.fix)}"
            for one in context.desk.reward_code.find_problems(recipe.rewards, confirmed=False)
        ],
        refused=context.desk.trials.verdicts.find(recipe.rewards, recipe.data),
        insists=any(one.insist for one in recipe.rewards),
        wish=wish,
        model=recipe.model.source,
        data=recipe.data.source,
    )


def _describe(place: int, spec: Any, context: Context) -> dict[str, Any]:
    from studio.engine.rewards import get_kind
    from studio.engine.rewards.code import Code
    from studio.engine.rewards.options import list_options, write_option

    say, path = context.say, path_of(spec)
    found: dict[str, Any] = {
        "place": place, "weight": f"{spec.weight:g}", "options": (), "code": None, "own": False, "confirmed": True,
        "runs_code": False, "path": str(path or ""), "title": spec.name, "about": "",
    }  # fmt: skip
    try:
        kind = get_kind(spec.name)
    except StudioError as error:
        return found | {"about": say(error.what)}
    found["title"] = path.name if path else say(f"reward.{kind.name}")
    found["about"] = say(f"reward.{kind.name}.about")
    found["runs_code"] = kind.runs_code and kind is not Code
    found["options"] = [
        {
            "name": knob.path,
            "label": say(f"reward.option.{knob.path}"),
            "help": say(f"reward.option.{knob.path}.help"),
            "kind": "choice" if knob.choices else "switch" if knob.kind is bool else "words",
            "choices": [(one, say(f"reward.option.{knob.path}.{one}")) for one in knob.choices],
            "value": write_option(spec.options.get(knob.path, knob.default)),
            "long": knob.path == "rubric",
        }
        for knob in list_options(kind)
        if not knob.required
    ]
    return found | _read_file(path, context) if path else found


def _read_file(path: Path, context: Context) -> dict[str, Any]:
    shelf = context.desk.reward_code
    try:
        return {"code": shelf.read(path), "own": shelf.is_own(path), "confirmed": shelf.is_confirmed(path)}
    except StudioError:
        return {}  # the problems above say why


def trial_card(job: Job, context: Context) -> Markup:
    """Return how a trial goes, or what it has found."""
    say = context.say
    if not job.ended:
        share = min(1.0, job.done / job.total) if job.total else None
        phase = say(job.phase) if job.phase is not None else say("ui.chat.waiting")
        count = f"{job.done} / {job.total}" if job.total else ""
        return render(
            "tabs/chat/progress.html", say, phase=phase, share=share, count=count, stop="reward_stop"
        )
    if job.error is not None:
        return note_card(context.say_error(job.error), "bad")
    return found_card(job.result(), context)


def found_card(trial: Any, context: Context) -> Markup:
    """Return what a trial has found: the verdict, figures, where scores lie, and the first rows with every score."""
    say = context.say
    figures = []
    if trial.wins is not None:
        won = round(trial.wins * trial.compared)
        figures.append((say("ui.rewards.wins"), f"{won} / {trial.compared}"))
    if trial.mean is not None:
        figures.append((say("ui.rewards.mean"), f"{trial.mean:.3f}"))
    if trial.equal_groups is not None:
        figures.append((say("ui.rewards.equal"), f"{100 * trial.equal_groups:.0f} %"))
        figures.append((say("ui.rewards.deviation"), f"{trial.deviation:.3f}"))
    if trial.length_correlation is not None:
        figures.append((say("ui.rewards.correlation"), f"{trial.length_correlation:.2f}"))
    figures.append((say("ui.rewards.seconds"), f"{trial.seconds_per_call:.2g} s"))
    rows: dict[int, list[dict[str, Any]]] = {}
    for case in trial.cases:
        rows.setdefault(case.row, []).append(
            {
                "kind": say(f"ui.rewards.kind.{case.kind}"),
                "answer": case.answer[:SHOWN_CHARACTERS],
                "scores": [_number(one) for one in case.scores.per_reward],
                "total": _number(case.scores.total),
                "notes": " ".join(case.scores.notes)[:SHOWN_CHARACTERS],
            }
        )
    return render(
        "rewards/trial.html",
        say,
        refused=say(trial.refused) if trial.refused is not None else "",
        wins=trial.wins is not None,
        warnings=[say(one) for one in trial.warnings],
        form="" if trial.form == "{}" else trial.form.format("…"),
        figures=figures,
        bars=_bars(trial.histogram),
        names=trial.names,
        rows=list(rows.items())[:ROWS_SHOWN],
    )


def _bars(histogram: Any) -> list[tuple[str, int, int]]:
    """Return of each part of a histogram: from where, how many, the height in percent of the highest."""
    if histogram is None:
        return []
    width = (histogram.high - histogram.low) / len(histogram.counts)
    most = max(histogram.counts)
    return [
        (f"{histogram.low + place * width:.2f}", count, round(100 * count / most))
        for place, count in enumerate(histogram.counts)
    ]


def _number(score: float | None) -> str:
    return "–" if score is None or not math.isfinite(score) else f"{score:.3g}"
