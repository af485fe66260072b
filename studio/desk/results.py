"""A finished run's result: what chat and export need to load it."""

from __future__ import annotations

from dataclasses import dataclass

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.record import RunRecord
from studio.core.text import text
from studio.engine.folder import RunFolder
from studio.host.plan import plan
from studio.models.catalog import inspect_model


@dataclass(frozen=True, slots=True)
class Result:
    """A run that ended well, and how this machine would load what it made."""

    folder: RunFolder
    record: RunRecord
    facts: ModelFacts
    plan: BackendPlan


def find_result(folder: RunFolder, machine: MachineFacts) -> Result:
    """Return the result of a run. Raises StudioError when it has none, or it or its base is gone."""
    record = folder.read_record()
    if record.state != "finished" or not record.artifact:
        why, fix = text("run.no_result.why"), text("run.no_result.fix")
        raise StudioError(text("run.no_result", run=folder.run), why, fix)
    if not (folder.path / record.artifact).is_dir():
        why, fix = text("run.result_gone.why"), text("run.result_gone.fix")
        raise StudioError(text("run.result_gone", run=folder.run), why, fix)
    recipe = folder.read_recipe()
    facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
    return Result(folder, record, facts, plan(machine, recipe, facts))
