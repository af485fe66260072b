"""A run's result, or one of its checkpoints: what chat and export need to load it."""

from __future__ import annotations

from dataclasses import dataclass

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder
from studio.engine.run_states import RESULT, find_weights
from studio.models.catalog import inspect_model
from studio.models.resolve import open_packed
from studio.planning.run_plan import plan


@dataclass(frozen=True, slots=True)
class Result:
    """What a run made, and how this machine would load it."""

    folder: RunFolder
    record: RunRecord
    facts: ModelFacts
    plan: BackendPlan
    recipe: Recipe
    place: str = RESULT
    """Its result, or the name of a checkpoint."""


def find_result(folder: RunFolder, machine: MachineFacts, place: str = RESULT) -> Result:
    """Return the result of a run, or its checkpoint `place`.

    Raises StudioError when it has none, or it or its base is gone.
    """
    record, recipe = folder.read_record(), folder.read_recipe()
    if place == RESULT:
        _require_result(folder, record)
    else:
        find_weights(folder, place)
    facts = open_packed(
        inspect_model(recipe.model.source, revision=recipe.model.revision), recipe.model.revision
    )
    return Result(folder, record, facts, plan(machine, recipe, facts), recipe, place)


def _require_result(folder: RunFolder, record: RunRecord) -> None:
    if record.state != "finished" or not record.artifact:
        why, fix = text("run.no_result.why"), text("run.no_result.fix")
        raise StudioError(text("run.no_result", run=folder.run), why, fix)
    if not (folder.path / record.artifact).is_dir():
        why, fix = text("run.result_gone.why"), text("run.result_gone.fix")
        raise StudioError(text("run.result_gone", run=folder.run), why, fix)
