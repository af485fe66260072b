"""The training objectives, one file each; adding one is its file and its line in OBJECTIVES. Imports no torch."""

from __future__ import annotations

from studio.engine.objectives.objective import Objective
from studio.engine.objectives.pretrain import PRETRAIN
from studio.engine.objectives.sft import SFT
from studio.engine.objectives.weighted_sft import WEIGHTED_SFT

OBJECTIVES: tuple[Objective, ...] = (SFT, PRETRAIN, WEIGHTED_SFT)


def get_objective(name: str) -> Objective:
    """Return the objective called `name`. Raises KeyError for an unknown name (check() refuses it before)."""
    return {objective.name: objective for objective in OBJECTIVES}[name]
