"""Exports: what one will take, writing it with progress and a stop, the list of those made, and their deletion."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.engine.checkpoint import require_space
from studio.engine.exporters.exporter import NO_LIMITS, ExportStopped, FileLimits, require_memory
from studio.engine.exporters.gguf_file import measure_curve
from studio.engine.run_folder import RUN_NAME
from studio.engine.run_states import RESULT
from studio.machine.failures import refuse_system
from studio.machine.settings import read_settings
from studio.machine.workspace import Workspace, count_bytes
from studio.models.file_hashes import hash_weights
from studio.services.export_estimate import (
    TARGETS,
    Estimate,
    describe,
    find_existing,
    get_known_exporter,
)
from studio.services.export_folder import (
    NOTE,
    close_staging,
    is_being_written,
    is_ours,
    leave_staging,
    list_kept,
    open_staging,
    refuse_foreign,
    staging_of,
    sweep_exports,
)
from studio.services.export_source import (
    Curve,
    keep_limits,
    make_task,
    name_export,
    name_parts,
    name_state,
    read_curve,
    read_limits,
    take_checkpoint,
)
from studio.services.results import Result
from studio.services.runs import Runs
from studio.services.worker import Job, Worker

NAME = re.compile(f"{RUN_NAME.pattern}-({'|'.join(TARGETS)})")
STATE = re.compile(r"(.+?)(?:-(step-\d{8}))?")
"""A run and the checkpoint of it."""
MEASURED = "gguf_fit"
"""The form whose curve can be measured before it is written."""
ASK_S = 0.1
"""How often who waits for an export is asked whether it is to end."""


@dataclass(frozen=True, slots=True)
class Export:
    """Where an export lies and how large it is."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ExportItem:
    """An export in the workspace's folder."""

    name: str
    """The folder's."""
    path: Path
    run: str
    target: str
    base: str
    """What an adapter's base is loaded from: a hub id or folder."""
    size_bytes: int
    written_s: float
    files: tuple[str, ...]
    ours: bool = True
    """Whether an export wrote it: only then it may be deleted here."""


@dataclass(frozen=True, slots=True)
class KeptExport:
    """An export that was stopped or killed, of which parts are kept."""

    name: str
    """Of its folder, once it is whole."""
    run: str
    place: str
    """The run's result, or the name of a checkpoint."""
    target: str
    size_bytes: int
    path: Path
    limits: FileLimits = NO_LIMITS


class Exports:
    """The workspace's exports. Methods may be called from any thread; writing goes to the engine's."""

    def __init__(
        self,
        workspace: Workspace,
        engine: Worker,
        runs: Runs,
        *,
        find: Callable[[str, str], Result],
        make_room: Callable[[], object],
    ) -> None:
        """`find` gives a run's result, or its checkpoint; `make_room` frees what chat has loaded."""
        self.workspace = workspace
        self.job: Job | None = None
        """The last export, being written or ended."""
        self.job_target = ""
        """What it writes: `RUN-TARGET`."""
        self._writing: dict[Job, str] = {}
        self._engine = engine
        self._runs = runs
        self._find = find
        self._make_room = make_room

    # Before ----------------------------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """Where exports go that are given no folder of their own: what the settings say, else the workspace's."""
        return Path(read_settings(self.workspace).get("exports_folder") or self.workspace.exports)

    def estimate(self, run: str, target: str, place: str = RESULT) -> Estimate:
        """Return what exporting `run` as `target` will take on this machine; `place`: its result, or a checkpoint.

        Raises StudioError.
        """
        exporter, result = get_known_exporter(target), self._find(run, place)
        task = make_task(result)
        problem = exporter.find_problem(task)
        if problem is not None:
            return describe(target, problem=problem)
        size_bytes, memory_bytes = exporter.size_bytes(task), exporter.memory_bytes(task)
        disk_bytes = shutil.disk_usage(find_existing(self.home)).free
        free_bytes = psutil.virtual_memory().available
        if disk_bytes < size_bytes * 1.5:
            problem = text("export.estimate.disk")
        elif free_bytes < memory_bytes:
            problem = text("export.estimate.memory")
        return describe(
            target, size_bytes=size_bytes, disk_bytes=disk_bytes, memory_bytes=memory_bytes, free_bytes=free_bytes,
            problem=problem,
        )  # fmt: skip

    # Writing ---------------------------------------------------------------------------------------------------------

    def write(
        self,
        run: str,
        target: str,
        folder: Path | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        place: str = RESULT,
        limits: FileLimits = NO_LIMITS,
    ) -> Export:
        """Write `run` as `target` into the workspace's exports or `folder`; waits, asking `should_stop`.

        place: its result, or the name of a checkpoint. limits: for the form that is chosen by size and loss.

        Raises StudioError while a run trains, for an unknown target, an unfinished run, a full disk or an existing
        folder, and when it was stopped: the next one of the same goes on with what is whole of it; OSError.
        """
        self._runs.refuse_busy()
        job = self._begin(Job(), run, target, folder, place, limits)
        while not job.ended:
            if should_stop():
                job.stop()
            with suppress(TimeoutError):
                job.result(ASK_S)
        return job.result()

    def start(
        self,
        run: str,
        target: str,
        place: str = RESULT,
        limits: FileLimits = NO_LIMITS,
        *,
        measure: bool = False,
    ) -> Job:
        """Begin to write `run` as `target`; the Job's result is an Export. place, limits: as in write().

        measure: only what find_curve() then gives, and what that takes; the Job's result is the Curve.

        Raises StudioError while a run trains or another export is being written, and for an unknown target.
        """
        self._runs.refuse_busy()
        if self.job is not None and not self.job.ended:
            raise StudioError(text("export.busy"), text("export.busy.why"), text("export.busy.fix"))
        get_known_exporter(target)
        self.job, self.job_target = Job(), name_export(run, place, target)
        return self._begin(self.job, run, target, None, place, limits, measure=measure)

    @property
    def busy(self) -> bool:
        """Whether an export is being written, or waits for its turn, that nobody has asked to end."""
        return any(not (job.ended or job.stopping) for job in list(self._writing))

    def is_writing(self, run: str) -> bool:
        """Return whether an export of `run` is being written or waits for its turn."""
        return any(one == run and not job.ended for job, one in list(self._writing.items()))

    def written_bytes(self) -> int:
        """Return how much of the export that is on lies on the disk already."""
        return count_bytes(staging_of(self.home / self.job_target)) if self.job_target else 0

    def _begin(
        self,
        job: Job,
        run: str,
        target: str,
        folder: Path | None,
        place: str,
        limits: FileLimits = NO_LIMITS,
        *,
        measure: bool = False,
    ) -> Job:
        final = folder or self.home / name_export(run, place, target)

        def work(job: Job) -> Export | Curve:
            if self._must_end(job):
                raise ExportStopped
            job.tell(text("export.phase.begin"))
            self._make_room()
            result = self._find(run, place)
            return self._write(job, result, target, final, limits, overwrite=folder is None, measure=measure)

        self._writing = {one: of for one, of in self._writing.items() if not one.ended} | {job: run}
        return job.begin(self._engine, work, "export")

    def _write(
        self,
        job: Job,
        result: Result,
        target: str,
        final: Path,
        limits: FileLimits,
        *,
        overwrite: bool,
        measure: bool,
    ) -> Export | Curve:
        """Write into `final`, staged beside it and renamed: what is there is whole and checked."""
        exporter = get_known_exporter(target)
        if final.exists() and not overwrite:
            why, fix = text("export.exists.why"), text("export.exists.fix")
            raise StudioError(text("export.exists", path=final.name), why, fix)
        if final.exists() and not is_ours(final):
            raise refuse_foreign(final)
        record = result.record
        if exporter.merges and record.adapter and record.base_hash:
            # Another model under the old name would give a model that nobody trained, and nothing would look wrong.
            job.tell(text("export.phase.base"))
            if hash_weights(result.facts.folder) != record.base_hash:
                why, fix = text("export.base.why", base=record.base), text("export.base.fix")
                raise StudioError(text("export.base"), why, fix)
        if is_being_written(final):  # by the command line, beside the window
            raise StudioError(text("export.busy"), text("export.busy.why"), text("export.busy.fix"))
        try:
            staging = open_staging(final, name_parts(result, target))
        except OSError as error:
            what, fix = text("export.folder", path=str(final.parent)), text("export.folder.fix")
            raise StudioError(what, refuse_system(error).why, fix) from error
        task = dataclasses.replace(make_task(result, staging), limits=limits)
        checkpoint = staging.with_name(f"{staging.name}-checkpoint")
        size_bytes = exporter.size_bytes(task)

        def tell(phase: Text) -> None:
            job.tell(phase, 0, size_bytes)

        keep = True  # until it is at work, nothing says that what was kept is wrong
        try:
            require_space(final.parent, size_bytes)
            require_memory(exporter.memory_bytes(task), result.facts.name)
            if result.place != RESULT:
                job.tell(text("export.phase.checkpoint"))
                task = take_checkpoint(task, result, checkpoint)
            keep_limits(staging, limits)
            keep = False
            told = {"tell": tell, "should_stop": lambda: self._must_end(job)}
            if measure:
                told["measured"] = lambda done, total: job.tell(text("export.phase.measure"), done, total)
                measure_curve(dataclasses.replace(task, **told))
                keep = True
                return read_curve(staging)
            exporter.write(dataclasses.replace(task, **told))
            if overwrite:  # in the workspace's own folder, where exports are listed
                recipe = result.folder.read_recipe()
                base = result.facts.folder if Path(recipe.model.source).exists() else recipe.model.source
                base = result.facts.folder if recipe.model.source == "demo" else base
                write_json(
                    staging / NOTE,
                    {"run": name_state(result.folder.run, result.place), "target": target, "base": base},
                )
            close_staging(staging, final)
        except (ExportStopped, OSError):  # nothing is wrong with what is written
            keep = True
            raise
        finally:
            if staging.exists():
                leave_staging(staging, keep=keep)
            shutil.rmtree(checkpoint, ignore_errors=True)
        return Export(final, count_bytes(final))

    def _must_end(self, job: Job) -> bool:
        """Whether the person, or the end of the studio, asks the export to end; it does so after its present part."""
        return job.stopping or self._runs.closing.is_set()

    # After -----------------------------------------------------------------------------------------------------------

    def items(self) -> tuple[ExportItem, ...]:
        """Return the exports in the workspace's folder, newest first."""
        folder = self.home
        paths = folder.iterdir() if folder.is_dir() else ()
        items = [self._describe(path) for path in paths if NAME.fullmatch(path.name) and path.is_dir()]
        return tuple(sorted(items, key=lambda item: -item.written_s))

    def _describe(self, path: Path) -> ExportItem:
        run, _, target = path.name.rpartition("-")
        base = ""
        try:
            base = str(read_json(path / NOTE)["base"])
        except (StudioError, KeyError, TypeError):
            pass  # made by an older studio, or by the command line
        files = tuple(sorted(part.name for part in path.iterdir() if part.is_file() and part.name != NOTE))
        size_bytes, written_s = count_bytes(path), path.stat().st_mtime
        return ExportItem(path.name, path, run, target, base, size_bytes, written_s, files, is_ours(path))

    def find(self, name: str) -> ExportItem:
        """Return the export called `name`. Raises StudioError when there is none."""
        path = self.home / name
        if not NAME.fullmatch(name) or not path.is_dir():
            raise StudioError(text("export.gone"), text("export.gone.why"), text("export.gone.fix"))
        return self._describe(path)

    def find_curve(self, run: str, place: str = RESULT) -> Curve | None:
        """Return what was measured of a state of a run; None where nothing was, or nothing is kept of it."""
        return read_curve(staging_of(self.home / name_export(run, place, MEASURED)))

    def list_kept(self) -> tuple[KeptExport, ...]:
        """Return the exports in the workspace's folder that did not end, and that nobody writes now."""
        writing = self.job_target if self.job is not None and not self.job.ended else ""
        found = []
        for name, path in list_kept(self.home, NAME):
            state, _, target = name.rpartition("-")
            run, place = STATE.fullmatch(state).groups()
            if name != writing:
                size_bytes, limits = count_bytes(path), read_limits(path)
                found.append(KeptExport(name, run, place or RESULT, target, size_bytes, path, limits))
        return tuple(found)

    def discard(self, name: str) -> int:
        """Delete what is kept of the export called `name` that did not end; returns the bytes freed.

        Raises StudioError where there is none; OSError.
        """
        kept = next((one for one in self.list_kept() if one.name == name), None)
        if kept is None:
            raise StudioError(text("export.gone"), text("export.gone.why"), text("export.gone.fix"))
        shutil.rmtree(kept.path)
        return kept.size_bytes

    def delete(self, name: str) -> int:
        """Delete the export called `name`; returns the bytes freed.

        Raises StudioError, also for a folder that only has such a name; OSError.
        """
        item = self.find(name)
        if not is_ours(item.path):
            raise refuse_foreign(item.path)
        shutil.rmtree(item.path)
        return item.size_bytes

    def sweep(self) -> None:
        """Delete what exports of killed processes left, but for parts that can be gone on with."""
        sweep_exports(self.home, NAME)

    def open_folder(self, name: str) -> None:
        """Show the export's folder in this computer's file manager. Raises StudioError when there is none."""
        path = self.find(name).path
        opener = {"win32": "explorer", "darwin": "open"}.get(sys.platform, "xdg-open")
        found = shutil.which(opener)
        shown = sys.platform in ("win32", "darwin") or bool(
            os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        )
        if found is None or not shown:
            raise StudioError(
                text("export.open"), text("export.open.why"), text("export.open.fix", path=str(path))
            )
        quiet = subprocess.DEVNULL
        subprocess.Popen([found, str(path)], stdin=quiet, stdout=quiet, stderr=quiet)


def loading_lines(item: ExportItem) -> tuple[str, ...]:
    """Return the lines of Python that load an export; none where its base is needed and not known."""
    return get_known_exporter(item.target).load_lines(str(item.path), item.base)
