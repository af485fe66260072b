"""Whom to load for answers: a run's result or checkpoint beside its base, or a base model alone."""

from __future__ import annotations

import traceback
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import MachineFacts
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.machine.failures import diagnose
from studio.machine.workspace import Workspace
from studio.models.catalog import inspect_model
from studio.models.resolve import open_packed
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import plan
from studio.services.machine_state import hide_broken_triton
from studio.services.results import find_result


def find_partner(
    workspace: Workspace, machine: MachineFacts, run: str, checkpoint: str, recipe: Recipe | None
) -> Any:
    """Return the engine.chat.Partner for `run` at `checkpoint`, or for the model of `recipe`. Raises StudioError."""
    hide_broken_triton(machine)
    from studio.engine.chat import Partner
    from studio.engine.run_folder import find_run

    if not run:
        if recipe is None:
            raise StudioError(text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix"))
        source, revision = recipe.model.source, recipe.model.revision
        facts = open_packed(inspect_model(source, revision=revision), revision)
        return Partner(facts=facts, plan=plan(machine, recipe, facts), recipe=recipe)
    found = find_result(find_run(workspace.runs, run), machine, checkpoint)
    if found.recipe.objective == "reward":
        raise StudioError(*(text(f"chat.scores{part}") for part in ("", ".why", ".fix")))
    return Partner(
        facts=found.facts,
        plan=found.plan,
        recipe=found.recipe,
        folder=found.folder,
        record=found.record,
        place=found.place,
    )


def has_other_base(workspace: Workspace, partner: Any) -> bool:
    """Return whether the base under the adapter of `partner` changed since: its words look like any others then."""
    from studio.engine.base_hash import hash_base

    record = partner.record
    if record is None or not record.base_hash or partner.recipe.adapter.method == "full":
        return False
    # Remembered where a run or a talk read these files before; else 4 s for 16 GB, once.
    return hash_base(partner.facts.folder, Remembered(workspace.remembered)) != record.base_hash


def explain_failure(error: Exception) -> StudioError:
    """Return what is told of what went wrong while a model was loaded or answered; its traceback goes to the log."""
    from studio.engine.oom_fallback import is_out_of_memory

    if isinstance(error, StudioError):
        return error
    if is_out_of_memory(error):
        return StudioError(text("chat.memory"), text("chat.memory.why"), text("chat.memory.fix"), exit_code=1)
    traceback.print_exception(error)
    known = diagnose(error)
    fix = known.fixes[0].title if known.fixes else text("ui.unforeseen.fix")
    return StudioError(known.what, known.why, fix, exit_code=1)
