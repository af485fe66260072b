"""The whole API that screens and the command line use: facts, checks, runs, chat and export of one workspace."""

from __future__ import annotations

import dataclasses
import os
import queue
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from studio.core.errors import Problem, StudioError
from studio.core.events import RunEvent, RunFailed, StepLogged
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.heartbeat import PARENT_VARIABLE, Heartbeat, request_restart
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.core.text import text
from studio.desk.attempt import attempt
from studio.desk.checking import find_problems, preview_recipe, refuse
from studio.desk.datasets import Datasets
from studio.desk.health import Health, hide_broken_triton
from studio.desk.log import EventLog
from studio.desk.recipes import DEMO_RECIPE, read_recipe
from studio.desk.results import Export, export_result, find_result
from studio.desk.worker import Worker
from studio.host.claim import claim_run, is_worked_on
from studio.host.plan import plan
from studio.host.workspace import Workspace
from studio.models.catalog import LocalModel, inspect_model, list_local_models


class Desk:
    """One workspace's counter. Methods may be called from any thread; heavy work goes to threads of its own.

    `on_end` is called when the window is to end by itself: for a restart, or for the studio inside WSL2.
    """

    def __init__(self, workspace: Workspace, on_end: Callable[[], None] = lambda: None) -> None:
        self.workspace = workspace
        self.health = Health(workspace)
        self.datasets = Datasets(workspace)
        self.restarting = False
        """Whether this process is to end with RESTART_CODE."""
        self._on_end = on_end
        self._engine = Worker("engine")
        self._light = Worker("light")
        self._lock = threading.RLock()
        self._logs: dict[str, EventLog] = {}
        self._active: str | None = None
        self._futures: dict[str, Future] = {}
        self._stop = threading.Event()
        self._closing = threading.Event()
        self._unwritten: dict[str, RunRecord] = {}
        self._speaker: Any = None
        self._watch: Any = None

    # Facts ------------------------------------------------------------------------------------------------------

    def models(self) -> tuple[ModelFacts | LocalModel, ...]:
        """Return the models that can be picked without typing: the demo, and what lies in the user's hub cache."""
        return (inspect_model("demo"), *list_local_models(()))

    def model(self, source: str) -> ModelFacts:
        """Return the facts of a model folder or hub id. Raises StudioError."""
        return inspect_model(source)

    def demo_recipe(self) -> Recipe:
        """Return the recipe of the bundled demo."""
        return read_recipe(DEMO_RECIPE)

    def preview(self, recipe: Recipe, rows: int = 5) -> Any:
        """Return the Preview of the recipe's data: rows, rendered text, tokens and loss mask. Raises StudioError."""
        return self._light.call(lambda: preview_recipe(recipe, rows, self.workspace.data_cache))

    def check(self, recipe: Recipe) -> tuple[Problem, ...]:
        """Return every Problem of `recipe` at once; a source that cannot be read is one of them."""
        machine, free_bytes = self.health.machine(), shutil.disk_usage(self.workspace.root).free
        return self._light.call(lambda: find_problems(recipe, machine, free_bytes, self.workspace.data_cache))

    def plan(self, recipe: Recipe) -> BackendPlan:
        """Return what a run of `recipe` would use on this machine. Raises StudioError for an unreadable model."""
        facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
        return plan(self.health.add_experience(self.health.machine(), recipe), recipe, facts)

    # Runs -------------------------------------------------------------------------------------------------------

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        """Check `recipe`, freeze it in a new run folder and start it; returns the run's id at once.

        Raises StudioError: what refuse() makes of the errors found, another run is active, or the disk is full.
        """
        errors = () if checked else tuple(p for p in self.check(recipe) if p.severity == "error")
        if errors:
            raise refuse(errors)
        from studio.engine.folder import create_run

        with self._lock:
            self._refuse_second()
            folder = create_run(self.workspace.runs, recipe)
            try:
                self._begin(folder)
            except (OSError, StudioError):
                shutil.rmtree(folder.path)
                raise
        return folder.run

    def resume(self, run: str) -> None:
        """Go on with a run that stopped, failed or was cut off. Raises StudioError when it cannot."""
        with self._lock:
            self._refuse_second()
            folder = self._folder(run)
            if folder.read_record().state == "finished":
                raise StudioError(
                    text("run.finished_already", run=run),
                    text("run.finished_already.why"),
                    text("run.finished_already.fix"),
                )
            self._begin(folder)

    def stop(self, run: str) -> None:
        """Ask the run to end after its step with a checkpoint; returns at once."""
        if run == self._active:
            self._stop.set()

    def answer_stall(self, run: str, choice: str) -> bool:
        """Do what a person chose for a run that stands still: wait, restart or stop; False when it does not."""
        watch = self._watch
        return run == self._active and watch is not None and watch.answer(choice)

    def restart(self) -> bool:
        """Ask for a new process in which the active run goes on; returns at once, False without a supervisor."""
        if PARENT_VARIABLE not in os.environ:
            return False
        request_restart(self.workspace.heartbeat, self._active)
        self.restarting = True
        self._closing.set()
        self._on_end()
        return True

    def hand_over(self, port: int) -> None:
        """Let the studio inside WSL2 take this workspace and `port`, and end here. Raises StudioError during a run."""
        self._refuse_while_training()
        self.health.open_bridge(port)
        self._closing.set()
        self._on_end()

    def stop_all(self) -> None:
        """Ask for the end of whatever is being done (a run with a checkpoint, answers where they are) or comes next."""
        self._closing.set()

    @property
    def stopping(self) -> bool:
        """Whether the active run, or everything, was asked to end."""
        return self._stop.is_set() or self._closing.is_set()

    def wait(self, run: str) -> RunRecord:
        """Wait for the end of a run that this desk started, and return its record."""
        future = self._futures.get(run)
        return future.result() if future else self.run(run)

    def active_run(self) -> str | None:
        """Return the id of the run that this desk is training, or None."""
        return self._active

    def runs(self) -> tuple[RunRecord, ...]:
        """Return the records of the workspace's runs, newest first; damaged ones are left out."""
        from studio.engine.folder import list_runs

        records = []
        for folder in list_runs(self.workspace.runs):
            try:
                records.append(self._truthful(folder.read_record()))
            except StudioError:
                continue  # a damaged run.json: the other runs must still be listed
        return tuple(records)

    def run(self, run: str) -> RunRecord:
        """Return a run's record. Raises StudioError when there is no such run."""
        return self._truthful(self._folder(run).read_record())

    def recipe(self, run: str) -> Recipe:
        """Return a run's frozen recipe. Raises StudioError."""
        return self._folder(run).read_recipe()

    def events(self, run: str, after: int = 0, wait_s: float = 0.0) -> tuple[RunEvent, ...]:
        """Return the run's events with seq above `after`, waiting up to `wait_s`. Reading never consumes."""
        log = self._log(run)
        if run != self._active:
            log.refresh()
        return log.wait(after, wait_s) if wait_s else log.since(after)

    def note_death(self, run: str) -> None:
        """Write the end of a run whose process died too often at one step, for its next reader. Raises StudioError."""
        from studio.engine.deaths import fail_run, read_deaths

        folder = self._folder(run)
        fail_run(folder, read_deaths(folder)[-1])
        self._log(run).refresh()

    # Results ----------------------------------------------------------------------------------------------------

    def chat(
        self,
        run: str,
        messages: Sequence[dict[str, str]],
        *,
        side: str = "tuned",
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """Yield the growing answer of the `base` or `tuned` model. Raises StudioError, also while a run trains."""
        self._refuse_while_training()
        answers: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        ended = threading.Event()

        def should_end() -> bool:
            return ended.is_set() or self._closing.is_set()

        def speak() -> None:
            try:
                from studio.engine.chat import Sampling

                sampling = Sampling(max_new_tokens, temperature, seed)
                self._speak(run).stream(messages, side, sampling, answers.put, should_end)
                answers.put(None)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                answers.put(error)

        self._engine.submit(speak)
        try:
            while (answer := answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            ended.set()

    def answer_all(
        self,
        run: str,
        conversations: Sequence[Sequence[dict[str, str]]],
        *,
        side: str,
        max_new_tokens: int,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[str]:
        """Return greedy answers of the run's `base` or `tuned` model to many prompts. Raises StudioError."""
        return self._engine.call(
            lambda: self._speak(run).answer_all(
                conversations,
                side,
                max_new_tokens=max_new_tokens,
                on_progress=on_progress,
                should_stop=lambda: self.stopping,
            )
        )

    def export(self, run: str, target: str, folder: Path | None = None) -> Export:
        """Write the run's result as `target` (adapter, merged) into the workspace's exports or `folder`; waits.

        Raises StudioError for an unknown target, an unfinished run, a full disk or an existing folder.
        """
        self._refuse_while_training()
        final = folder or self.workspace.exports / f"{run}-{target}"

        def write() -> Export:
            result = self._find_result(run)
            return export_result(result, target, final, overwrite=folder is None)

        return self._engine.call(write)

    def close(self, timeout_s: float = 18.0) -> None:
        """Stop the active run with a checkpoint and let the threads end; returns after at most `timeout_s`."""
        self._closing.set()
        self._engine.close(timeout_s)
        self._light.close(0.1)
        self.datasets.close()
        self.health.close()

    # Inside -----------------------------------------------------------------------------------------------------

    def _folder(self, run: str) -> Any:
        from studio.engine.folder import find_run

        return find_run(self.workspace.runs, run)

    def _find_result(self, run: str) -> Any:
        """Return what `run` made, for a model of it to be loaded on this machine: the libraries for that come next."""
        machine = self.health.machine()
        hide_broken_triton(machine)
        return find_result(self._folder(run), machine)

    def _log(self, run: str) -> EventLog:
        with self._lock:
            if run not in self._logs:
                self._logs[run] = EventLog(self._folder(run).events)
            return self._logs[run]

    def _begin(self, folder: Any) -> None:
        recipe, log = folder.read_recipe(), self._log(folder.run)
        held = claim_run(self.workspace, run=folder.run)
        try:
            log.refresh()
            folder.write_record(dataclasses.replace(folder.read_record(), state="running", diagnosis=None))
        except (OSError, StudioError):
            held.release()
            raise
        heart = Heartbeat(self.workspace.heartbeat)
        self._stop.clear()
        self._unwritten.pop(folder.run, None)
        self._active = folder.run

        from studio.engine.watch import Watch

        watch = Watch(
            folder,
            recipe.limits,
            log.append,
            heart,
            should_stop=lambda: self.stopping,
            # A repair, or WSL, may have kernels built elsewhere.
            cache=Path(os.environ.get("TRITON_CACHE_DIR") or self.workspace.triton_cache),
        )
        self._watch = watch

        def train() -> RunRecord:
            try:
                self._speaker = None
                with watch:
                    watch.beat("start", 0, 0)
                    return attempt(folder, recipe, watch, self.health, lambda: self.stopping)
            except Exception as error:  # the disk is too full to note a failure, or torch cannot be imported
                return self._note_failure(folder, log, error)
            finally:
                with suppress(OSError):  # Windows: somebody reads the file just now
                    heart.clear()
                with suppress(OSError):
                    held.release()
                self._active = None  # last: whoever sees it may start the next run

        self._futures[folder.run] = self._engine.submit(train)

    def _note_failure(self, folder: Any, log: EventLog, error: Exception) -> RunRecord:
        """Keep a failure that run() could not tell in memory, and on the disk as far as that takes it."""
        from studio.host.failures import diagnose

        diagnosis = diagnose(error, self.health.machine(), folder.read_recipe())
        record = folder.read_record()
        last = max((e.step for e in log.since(0) if isinstance(e, StepLogged)), default=record.steps)
        record = dataclasses.replace(
            record, state="failed", diagnosis=diagnosis, steps=last, ended_s=time.time()
        )
        self._unwritten[folder.run] = record
        with suppress(OSError):  # the disk is still full: the log keeps the event in memory
            log.append(RunFailed(step=last, diagnosis=diagnosis))
        with suppress(OSError):
            folder.write_record(record)
        with suppress(OSError), folder.log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        for staged in folder.path.glob(".*.tmp"):  # what a full disk left half-written
            staged.unlink(missing_ok=True)
        return record

    def _refuse_second(self) -> None:
        if self._active:
            raise StudioError(
                text("desk.busy", run=self._active), text("desk.busy.why"), text("desk.busy.fix")
            )

    def _refuse_while_training(self) -> None:
        if self._active:
            raise StudioError(
                text("desk.training", run=self._active), text("desk.training.why"), text("desk.training.fix")
            )

    def _truthful(self, record: RunRecord) -> RunRecord:
        """A record that says running though no process trains it was cut off: show it as stopped."""
        record = self._unwritten.get(record.run, record)
        if (
            record.state in ("running", "waiting")
            and record.run != self._active
            and not is_worked_on(self.workspace, record.run)
        ):
            return dataclasses.replace(record, state="stopped")
        return record

    def _speak(self, run: str) -> Any:
        """Return the run's Speaker, loading it when another run's or none is loaded. On the engine's thread only."""
        if self._speaker is None or self._speaker.run != run:
            from studio.engine.chat import Speaker
            from studio.engine.run import release_memory

            self._speaker = None
            release_memory()
            result = self._find_result(run)
            self._speaker = Speaker(result.folder.path, result.record, result.facts, result.plan)
        return self._speaker
