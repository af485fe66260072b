"""How fast earlier runs on this machine were, so that the time of the next one of their kind can be told."""

from __future__ import annotations

import dataclasses
import statistics
import threading
from dataclasses import dataclass
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe
from studio.engine.run_folder import RunFolder

TAIL_BYTES = 128 * 2**10
"""Of a run's log only its end is read: a few hundred steps."""
LEAST_STEPS = 4
"""Fewer tell nothing: the first steps compile kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """What one run measured."""

    run: str
    tokens_per_s: float
    """Median over its last steps."""
    step_s: float
    """Median of the time from step to step."""
    same_steps: bool = False
    """Whether its steps hold the same as those asked about: data, length, batch."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of one run."""

    folder: RunFolder
    stamp: tuple[int, int]
    created_s: float = 0.0
    finished: Recipe | None = None
    """Its recipe, where it came to its end."""
    kind: tuple[object, ...] = ()
    steps: tuple[object, ...] = ()


class Paces:
    """The paces of the runs in a folder; a run is read again only when it changed. Methods are for any thread."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._paces: dict[str, tuple[tuple[int, int], Throughput | None]] = {}

    def find(self, recipe: Recipe, gpu: str) -> Throughput | None:
        """Return the pace of the newest run with the recipe's model, quantisation and method on the same processor.

        One whose steps hold the same goes first. `gpu`: the card's name, "" for the processor.
        """
        kind, steps, best = (gpu, *_kind(recipe)), _steps(recipe), None
        for known in self._read():
            if known.kind != kind or (pace := self._measure(known)) is None:
                continue
            if known.steps == steps:
                return dataclasses.replace(pace, same_steps=True)
            best = best or pace
        return best

    def has_finished_run(self, recipe: Recipe) -> bool:
        """Return whether a run of this very recipe, its name apart, came to its end."""
        unnamed = dataclasses.replace(recipe, name="")
        return any(known.finished == unnamed for known in self._read())

    def _measure(self, known: _Known) -> Throughput | None:
        """Return the pace of a run; logs are read only of the runs that are asked for."""
        run = known.folder.run
        kept = self._paces.get(run)
        if kept is None or kept[0] != known.stamp:
            kept = self._paces[run] = (known.stamp, read_pace(known.folder) if known.stamp[1] else None)
        return kept[1]

    def _read(self) -> list[_Known]:
        """Return what is known of every run, the newest first."""
        with self._lock:
            before, self._known = self._known, {}
            for path in self.runs.iterdir() if self.runs.is_dir() else ():
                stamp = (_changed(path / "run.json"), _changed(path / "events.jsonl"))
                if not stamp[0]:
                    continue
                known = before.get(path.name)
                self._known[path.name] = (
                    known if known is not None and known.stamp == stamp else _read_run(RunFolder(path), stamp)
                )
            return sorted(self._known.values(), key=lambda known: known.created_s, reverse=True)


def _read_run(folder: RunFolder, stamp: tuple[int, int]) -> _Known:
    try:
        recipe, record = folder.read_recipe(), folder.read_record()
    except (StudioError, OSError):
        return _Known(folder, stamp)  # a damaged run tells nothing
    kind = (record.gpu, *_kind(recipe))
    finished = dataclasses.replace(recipe, name="") if record.state == "finished" else None
    return _Known(folder, stamp, record.created_s, finished, kind, _steps(recipe))


def read_pace(folder: RunFolder) -> Throughput | None:
    """Return the pace at the end of a run's log; None with fewer than LEAST_STEPS, or where it cannot be read."""
    try:
        with folder.events.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None  # it was deleted just now
    steps: list[tuple[float, float]] = []
    for line in lines[1:] if size > TAIL_BYTES else lines:
        if b'"step_logged"' not in line:
            continue
        try:
            event = parse_json(line)
            steps.append((float(event["time_s"]), float(event["tokens_per_s"])))
        except (ValueError, KeyError, TypeError):
            continue  # a torn last line
    gaps = [
        after - before for (before, _), (after, _) in zip(steps, steps[1:], strict=False) if after > before
    ]
    if len(steps) < LEAST_STEPS or not gaps:
        return None
    return Throughput(
        run=folder.run,
        tokens_per_s=statistics.median(speed for _, speed in steps),
        step_s=statistics.median(gaps),
    )


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _kind(recipe: Recipe) -> tuple[object, ...]:
    """What decides the speed of a token: the model and the way of training."""
    model = recipe.model
    return model.source, model.revision, model.quantization, recipe.adapter.method, recipe.run.kernels


def _steps(recipe: Recipe) -> tuple[object, ...]:
    """What decides how much a step holds."""
    data, optim = recipe.data, recipe.optim
    return data.source, data.max_length, data.fill, optim.batch_size
