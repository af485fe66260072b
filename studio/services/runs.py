"""The runs of a workspace: what is known of each, and the one that is on, with what a person asks of it."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.events import (
    EvalLogged,
    PhaseStarted,
    RunEvent,
    RunFailed,
    RunFinished,
    RunPaused,
    RunPlanned,
    RunResumed,
    RunUnpaused,
    StepLogged,
)
from studio.core.heartbeat import Heartbeat
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder, create_run, find_run, list_runs, remove_run
from studio.machine.workspace import Workspace
from studio.machine.workspace_lock import claim_run, find_holder, is_worked_on
from studio.services.event_log import EventLog, EventLogs
from studio.services.machine_state import MachineState
from studio.services.run_attempt import attempt
from studio.services.trackers.feed import mirroring
from studio.services.worker import Worker


class FolderGone(Exception):
    """The run's folder was taken away while the run was on."""

    failure_id = "run_folder_gone"


class Runs:
    """The workspace's runs, of which one may be on. Methods may be called from any thread; it trains on the engine's.

    `on_begin` is called before a run loads, on the engine's thread, or goes on: whatever else holds memory goes.
    `on_end(record, by_person)` is called there after a run, when the next one may begin.
    """

    def __init__(
        self,
        workspace: Workspace,
        health: MachineState,
        logs: EventLogs,
        engine: Worker,
        *,
        on_begin: Callable[[], None] = lambda: None,
        on_end: Callable[[RunRecord, bool], None] = lambda record, by_person: None,
    ) -> None:
        self.workspace, self.health, self.logs = workspace, health, logs
        self.closing = threading.Event()
        """Set when the studio ends: whatever is done ends where it is, and nothing is begun."""
        self._engine = engine
        self._on_begin, self._on_end = on_begin, on_end
        self._lock = threading.RLock()
        self._active: str | None = None
        self._watch: Any = None
        self._stop, self._pause, self._discard = threading.Event(), threading.Event(), threading.Event()
        self._now: dict[str, Any] = {}
        """Fields of the record of the run that is on, as its events have told them since."""
        self._futures: dict[str, Future] = {}
        self._unwritten: dict[str, RunRecord] = {}

    # What a person asks -----------------------------------------------------------------------------------------

    @property
    def active(self) -> str | None:
        """The id of the run that is on."""
        return self._active

    @property
    def stopping(self) -> bool:
        """Whether the run that is on, or everything, was asked to end."""
        return self._stop.is_set() or self.closing.is_set()

    @property
    def paused(self) -> bool:
        """Whether the run that is on was asked to pause; it does so after its step."""
        return self._active is not None and self._pause.is_set()

    @property
    def holding(self) -> bool:
        """Whether the run that is on stands still for a person: not while it still loads after a restart."""
        return self.paused and self._now.get("state") == "paused"

    def stop(self, run: str) -> None:
        """Ask the run to end after its step with a checkpoint; returns at once."""
        if run == self._active:
            self._stop.set()

    def pause(self, run: str) -> None:
        """Ask the run to hold after its step; returns at once. It keeps its memory, and its state is saved."""
        if run == self._active:
            self._pause.set()

    def unpause(self, run: str) -> None:
        """Let a paused run go on."""
        if run == self._active:
            self._on_begin()
            self._pause.clear()

    def stop_all(self) -> None:
        """Ask for the end of whatever is being done (a run with a checkpoint, answers where they are) or comes next."""
        self.closing.set()

    def discard(self, run: str) -> None:
        """Ask the run to end after its step and to leave nothing behind; returns at once.

        Raises StudioError when it is not the one that is on here.
        """
        with self._lock:
            if run != self._active:
                raise StudioError(
                    text("run.discard", run=run), text("run.discard.why"), text("run.discard.fix")
                )
            self._discard.set()
            self._stop.set()

    def answer_stall(self, run: str, choice: str) -> bool:
        """Do what a person chose for a run that stands still: wait, restart or stop; False when it does not."""
        watch = self._watch
        return run == self._active and watch is not None and watch.answer(choice)

    def busy(self) -> str:
        """Return the id of the run that has the machine, here or in another process of this workspace; "" for none."""
        if self._active is not None:
            return self._active
        holder = find_holder(self.workspace, "run")
        return (holder.run or "?") if holder else ""  # it knows the id once it has read its recipe

    def refuse_busy(self) -> None:
        """Raise StudioError while a run has the machine: a second model would take its memory."""
        _refuse("desk.training", self.busy())

    # What is known of each --------------------------------------------------------------------------------------

    def list(self) -> tuple[RunRecord, ...]:
        """Return the records of the workspace's runs, newest first; damaged ones are left out."""
        records = []
        for folder in list_runs(self.workspace.runs):
            try:
                records.append(self.truthful(folder.read_record()))
            except StudioError:
                continue  # a damaged run.json: the other runs must still be listed
        return tuple(records)

    def read(self, run: str) -> RunRecord:
        """Return a run's record. Raises StudioError when there is no such run."""
        return self._lost(run) or self.truthful(self.folder(run).read_record())

    def wait(self, run: str) -> RunRecord:
        """Return a run's record, of one that was begun here once it has ended. Raises StudioError."""
        future = self._futures.get(run)
        return future.result() if future else self.read(run)

    def recipe(self, run: str) -> Recipe:
        """Return a run's frozen recipe. Raises StudioError."""
        return self.folder(run).read_recipe()

    def events(self, run: str, after: int = 0, wait_s: float = 0.0) -> tuple[RunEvent, ...]:
        """Return the run's events with seq above `after`, waiting up to `wait_s`. Reading never consumes."""
        log = self.logs.open(run)
        if run != self._active:
            log.refresh()
        return log.wait(after, wait_s) if wait_s else log.since(after)

    def truthful(self, record: RunRecord) -> RunRecord:
        """Return `record` as things stand: a run that nobody trains has stopped, the one that is on may be paused.

        run.json is written when a run begins and when it ends: how far it is meanwhile its events tell.
        """
        record = self._unwritten.get(record.run, record)
        if record.state not in ("running", "waiting", "paused"):
            return record
        if record.run == self._active:
            return dataclasses.replace(record, **self._now)
        if is_worked_on(self.workspace, record.run):
            return record
        return dataclasses.replace(record, state="stopped")

    def _lost(self, run: str) -> RunRecord | None:
        """Return the record of a run whose folder was taken away while it was on, until the studio ends."""
        record = self._unwritten.get(run)
        gone = record is not None and record.diagnosis and record.diagnosis.id == FolderGone.failure_id
        return record if gone else None

    def folder(self, run: str) -> RunFolder:
        """Return a run's folder. Raises StudioError when there is no such run."""
        return find_run(self.workspace.runs, run)

    def note_death(self, run: str) -> None:
        """Write the end of a run whose process died too often at one step, for its next reader. Raises StudioError."""
        from studio.engine.crash_records import fail_run, read_deaths

        folder = self.folder(run)
        fail_run(folder, read_deaths(folder)[-1])
        self.logs.open(run).refresh()

    # How it runs ------------------------------------------------------------------------------------------------

    def launch(self, recipe: Recipe) -> str:
        """Freeze `recipe` in a new run's folder and start it; returns the run's id at once.

        Raises StudioError while another run is on, here or in another process; OSError (disk full).
        """
        with self._lock:
            _refuse("desk.busy", self._active)  # of another process the claim tells
            folder = create_run(self.workspace.runs, recipe)
            try:
                self._begin(folder)
            except (OSError, StudioError):
                shutil.rmtree(folder.path)
                raise
        return folder.run

    def resume(self, run: str, *, paused: bool = False) -> None:
        """Go on with a run that stopped, failed or was cut off; `paused` holds it before its next step.

        Raises StudioError when it cannot.
        """
        with self._lock:
            _refuse("desk.busy", self._active)  # of another process the claim tells
            folder = find_run(self.workspace.runs, run)
            if folder.read_record().state == "finished":
                raise StudioError(
                    text("run.finished_already", run=run),
                    text("run.finished_already.why"),
                    text("run.finished_already.fix"),
                )
            self._begin(folder, paused=paused)

    def was_paused(self, run: str) -> bool:
        """Return whether the person had paused the run when its process ended; what stopped it does not count."""
        kinds = (RunPaused, RunUnpaused, StepLogged, RunFailed, RunFinished)
        told = [event for event in self.logs.open(run).since(0) if isinstance(event, kinds)]
        return bool(told) and isinstance(told[-1], RunPaused)

    def _begin(self, folder: RunFolder, *, paused: bool = False) -> None:
        recipe, log = folder.read_recipe(), self.logs.open(folder.run)
        held = claim_run(self.workspace, run=folder.run)
        try:
            log.refresh()
            record = folder.change_record(
                lambda kept: dataclasses.replace(kept, state="running", diagnosis=None)
            )
        except (OSError, StudioError):
            held.release()
            raise
        heart = Heartbeat(self.workspace.heartbeat)
        for wish in (self._stop, self._pause, self._discard):
            wish.clear()
        if paused:
            self._pause.set()
        self._now = {}
        self._unwritten.pop(folder.run, None)
        self._active = folder.run

        from studio.engine.watchdog import Watch

        self._watch = watch = Watch(
            folder,
            recipe.run,
            lambda event: self._keep(log, event),
            heart,
            should_stop=lambda: self.stopping,
            # A repair, or WSL, may have kernels built elsewhere.
            cache=Path(os.environ.get("TRITON_CACHE_DIR") or self.workspace.triton_cache),
        )

        def train() -> RunRecord:
            try:
                record = self._attempt(folder, recipe, log, watch)
            finally:
                with suppress(OSError):  # Windows: somebody reads the file just now
                    heart.clear()
                if self._discard.is_set():
                    self._remove(folder)
                with suppress(OSError):
                    held.release()
                by_person = self._stop.is_set()
                self._active = None  # last: whoever sees it may start the next run
            self._on_end(record, by_person)
            return record

        before = self._engine.doing
        if before:
            with suppress(OSError):  # the disk is full: what comes next will say so
                waits = text(f"run.waits.{before}")
                self._keep(log, PhaseStarted(phase="wait", step=record.steps, detail=waits))
        self._futures[folder.run] = self._engine.submit(train)

    def _attempt(self, folder: RunFolder, recipe: Recipe, log: EventLog, watch: Any) -> RunRecord:
        try:
            self._on_begin()
            trackers = self.health.workspace.root / "trackers"
            with watch, mirroring(folder, recipe, trackers, watch.emit):
                watch.beat("start", 0, 0)
                return attempt(
                    folder,
                    recipe,
                    watch,
                    self.health,
                    should_stop=lambda: self.stopping,
                    should_pause=self._pause.is_set,
                    should_save=lambda: not self._discard.is_set(),
                )
        except Exception as error:  # the disk is too full to note a failure, or torch cannot be imported
            return self._note_failure(folder, recipe, log, error)

    def _keep(self, log: EventLog, event: RunEvent) -> None:
        """Write an event of the run that is on, and remember what it says of how the run stands."""
        log.append(event)
        match event:
            case StepLogged(step=step, total_steps=total_steps, loss=loss):
                told = {"steps": step, "total_steps": total_steps}
                told |= {"loss": loss} if math.isfinite(loss) else {}
                told |= {} if event.skipped else {"metrics": event.metrics}
            case EvalLogged(loss=loss) if math.isfinite(loss):
                told = {"eval_loss": loss} if event.reward is None else {"eval_reward": event.reward}
            case RunPlanned(plan=plan):
                told = {"slower": plan.slower}
            case RunPaused():
                told = {"state": "paused"}
            case RunUnpaused():
                told = {"state": "running"}
            case RunResumed(step=step):
                told = {"steps": step}
            case _:
                return
        self._now = self._now | told

    def _remove(self, folder: RunFolder) -> None:
        """Take a discarded run away; what another program holds open goes at the next start."""
        self.logs.drop(folder.run)
        with suppress(OSError):
            remove_run(folder)

    def _note_failure(self, folder: RunFolder, recipe: Recipe, log: EventLog, error: Exception) -> RunRecord:
        """Keep a failure that run() could not tell in memory, and on the disk as far as that takes it."""
        from studio.machine.failures import diagnose

        if not (folder.path / "run.json").exists():  # a checkpoint may have made the folder itself anew
            error = FolderGone(folder.run)
        diagnosis = diagnose(error, self.health.facts(), recipe)
        try:
            record = folder.read_record()
        except StudioError:  # taken away, or damaged: the queue must hear of its end all the same
            record = RunRecord(run=folder.run, name=recipe.name, state="failed", created_s=time.time())
        last = max((e.step for e in log.since(0) if isinstance(e, StepLogged)), default=record.steps)
        record = dataclasses.replace(
            record, state="failed", diagnosis=diagnosis, steps=last, ended_s=time.time()
        )
        self._unwritten[folder.run] = record
        with suppress(OSError):  # the disk is still full: the log keeps the event in memory
            log.append(RunFailed(step=last, diagnosis=diagnosis))
        with suppress(OSError):
            folder.change_record(lambda kept: dataclasses.replace(record, name=kept.name), record)
        with suppress(OSError), folder.log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        return record


def _refuse(words: str, run: str | None) -> None:
    if run:
        raise StudioError(text(words, run=run), text(f"{words}.why"), text(f"{words}.fix"))
