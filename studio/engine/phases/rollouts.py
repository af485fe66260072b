"""What a run needs to learn from its own answers: rewards, who draws, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from studio.core.errors import StudioError
from studio.core.events import Metric, RunEvent, Warned
from studio.core.i18n import text
from studio.core.recipe import Recipe, change_recipe, keeps_by
from studio.data.prepare import PreparedData
from studio.engine.held_out_rows import say_prompt
from studio.engine.held_out_score import read_asked, suggest_for
from studio.engine.objectives.objective import Objective
from studio.engine.rewards import open_rewards
from studio.engine.rewards.reward import RewardSet
from studio.engine.rollouts.alarms import DRAWN, RolloutAlarms
from studio.engine.rollouts.completions_file import CompletionsFile
from studio.engine.rollouts.drawing import Drawer
from studio.engine.rollouts.rollout import AnswerGroup
from studio.engine.rollouts.rollout_steps import Rollouts
from studio.engine.rollouts.start_weights import StartWeights
from studio.engine.run_context import Run
from studio.engine.trainer import Trainer
from studio.models.load import Loaded

LOOKS, MOST_STEPS_BETWEEN = 10, 50
"""How often a run looks at held-out questions by itself, and of a long one how many steps lie between at most."""
LOOKED_AT = 100
"""Held-out rows by which it is chosen what the best state is kept by."""
METRICS = (
    Metric(name="reward", better="higher", first=True),
    Metric(name="frac_reward_zero_std", unit="share", better="lower", first=True),
    Metric(name="completions/mean_length", unit="tokens", first=True),
    Metric(name="completions/clipped_ratio", unit="share", better="lower", first=True),
    Metric(name="reward_std"),
    Metric(name="completions/distinct", unit="share", better="higher"),
    Metric(name="completions/repeated", unit="share", better="lower"),
    Metric(name="completions/mean_terminated_length", unit="tokens"),
    Metric(name="completions/min_length", unit="tokens"),
    Metric(name="completions/max_length", unit="tokens"),
    Metric(name="seconds/answers", unit="s", better="lower"),
    Metric(name="seconds/rewards", unit="s", better="lower"),
)
"""Of every rollout, named as trl names them where it has them."""


def open_run_rewards(run: Run, data: PreparedData) -> RewardSet | None:
    """Return the rewards of a run that asks for them, open until it ends; None where the data are learned as they are.

    Raises StudioError where nothing judges, and as open_rewards() does.
    """
    if data.asked is None:
        return None
    if not run.recipe.rewards:
        raise StudioError(*(text(f"rollouts.no_reward{part}") for part in ("", ".why", ".fix")))
    if any(spec.insist for spec in run.recipe.rewards):
        run.warn(text("run.reward_insisted"))
    opened = open_rewards(run.recipe.rewards, folder=run.folder.path, seed=run.recipe.seed)
    return run.exits.enter_context(opened)


def describe_rollouts(run: Run, rewards: RewardSet | None) -> tuple[Metric, ...]:
    """Return the metrics that rollouts add to those of the objective."""
    if rewards is None:
        return ()
    settings = run.recipe.sampling
    more = []
    if len(rewards.names) > 1:
        more = [Metric(name=f"rewards/{name}/mean", better="higher", first=True) for name in rewards.names]
    spreads = [Metric(name=f"rewards/{name}/std") for name in rewards.names] if more else []
    kl = (Metric(name="kl", first=True),) if settings.loss == "rloo" and settings.beta else ()
    by = keeps_by(run.recipe.run)
    drawn = () if by in ("last", "loss") else (
        Metric(name=f"{DRAWN}{by}", unit="share", better="higher", first=True),
    )  # fmt: skip
    redrawn = (Metric(name="groups/redrawn"),) if settings.redraws else ()
    return (*METRICS[:1], *more, *drawn, *METRICS[1:], *spreads, *kl, *redrawn)


def choose_look(recipe: Recipe, objective: Objective, data: PreparedData) -> Recipe:
    """Return the recipe with when held-out questions are asked, and what the best is kept by, where nobody said so."""
    steps = recipe.optim.max_steps or math.ceil(
        recipe.optim.epochs * math.ceil(len(data.train) / recipe.optim.batch_size) * objective.updates
    )
    changes: dict[str, Any] = {}
    if not recipe.run.eval_every:
        changes["run.eval_every"] = min(MOST_STEPS_BETWEEN, max(1, steps // LOOKS))
    if recipe.run.best_checkpoint == "auto":
        held_out = data.asked_held_out
        suiting = suggest_for(read_asked(held_out, range(min(LOOKED_AT, len(held_out)))))
        changes["run.best_checkpoint"] = suiting[0].name if suiting else "loss"
    return change_recipe(recipe, changes)


def begin_rollouts(
    run: Run, trainer: Trainer, loaded: Loaded, data: PreparedData, rewards: RewardSet | None
) -> None:
    """Let the trainer's steps learn from what the model draws, before it goes on from any checkpoint."""
    if rewards is None:
        return
    drawer = Drawer(trainer, loaded.model, loaded.tokenizer, data.train, data.asked, rewards)
    run.exits.callback(drawer.close)
    file = CompletionsFile(run.folder.path, rewards.names)
    updates = run.recipe.sampling.updates

    def note(number: int, groups: Sequence[AnswerGroup], advantages: np.ndarray) -> None:
        prompts = [say_prompt(loaded.tokenizer, group.prompt) for group in groups]
        file.forget_after(number * updates)
        file.write(number * updates + 1, groups, prompts, advantages)

    weights = dict(zip(rewards.names, rewards.weights, strict=True))
    alarms = RolloutAlarms(run.recipe.sampling.group_size, weights)

    def hear(event: RunEvent) -> None:
        run.emit(event)
        for said in alarms.hear(event):
            run.emit(Warned(step=trainer.state.step, message=said))

    trainer.hooks.emit = hear
    trainer.windows = Rollouts(
        trainer,
        run.recipe.sampling,
        drawer.draw,
        start=lambda: StartWeights(trainer.trained, run.folder.path, trainer.state.step),
        tell=lambda rows: run.beat("train", trainer.state.step + 1, rows),
        alarms=alarms,
        note=note,
    )
