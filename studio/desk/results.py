"""A finished run's result: what chat and export need to load it, and its way into a folder of its own."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.files import replace_file
from studio.core.record import RunRecord
from studio.core.text import text
from studio.engine.checkpoint import require_space
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


@dataclass(frozen=True, slots=True)
class Export:
    """Where an export lies and how large it is."""

    path: Path
    size_bytes: int


def find_result(folder: RunFolder, machine: MachineFacts) -> Result:
    """Return the result of a run. Raises StudioError when it has none or its base is gone."""
    record = folder.read_record()
    if record.state != "finished" or not record.artifact:
        why, fix = text("run.no_result.why"), text("run.no_result.fix")
        raise StudioError(text("run.no_result", run=folder.run), why, fix)
    recipe = folder.read_recipe()
    facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
    return Result(folder, record, facts, plan(machine, recipe, facts))


def export_result(result: Result, target: str, final: Path, *, overwrite: bool) -> Export:
    """Write the result as `target` into the folder `final`, staged beside it and renamed.

    Raises StudioError for an unknown target, a full disk, or a folder that exists when `overwrite` is false; OSError.
    """
    from studio.engine.exporters import EXPORTERS, get_exporter
    from studio.engine.exporters.exporter import ExportJob

    exporter = get_exporter(target)
    if exporter is None:
        fix = text("export.unknown.fix", known=[each.name for each in EXPORTERS])
        raise StudioError(text("export.unknown", target=target), text("export.unknown.why"), fix)
    if final.exists() and not overwrite:
        why, fix = text("export.exists.why"), text("export.exists.fix")
        raise StudioError(text("export.exists", path=final.name), why, fix)
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = final.with_name(f".{final.name}.staging")
    shutil.rmtree(staging, ignore_errors=True)
    job = ExportJob(result.folder.path, result.record, result.facts, result.plan, staging)
    try:
        require_space(final.parent, exporter.size_bytes(job))
        staging.mkdir()
        exporter.write(job)
        shutil.rmtree(final, ignore_errors=True)
        replace_file(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Export(final, sum(path.stat().st_size for path in final.rglob("*") if path.is_file()))
