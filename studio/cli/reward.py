"""`reward`: what rewards there are, and one tried on rows before anything is trained by it."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from studio.cli.arguments import read_pairs
from studio.cli.console import Console
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import DatasetSpec, RewardSpec
from studio.machine.workspace import Workspace

BAR_WIDTH = 30


def reward(options: argparse.Namespace, workspace: Workspace, console: Console) -> int:
    if options.action == "list":
        return _list(console)
    from studio.services.desk import Desk
    from studio.services.reward_trials import TrialWish
    from studio.supervisor.restarts import stop_requests

    if not options.reward or not options.data:
        raise StudioError(*(text(f"cli.reward.missing{part}") for part in ("", ".why", ".fix")))
    rewards = read_rewards(options.reward, read_pairs(options.option, "cli.reward.option"))
    desk = Desk(workspace, keep_queue=False)
    who: dict[str, Any] = {}
    if options.model:
        desk.machine.hurry(lambda: True)
        (contender,) = desk.evaluations.contenders(options.model)
        who = {"run": contender.run, "checkpoint": contender.checkpoint, "recipe": contender.recipe}
    wish = TrialWish(
        data=DatasetSpec(
            source=options.data,
            format=options.format,
            mapping=read_pairs(options.map, "cli.map"),
            split=options.split,
        ),
        rows=options.rows,
        samples=options.samples,
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
        **who,
    )
    with stop_requests() as asked:
        trial = desk.trials.run(rewards, wish, tell=_tell_progress(console), should_stop=lambda: bool(asked))
    console.answer(describe(trial), tell(trial, console))
    return 1 if trial.refused is not None else 0


def read_rewards(words: str, options: dict[str, str]) -> tuple[RewardSpec, ...]:
    """Return what REWARD names: a recipe's rewards, a file of code, or names of the library with commas.

    Raises StudioError, also for options of several rewards at once.
    """
    from studio.engine.rewards import get_kind
    from studio.engine.rewards.code import PREFIX
    from studio.engine.rewards.options import read_options

    if words.endswith(".json") and Path(words).is_file():
        from studio.services.recipes import read_recipe

        found = read_recipe(words).rewards
        if not found:
            raise StudioError(*(text(f"reward.none{part}") for part in ("", ".why", ".fix")))
    else:
        code = words.removeprefix(PREFIX) if words.startswith(PREFIX) or words.endswith(".py") else ""
        names = [PREFIX + str(Path(code).absolute())] if code else [word.strip() for word in words.split(",")]
        found = tuple(RewardSpec(name=name) for name in names if name)
    if options:
        if len(found) > 1:
            raise StudioError(*(text(f"cli.reward.several{part}") for part in ("", ".why", ".fix")))
        (one,) = found
        given = one.options | read_options(get_kind(one.name), options)
        found = (RewardSpec(name=one.name, weight=one.weight, options=given),)
    return found


def describe(trial: Any) -> dict[str, Any]:
    """Return a trial as JSON; a score that is not there is null."""
    return {
        "rewards": [
            {"name": name, "weight": weight} for name, weight in zip(trial.names, trial.weights, strict=True)
        ],
        "rows": len({case.row for case in trial.cases}),
        "compared": trial.compared,
        "wins": trial.wins,
        "form": trial.form,
        "sampled": trial.sampled,
        "mean": trial.mean,
        "histogram": None
        if trial.histogram is None
        else {
            "low": trial.histogram.low,
            "high": trial.histogram.high,
            "counts": list(trial.histogram.counts),
        },
        "equal_groups": trial.equal_groups,
        "deviation": trial.deviation,
        "length_correlation": trial.length_correlation,
        "seconds_per_call": trial.seconds_per_call,
        "repeatable": trial.repeatable,
        "failed": trial.failed,
        "refused": trial.refused,
        "warnings": list(trial.warnings),
        "cases": [
            {
                "row": case.row,
                "kind": case.kind,
                "answer": case.answer,
                "scores": dict(zip(trial.names, case.scores.per_reward, strict=True)),
                "total": case.scores.total if math.isfinite(case.scores.total) else None,
                "notes": list(case.scores.notes),
                "length_tokens": case.length_tokens,
            }
            for case in trial.cases
        ],
    }


def tell(trial: Any, console: Console) -> list[str]:
    """Return a trial for a person: what wins, how scores lie, what speaks against it."""
    say = console.catalogue.say
    lines = []
    if trial.wins is not None:
        form = "" if trial.form == "{}" else say(text("reward.trial.form", form=trial.form.format("…")))
        lines.append(
            say(text("reward.trial.wins", wins=round(trial.wins * trial.compared), rows=trial.compared))
            + form
        )
    if trial.histogram is not None:
        lines.append(say(text("reward.trial.mean", count=trial.sampled, mean=f"{trial.mean:.3f}")))
        lines += draw_histogram(trial.histogram)
    if trial.equal_groups is not None:
        lines.append(
            say(
                text(
                    "reward.trial.groups",
                    share=round(100 * trial.equal_groups),
                    deviation=f"{trial.deviation:.3f}",
                )
            )
        )
    if trial.length_correlation is not None:
        lines.append(say(text("reward.trial.length", value=f"{trial.length_correlation:.2f}")))
    lines.append(say(text("reward.trial.speed", seconds=f"{trial.seconds_per_call:.2g}")))
    lines += [say(one) for one in trial.warnings]
    lines.append(
        say(trial.refused) + " " + say(text("reward.trial.refused"))
        if trial.refused is not None
        else say(text("reward.trial.passed"))
    )
    return lines


def draw_histogram(histogram: Any) -> list[str]:
    """Return a line for each part of a histogram."""
    counts, most = histogram.counts, max(histogram.counts)
    width = (histogram.high - histogram.low) / len(counts)
    return [
        f"{histogram.low + place * width:>9.3f}  {'█' * round(BAR_WIDTH * count / most)} {count}"
        for place, count in enumerate(counts)
    ]


def _tell_progress(console: Console) -> Any:
    def show(label: Any, done: int, total: int) -> None:
        if total:
            console.progress(label, done, total)

    return show


def _list(console: Console) -> int:
    from studio.engine.rewards import REWARDS
    from studio.engine.rewards.code import Code
    from studio.engine.rewards.options import list_options, write_option

    say = console.catalogue.say
    found = [
        {
            "name": kind.name if kind is not Code else "file:PATH",
            "title": text(f"reward.{kind.name}"),
            "about": text(f"reward.{kind.name}.about"),
            "options": {
                knob.path: "" if knob.required else write_option(knob.default) for knob in list_options(kind)
            },
        }
        for kind in (*REWARDS, Code)
    ]
    lines = []
    for one in found:
        lines.append(f"{one['name']:<12} {say(one['about'])}")
        if one["options"]:
            lines.append(" " * 13 + "  ".join(f"{name}={value}" for name, value in one["options"].items()))
    console.answer({"rewards": found}, lines)
    return 0
