"""What an exporter is: a name, and a function that writes a run's result into a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from studio.core.facts import BackendPlan, ModelFacts
from studio.core.record import RunRecord


@dataclass(frozen=True, slots=True)
class ExportJob:
    """A finished run and where its result goes."""

    run_folder: Path
    record: RunRecord
    facts: ModelFacts
    plan: BackendPlan
    target: Path
    """An empty folder; the caller stages and renames it."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """`write(job)` fills job.target. Raises StudioError or OSError; `size_bytes(job)` says beforehand what it needs."""

    name: str
    size_bytes: Callable[[ExportJob], int]
    write: Callable[[ExportJob], None]
