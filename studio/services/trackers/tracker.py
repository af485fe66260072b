"""What a tracker is: where it keeps a run's points, which are there already, and how more are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PROJECT = "finetune-studio"


@dataclass(frozen=True, slots=True)
class StepValues:
    """Numbers of one step, by series."""

    step: int
    values: Mapping[str, float]
    time_s: float


class OpenTracker(Protocol):
    """A tracker's own file or folder, opened for one run."""

    written: set[tuple[str, int]]
    """(series, step) of every point that is there already: none is written twice."""

    def write(self, points: Iterable[StepValues]) -> None:
        """Write points; what it keeps them in is on the disk afterwards."""

    def close(self) -> None:
        """End the run in the tracker's own way."""


@dataclass(frozen=True, slots=True)
class Tracker:
    """A tracker by name. `open` alone imports its package, in the mirror's own process."""

    name: str
    package: str
    """What `pip install` takes."""
    module: str
    open: Callable[[Path, str, Mapping[str, Any]], OpenTracker]
    """open(folder, run, settings): `folder` is the tracker's own, of all runs; settings are plain values by name."""
    environment: Callable[[Path], Mapping[str, str]] = lambda folder: {}
    """What its package reads when it is imported: the mirror is started with it."""
