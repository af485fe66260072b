"""The training objectives, one file each; adding one is its file and its line in OBJECTIVES. Imports no torch."""

from __future__ import annotations

from studio.core.recipe import COMPARISONS, SAMPLING, PreferenceSpec, Recipe, SamplingSpec
from studio.engine.objectives.cpo import CPO
from studio.engine.objectives.dpo import DPO
from studio.engine.objectives.grpo import GRPO
from studio.engine.objectives.kto import KTO
from studio.engine.objectives.objective import Objective
from studio.engine.objectives.orpo import ORPO
from studio.engine.objectives.pretrain import PRETRAIN
from studio.engine.objectives.reward import REWARD
from studio.engine.objectives.sft import SFT
from studio.engine.objectives.simpo import SIMPO
from studio.engine.objectives.weighted_sft import WEIGHTED_SFT
from studio.planning.recipe_check import refuse_comparison

OBJECTIVES: tuple[Objective, ...] = (SFT, PRETRAIN, WEIGHTED_SFT, DPO, SIMPO, CPO, ORPO, KTO, REWARD, GRPO)


def read_objective(name: str, recipe: Recipe) -> Objective:
    """Return the objective called `name` as `recipe` sets it. Raises as get_objective() does."""
    return get_objective(name, recipe.sampling if name in SAMPLING else recipe.preference)


def get_objective(name: str, settings: PreferenceSpec | SamplingSpec | None = None) -> Objective:
    """Return the objective called `name` with its part of a recipe.

    Raises KeyError for an unknown name (check() refuses it before), StudioError for a loss that is none of its.
    """
    found = {objective.name: objective for objective in OBJECTIVES}[name]
    if settings is None:
        return found
    if name in COMPARISONS and settings.loss not in ("auto", *COMPARISONS[name]):
        raise refuse_comparison(name, settings.loss)
    return found.with_settings(settings)
