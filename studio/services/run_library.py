"""The shelf: the runs that there are, what they weigh and show, and what can be done with a run that is not on."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_json
from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.facts import MachineFacts, Verdict
from studio.core.i18n import Text, literal, text
from studio.core.json_file import read_json
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, read_value
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RUN_NAME, RunFolder, find_run, remove_run
from studio.machine.failures import refuse_system
from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import is_worked_on
from studio.services.reproducibility import find_differences
from studio.services.result_import import import_result, is_result
from studio.services.run_import import clean_name, import_run
from studio.services.run_summary import CurveRow, RunSummary, mark, read_curve, summarise, worked_s
from studio.services.runs import Runs

CACHE_VERSION = 2
MOST_COMPARED = 5
PLAN_PARTS = ("device", "dtype", "attention", "quantization", "optimizer")


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryEntry:
    """One run as the Runs screen lists it."""

    record: RunRecord
    recipe: Recipe | None
    """None where recipe.json is damaged or of a newer studio."""
    size_bytes: int
    spark: tuple[float, ...]
    """At most 60 losses, evenly spread over its steps."""
    resumable: Verdict
    """Whether it can go on, and from where, or why not."""
    took_s: float
    """Seconds that it worked, all attempts together."""
    best_eval_loss: float | None = None
    """The lowest evaluation loss; None without an evaluation."""
    best_eval_reward: float | None = None
    """The highest reward of held-out questions, where it learned from its own answers."""
    checkpoint: int | None = None
    """The step of its newest whole checkpoint; None without one."""

    @property
    def answers(self) -> bool:
        """Whether it can be chatted with and exported: its result, or else a checkpoint."""
        return bool(self.record.artifact) or self.checkpoint is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What differs between runs; rows whose values are the same in all are left out."""

    runs: tuple[str, ...]
    settings: tuple[tuple[str, tuple[Any, ...]], ...]
    """(path in the recipe, its value in each run; None where the run has no recipe that reads)."""
    environment: tuple[tuple[str, tuple[Any, ...]], ...]
    """(gpu, base, base_hash, data_hash, package.NAME, plan.NAME; its value in each run, "" where unknown)."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What was read of one run, good as long as its marks are the same."""

    marks: tuple[int, ...]
    record: RunRecord | None
    """None for a damaged run.json: the run is not listed."""
    recipe: Recipe | None
    summary: RunSummary


class RunLibrary:
    """The runs of one workspace; methods may be called from any thread."""

    def __init__(
        self,
        workspace: Workspace,
        runs: Runs,
        machine: Callable[[], MachineFacts],
        on_delete: Callable[[str], None] = lambda run: None,
        release: Callable[[str], str] = lambda run: "",
    ) -> None:
        """`on_delete` is told the id of each run that is deleted.

        `release` frees what is loaded of a run and returns who still works with it: export, test, talk, or "".
        """
        self.workspace, self._runs = workspace, runs
        self._machine, self._on_delete, self._release = machine, on_delete, release
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._cache = workspace.root / "cache" / "shelf.json"
        self._summaries: dict[str, Any] | None = None

    def entries(self) -> tuple[LibraryEntry, ...]:
        """Return the runs, newest first; damaged ones are left out. 500 known ones take 0.1 s."""
        with self._lock:
            kept = {folder.run: found for folder, found in self._look()}
            self._kept = kept
        return tuple(self._entry(found) for found in kept.values() if found.record is not None)

    def rename(self, run: str, name: str) -> None:
        """Give a run another name, also the one that is on; its id stays.

        Raises StudioError for no such run or a name without letters; OSError.
        """
        name = clean_name(name)
        if not name:
            raise _refusal("shelf.name")
        folder = find_run(self.workspace.runs, run)
        folder.change_record(lambda record: dataclasses.replace(record, name=name))

    def delete(self, run: str) -> int:
        """Delete a run with its checkpoints and result, exports stay; return the freed bytes.

        Raises StudioError for the run that is on, here or in another process, for one that is being exported, tested
        or talked with, and for files that are held open.
        """
        folder = find_run(self.workspace.runs, run)
        if run == self._runs.active or is_worked_on(self.workspace, run):
            raise _refusal("shelf.active", run=run)
        worker = self._release(run)
        if worker:
            raise StudioError(
                text("shelf.used", run=run), text(f"shelf.used.{worker}"), text("shelf.used.fix")
            )
        size_bytes = summarise(folder).size_bytes
        try:
            remove_run(folder)
        except OSError as error:
            raise StudioError(
                text("shelf.held", run=run), refuse_system(error).what, text("shelf.held.fix")
            ) from error
        self._runs.logs.drop(run)
        self._on_delete(run)
        return size_bytes

    def duplicate(self, run: str) -> Recipe:
        """Return the run's recipe under a name of its own, made from the run's, for the form. Raises StudioError."""
        folder = find_run(self.workspace.runs, run)
        recipe = folder.read_recipe()
        names = {each.name for each in (entry.record for entry in self.entries())}
        name = folder.read_name(recipe.name) or run
        shorter = re.sub(r"-\d{1,2}$", "", name)
        stem, number = (shorter if shorter in names else name), 2
        while f"{stem}-{number}" in names:
            number += 1
        return dataclasses.replace(recipe, name=f"{stem}-{number}")

    def again(self, run: str) -> tuple[Recipe, tuple[Text, ...]]:
        """Return the run's very recipe, seed included, and what differs today from what it ran with.

        Takes seconds where the base is large. Raises StudioError for a recipe that cannot be read.
        """
        folder = find_run(self.workspace.runs, run)
        recipe = folder.read_recipe()
        differences = find_differences(
            folder.read_record(), recipe, self._machine(), self.workspace.data_cache
        )
        return recipe, differences

    def compare(self, runs: Sequence[str]) -> Comparison:
        """Return what differs between 2 to 5 runs. Raises StudioError for fewer, more, or one that is none."""
        if not 2 <= len(set(runs)) <= MOST_COMPARED or len(set(runs)) != len(runs):
            raise _refusal("shelf.compare", most=MOST_COMPARED)
        folders = [find_run(self.workspace.runs, run) for run in runs]
        recipes = [_read_recipe(folder) for folder in folders]
        settings = {
            knob.path: tuple(read_value(recipe, knob.path) if recipe else None for recipe in recipes)
            for knob in knobs_of(Recipe)
            if knob.path != "name"
        }
        surroundings = [_read_surroundings(folder) for folder in folders]
        names = dict.fromkeys(name for each in surroundings for name in each)
        environment = {name: tuple(each.get(name, "") for each in surroundings) for name in names}
        return Comparison(
            runs=tuple(runs), settings=_differing(settings), environment=_differing(environment)
        )

    def import_run(self, folder: Path) -> str:
        """Copy a run's folder from elsewhere into the workspace; returns its id, a new one where its own is taken.

        Everything in it is examined; checkpoints are left behind. An adapter or a model that another tool made becomes
        a finished run. Raises StudioError.
        """
        try:
            self.workspace.runs.mkdir(parents=True, exist_ok=True)
            if is_result(Path(folder).expanduser()):
                return import_result(folder, self.workspace.runs).run
            return import_run(folder, self.workspace.runs)
        except OSError as error:
            raise refuse_system(error) from error

    def curves(self, runs: Sequence[str]) -> dict[str, tuple[CurveRow, ...]]:
        """Return each run's ("step", step, loss) and ("eval", step, loss), at most 1000 of each. Raises StudioError."""
        return {run: read_curve(find_run(self.workspace.runs, run)) for run in runs[:MOST_COMPARED]}

    # Inside -----------------------------------------------------------------------------------------------------

    def _look(self) -> list[tuple[RunFolder, _Kept]]:
        """Return what is known of each run, newest first; only what changed is read."""
        found, changed = [], False
        for path in self.workspace.runs.iterdir() if self.workspace.runs.is_dir() else ():
            folder = RunFolder(path)
            if not RUN_NAME.fullmatch(folder.run):
                continue  # one that is being deleted or imported
            try:
                marks = mark(folder)
            except OSError:
                continue  # no run
            kept = self._kept.get(folder.run)
            if kept is None or kept.marks != marks:
                kept = self._read(folder, marks)
                changed = changed or folder.run != self._runs.active
            found.append((folder, kept))
        if changed:
            self._keep_summaries(found)
        created = {folder.run: kept.record.created_s if kept.record else 0.0 for folder, kept in found}
        return sorted(found, key=lambda each: (created[each[0].run], each[0].run), reverse=True)

    def _read(self, folder: RunFolder, marks: tuple[int, ...]) -> _Kept:
        try:
            record = folder.read_record()
        except StudioError:
            record = None
        known = self._read_summaries().get(folder.run)
        summary = None
        with suppress(KeyError, TypeError, ValueError, IndexError):
            if known and tuple(known[0]) == marks:
                size_bytes, spark, span_s, checkpoint, best = known[1:]
                summary = RunSummary(
                    int(size_bytes), tuple(map(float, spark)), float(span_s), checkpoint, best
                )
        return _Kept(marks, record, _read_recipe(folder), summary or summarise(folder))

    def _read_summaries(self) -> dict[str, Any]:
        """Return what the last process knew: reading the events of 500 long runs anew takes many seconds."""
        if self._summaries is None:
            self._summaries = {}
            with suppress(StudioError, AttributeError):
                data = read_json(self._cache)
                if data.get("version") == CACHE_VERSION and isinstance(data.get("runs"), dict):
                    self._summaries = data["runs"]
        return self._summaries

    def _keep_summaries(self, found: list[tuple[RunFolder, _Kept]]) -> None:
        runs = {
            folder.run: [kept.marks, *dataclasses.astuple(kept.summary)]
            for folder, kept in found
            if folder.run != self._runs.active
        }
        self._summaries = runs
        with suppress(OSError):  # a full disk: they are read anew next time
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._cache, {"version": CACHE_VERSION, "runs": to_json(runs)})

    def _entry(self, kept: _Kept) -> LibraryEntry:
        record = self._runs.truthful(kept.record)
        return LibraryEntry(
            record=record,
            recipe=kept.recipe,
            size_bytes=kept.summary.size_bytes,
            spark=kept.summary.spark,
            resumable=judge_resume(record, kept.recipe, kept.summary.checkpoint),
            took_s=worked_s(record, kept.summary),
            best_eval_loss=kept.summary.best_eval_loss,
            best_eval_reward=kept.summary.best_eval_reward,
            checkpoint=kept.summary.checkpoint,
        )


def judge_resume(record: RunRecord, recipe: Recipe | None, checkpoint: int | None) -> Verdict:
    """Return whether a run can go on: `record` as truthful, the step of its newest `checkpoint`."""
    if record.state in ("running", "paused", "waiting"):
        return Verdict(ok=False, reason=text("shelf.resume.running"))
    if record.state == "finished":
        return Verdict(ok=False, reason=text("shelf.resume.finished"))
    if recipe is None:
        return Verdict(ok=False, reason=text("shelf.resume.recipe"))
    for source in (recipe.model.source, recipe.model.adapter, recipe.data.source, recipe.data.validation):
        if _is_gone(source):
            return Verdict(ok=False, reason=text("shelf.resume.gone", name=literal(Path(source).name)))
    if checkpoint is None:
        return Verdict(ok=True, reason=text("shelf.resume.anew"))
    return Verdict(ok=True, reason=text("shelf.resume.from", step=checkpoint))


def _is_gone(source: str) -> bool:
    """Return whether `source` is a full local path that leads nowhere.

    A network share is not asked: a recipe that was imported could name any computer.
    """
    if source.startswith(("\\\\", "//")) or not Path(source).is_absolute():
        return False
    try:
        return not Path(source).exists()
    except (OSError, ValueError):
        return True


def _read_recipe(folder: RunFolder) -> Recipe | None:
    try:
        return folder.read_recipe()
    except StudioError:
        return None


def _read_surroundings(folder: RunFolder) -> dict[str, Any]:
    """Return what a run ran with, by name. Raises StudioError for a damaged record."""
    record = folder.read_record()
    found: dict[str, Any] = {
        name: getattr(record, name) for name in ("gpu", "base", "base_hash", "data_hash")
    }
    with suppress(StudioError, AttributeError, KeyError, TypeError):
        plan = read_json(folder.path / "plan.json")
        found |= {f"plan.{name}": plan[name]["value"] for name in PLAN_PARTS}
        found |= {f"plan.kernels.{op}": choice["value"] for op, choice in sorted(plan["kernels"].items())}
    return found | {f"package.{name}": release for name, release in sorted(record.packages.items())}


def _differing(rows: dict[str, tuple[Any, ...]]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    return tuple((name, values) for name, values in rows.items() if any(v != values[0] for v in values[1:]))


def _refusal(id: str, **values: object) -> StudioError:
    return StudioError(text(id, **values), text(f"{id}.why"), text(f"{id}.fix"))
