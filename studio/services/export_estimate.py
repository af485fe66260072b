"""What an export will take, lose and be checked by, before it begins; and what it must not begin without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.engine.exporters import EXPORTERS, get_exporter
from studio.engine.exporters.exporter import Exporter
from studio.models.gguf.llama_cpp import is_there

TARGETS = tuple(exporter.name for exporter in EXPORTERS)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an export of `target` will take; `problem` says why there can be none now."""

    target: str
    size_bytes: int = 0
    disk_bytes: int = 0
    """Free on the disk that it goes to."""
    memory_bytes: int = 0
    free_bytes: int = 0
    """Free memory of the processor."""
    problem: Text | None = None
    place: str = "python"
    """Where it is used; see the exporters' PLACES."""
    loss_kl: float = 0.0
    """Nats a token that it is usually off the trained model."""
    checked_by: str = "transformers"
    """What will open it before it counts."""


def describe(target: str, **found: Any) -> Estimate:
    """Return the Estimate of a form with what is true of it for every run."""
    exporter = get_known_exporter(target)
    checked_by = exporter.checked_by
    if checked_by == "llama_cpp" and not is_there():
        checked_by = "studio"
    return Estimate(target, place=exporter.place, loss_kl=exporter.loss_kl, checked_by=checked_by, **found)


def get_known_exporter(target: str) -> Exporter:
    """Return the exporter called `target`. Raises StudioError when there is none."""
    exporter = get_exporter(target)
    if exporter is None:
        raise _refuse_target(target)
    return exporter


def _refuse_target(target: str) -> StudioError:
    fix = text("export.unknown.fix", known=list(TARGETS))
    return StudioError(text("export.unknown", target=target), text("export.unknown.why"), fix)


def find_existing(path: Path) -> Path:
    """Return `path`, or the nearest folder above it that there is."""
    return next((each for each in (path, *path.parents) if each.exists()), path)
