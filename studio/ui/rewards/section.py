"""The Rewards section of the Hyperparameters screen: pick from the library, write one, try them, see why not."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.recipe import SAMPLING, Recipe, RewardSpec
from studio.services.recipes import FILE
from studio.services.reward_code import path_of
from studio.services.reward_trials import TrialWish
from studio.ui.context import Context
from studio.ui.number_input import read_number
from studio.ui.rewards.cards import section_card, trial_card
from studio.ui.shell.html_events import read_said

LOOK_EVERY_S = 0.3
DOES = ("reward_keep", "reward_add", "reward_remove", "reward_confirm", "reward_test", "reward_insist")
"""What buttons and fields say, with all fields of the section. Two of them in one moment can both arrive as the later
one: each says of how many rewards, so that one that adds or removes is heard once.
"""
FIGURES = {"rows": (1, 200), "samples": (0, 32), "max_new_tokens": (1, 8192)}
"""Fields of the test with what they may be."""
MOST_REWARDS = 20


class RewardsSection:
    """Components and handlers. Rewards stand in the draft, a trial belongs to the desk: all pages show the same.

    Only the owner's window has this section, and each handler is bound for the owner alone: what is typed here runs.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.wish = {"rows": 8, "samples": 4, "max_new_tokens": 128}
        self.section = gr.HTML(self._draw(), elem_id="settings-rewards")
        self.trial = gr.HTML("", elem_id="settings-reward-trial")

    def bind(self, voice: gr.HTML, objective: gr.components.Component) -> None:
        """Hear the screen's buttons; `objective` is the field that says whether there are rewards."""
        shown = [self.section, self.trial]
        self.context.on(voice.said, self.hear, [voice], shown, trigger_mode="multiple")
        self.context.on(
            objective.change, self.follow, [objective], [self.section], trigger_mode="always_last"
        )

    def follow(self, objective: object) -> str:
        """Return the section for the objective that the form shows now."""
        return self._draw(str(objective))

    def hear(self, said: object) -> Iterator[list[Any]]:
        """Do what a button of the section asks, and yield what it shows."""
        do, value, form = read_said(said)
        if do == "look":
            yield [self._draw(), gr.skip()]
            yield from self.watch()
        elif do == "reward_stop":
            if (job := self.context.desk.trials.job) is not None:
                job.stop()
            yield [gr.skip(), gr.skip()]
        elif do in DOES:
            if str(form.get("count", "")) != str(len(self.context.draft().rewards)):
                yield [self._draw(), gr.skip()]  # of what stood there before
                return
            self._keep(form)
            if do != "reward_keep":
                getattr(self, f"_{do.removeprefix('reward_')}")(value or str(form.get("added", "")))
            yield [self._draw(), gr.skip()]
            if do == "reward_test":
                yield from self.watch()
        else:
            yield [gr.skip(), gr.skip()]

    def watch(self) -> Iterator[list[Any]]:
        """Yield how the last trial goes, until it ends; nothing where there was none."""
        job, told = self.context.desk.trials.job, None
        if job is None:
            yield [gr.skip(), gr.skip()]
            return
        while not job.ended:
            if (now := (job.phase, job.done, job.total)) != told:
                told = now
                yield [gr.skip(), trial_card(job, self.context)]
            time.sleep(LOOK_EVERY_S)
        yield [self._draw(), trial_card(job, self.context)]

    # What the buttons do --------------------------------------------------------------------------------------------

    def _keep(self, form: Mapping[str, object]) -> None:
        """Take what stands in the section's fields: code first, which nobody wants to type again.

        Raises StudioError for what is no value, once all others are kept.
        """
        refused: list[StudioError] = []
        written = False
        rewards = self.context.draft().rewards
        for place, spec in enumerate(rewards):
            code, path = form.get(f"{place}.code"), path_of(spec)
            shelf = self.context.desk.reward_code
            if isinstance(code, str) and path is not None and shelf.is_own(path):
                before = shelf.read(path) if path.exists() else None
                shelf.write(path, code)
                written |= shelf.read(path) != before
        made = tuple(_read_spec(spec, place, form, refused) for place, spec in enumerate(rewards))
        if made != rewards or written:
            made = tuple(dataclasses.replace(one, insist=False) for one in made)
            self._change(lambda found: made if found == rewards else found)
        for name, (low, high) in FIGURES.items():
            found = read_number(str(form.get(name, "")), whole=True)
            if isinstance(found, int):
                self.wish[name] = max(low, min(high, found))
        if refused:
            raise refused[0]

    def _add(self, value: str) -> None:
        from studio.engine.rewards import get_kind
        from studio.engine.rewards.code import Code

        if not value:
            return
        if value == Code.name:
            name = FILE + str(self.context.desk.reward_code.create())
        else:
            name = get_kind(value).name
        self._change(lambda rewards: (*rewards, RewardSpec(name=name))[:MOST_REWARDS])

    def _remove(self, value: str) -> None:
        self._change(lambda rewards: tuple(one for i, one in enumerate(rewards) if str(i) != value))

    def _confirm(self, value: str) -> None:
        for place, spec in enumerate(self.context.draft().rewards):
            if str(place) == value and (path := path_of(spec)) is not None:
                self.context.desk.reward_code.confirm(path)

    def _insist(self, value: str) -> None:
        self._change(lambda rewards: tuple(dataclasses.replace(one, insist=bool(value)) for one in rewards))

    def _test(self, value: str) -> None:
        """Start a trial of the draft's rewards on its data, with answers of its model. Raises StudioError."""
        desk, recipe = self.context.desk, self.context.draft()
        if desk.trials.job is not None and not desk.trials.job.ended:
            return  # it is watched instead
        for problem in desk.reward_code.find_problems(recipe.rewards):
            raise StudioError(problem.message, text("reward.trial.before"), problem.fix)
        who = self._find_model(recipe) if self.wish["samples"] else {}
        desk.trials.start(recipe.rewards, TrialWish(data=recipe.data, seed=recipe.seed, **who, **self.wish))

    def _find_model(self, recipe: Recipe) -> dict[str, Any]:
        """Return who answers as a run would begin: the model, or a run's result that it goes on from.

        Raises StudioError.
        """
        if not recipe.model.adapter:
            return {"recipe": recipe}
        folder = Path(recipe.model.adapter).resolve().parent
        if folder.parent != self.context.workspace.runs.resolve():
            raise StudioError(*(text(f"ui.rewards.adapter{part}") for part in ("", ".why", ".fix")))
        return {"run": folder.name, "checkpoint": self.context.desk.chat.find_place(folder.name)}

    # Inside ---------------------------------------------------------------------------------------------------------

    def _change(self, change: Any) -> None:
        with self.context.editing:
            self.context.edit({"rewards": change(self.context.draft().rewards)})

    def _draw(self, objective: str = "") -> str:
        recipe = self.context.draft()
        shown = recipe.rewards or (objective or recipe.objective) in SAMPLING
        return section_card(recipe, self.wish, self.context) if shown else ""


def _read_spec(
    spec: RewardSpec, place: int, form: Mapping[str, object], refused: list[StudioError]
) -> RewardSpec:
    """Return `spec` with weight and options as its fields hold them; what is no value stays as it was, and is told."""
    from studio.engine.rewards import get_kind
    from studio.engine.rewards.options import list_options, read_option

    said = str(form.get(f"{place}.weight", ""))
    weight = read_number(said, whole=False)
    if weight is None:
        weight, name = spec.weight, text("ui.rewards.weight")
        refused.append(
            StudioError(
                text("reward.option", name=name, value=said[:80]),
                text("reward.option.why", wanted="float"),
                text("reward.option.fix"),
            )
        )
    options = dict(spec.options)
    try:
        knobs = list_options(get_kind(spec.name))
    except StudioError:
        return dataclasses.replace(spec, weight=float(weight))  # the card says what is wrong
    for knob in knobs:
        found = form.get(f"{place}.{knob.path}")
        if found is None:
            continue
        try:
            read: Any = bool(found) if knob.kind is bool else read_option(knob, str(found))
        except StudioError as error:
            refused.append(error)
            continue
        options.pop(knob.path, None)
        if read != knob.default:
            options[knob.path] = list(read) if isinstance(read, tuple) else read
    return dataclasses.replace(spec, weight=float(weight), options=options)
