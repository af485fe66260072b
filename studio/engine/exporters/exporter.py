"""What an exporter is: what a form of export takes, how it is written and checked, and how others load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import Text, text
from studio.core.run_record import RunRecord

PROBE = "The quick brown fox jumps over the lazy dog. 0123456789"
"""What the written files and what they were made from must compute the same of."""


PLACES = ("computer", "server", "mac", "python")
"""Where a model is used: on one's own computer, on a server, on a Mac, in Python."""


class ExportStopped(StudioError):
    """The person asked for the end."""

    def __init__(self) -> None:
        super().__init__(text("export.stopped"), text("export.stopped.why"), text("export.stopped.fix"))

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes."""
        return ExportStopped, ()


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What a file may take and lose, for the form that is chosen by both; 0 where nobody said."""

    size_bytes: int = 0
    kl: float = 0.0
    """Nats a token: 0.01 is a perplexity of 1 % more."""


NO_LIMITS = FileLimits()


@dataclass(frozen=True, slots=True)
class ExportJob:
    """A finished run and where its result goes."""

    run_folder: Path
    record: RunRecord
    facts: ModelFacts
    plan: BackendPlan
    target: Path
    """A folder, empty but for what an earlier attempt kept (kept_parts.py); the caller stages and renames it."""
    tell: Callable[[Text], None] = lambda phase: None
    """Hears what is being done."""
    should_stop: Callable[[], bool] = lambda: False
    measured: Callable[[int, int], None] = lambda done, total: None
    """Hears how many parts of how many were measured."""
    limits: FileLimits = NO_LIMITS

    def begin(self, phase: Text) -> None:
        """Tell the next part. Raises ExportStopped when the end was asked for before it."""
        self.go_on()
        self.tell(phase)

    def go_on(self) -> None:
        """Raises ExportStopped when the end was asked for; long parts ask now and then."""
        if self.should_stop():
            raise ExportStopped


@dataclass(frozen=True, slots=True)
class Exporter:
    """One form of export. Only `write` may import torch; job.target does not matter to the others."""

    name: str
    size_bytes: Callable[[ExportJob], int]
    """What it will take on the disk."""
    memory_bytes: Callable[[ExportJob], int]
    """What writing and checking it take of the processor's memory; 0 where a card does all."""
    write: Callable[[ExportJob], None]
    """Fills job.target and loads it again: what it computes must be what it was made from.

    Raises StudioError (also when that differs), ExportStopped or OSError.
    """
    load_lines: Callable[[str, str], tuple[str, ...]]
    """load_lines(folder, base): the Python that loads it; () when the base is not known ("") and needed."""
    find_problem: Callable[[ExportJob], Text | None] = lambda job: None
    """Why this result cannot have this form; None when it can."""
    place: str = "python"
    """Where it is used: one of PLACES."""
    loss_kl: float = 0.0
    """Nats a token that it is usually off the trained model: measured on the demo; 0 where nothing is rounded off."""
    checked_by: str = "transformers"
    """What opens it before it counts: `llama_cpp` where that is installed; "": nothing does."""
    merges: bool = False
    """Whether weights of the base become part of it: they must be those that were trained on."""


def require_memory(needed_bytes: int, name: str) -> None:
    """Raise StudioError when writing and checking need more than the free memory."""
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        needed, free = f"{needed_bytes / 2**30:.1f}", f"{free_bytes / 2**30:.1f}"
        raise StudioError(
            text("export.memory", name=name),
            text("export.memory.why", needed=needed, free=free),
            text("export.memory.fix"),
        )


def probe_ids(tokenizer: Any) -> list[int]:
    """Return the token ids on which a written model is compared."""
    return tokenizer(PROBE)["input_ids"]
