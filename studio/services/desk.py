"""The whole API that screens and the command line use: facts, checks, runs, chat and export of one workspace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from studio.core.errors import Problem, StudioError
from studio.core.events import RunEvent
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.heartbeat import PARENT_VARIABLE, request_restart
from studio.core.i18n import text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.machine.workspace import Workspace
from studio.models.catalog import LocalModel, inspect_model, list_local_models
from studio.planning.run_plan import plan
from studio.planning.speed_estimate import RowFigures, read_rows
from studio.services.chat_service import ChatService
from studio.services.dataset_session import Datasets
from studio.services.event_log import EventLogs
from studio.services.exports import Export, Exports
from studio.services.machine_state import Health, hide_broken_triton
from studio.services.model_library import Fits
from studio.services.preferences import Preferences
from studio.services.presets import Presets
from studio.services.queue import Queue
from studio.services.recipe_problems import find_problems, look
from studio.services.recipes import DEMO_RECIPE, read_recipe
from studio.services.results import find_result
from studio.services.run_controller import Running
from studio.services.run_library import Shelf
from studio.services.sharing import Sharing
from studio.services.worker import Worker


class Desk:
    """One workspace's counter. Methods may be called from any thread; heavy work goes to threads of its own.

    `on_end` is called when the window is to end by itself: for a restart, or for the studio inside WSL2. `keep_queue`
    False is for commands that run beside the window: what they start is in no queue on disk.
    """

    def __init__(
        self, workspace: Workspace, on_end: Callable[[], None] = lambda: None, *, keep_queue: bool = True
    ) -> None:
        self.workspace = workspace
        self.health = Health(workspace)
        self.datasets = Datasets(workspace)
        self.fits = Fits(workspace, self)
        self.presets = Presets(workspace, self.runs, self.recipe)
        self.sharing = Sharing(workspace)
        self.restarting = False
        """Whether this process is to end with RESTART_CODE."""
        self._on_end = on_end
        self._engine = Worker("engine")
        self._light = Worker("light")
        self._logs = EventLogs(workspace.runs)
        self.running = Running(
            workspace,
            self.health,
            self._logs,
            self._engine,
            on_begin=lambda: self.talks.unload(),
            on_end=lambda record, by_person: self.queue.note_end(record, by_person=by_person),
        )
        self._closing = self.running.closing
        self.queue = Queue(
            workspace.queue if keep_queue else None, self.running, self.check, self._engine.submit
        )
        self.shelf = Shelf(workspace, self.running, self.health.machine, self._forget, self._release)
        self.talks = ChatService(workspace, self.health, self._engine, self.running)
        self.preferences = Preferences(workspace, self._uses_caches)
        self.exports = Exports(
            workspace, self._engine, self.running, find=self._find_result, make_room=self.talks.unload
        )

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

    def check(self, recipe: Recipe) -> tuple[Problem, ...]:
        """Return every Problem of `recipe` at once; a source that cannot be read is one of them."""
        machine = self.health.add_experience(self.health.now(), recipe)
        free_bytes, counted = shutil.disk_usage(self.workspace.root).free, self.datasets.count(recipe)
        cache = self.workspace.data_cache
        return self._light.call(lambda: find_problems(recipe, machine, free_bytes, cache, counted))

    def plan(self, recipe: Recipe) -> BackendPlan:
        """Return what a run of `recipe` would use on this machine. Raises StudioError for an unreadable model."""
        facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
        return plan(self.health.add_experience(self.health.now(), recipe), recipe, facts)

    def count_rows(self, recipe: Recipe) -> RowFigures:
        """Return the rows of the recipe's data and their tokens: as measured, else as its head suggests."""
        counted = self.datasets.count(recipe)
        if counted is not None and counted.tokens:
            return RowFigures(count=counted.rows_used, tokens=counted.tokens)
        try:
            return self._light.call(lambda: read_rows(look(recipe.data, self.workspace.data_cache)))
        except StudioError:
            return RowFigures()  # what is wrong with it the check says

    # Runs -------------------------------------------------------------------------------------------------------

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        """Check `recipe`, freeze it in a new run folder and start it; returns the run's id at once.

        Raises StudioError: what refuse() makes of the errors found, another run is active, or the disk is full.
        """
        return self.queue.start_now(recipe, checked=checked)

    def resume(self, run: str) -> None:
        """Go on with a run that stopped, failed or was cut off. Raises StudioError when it cannot."""
        self.queue.resume(run)

    def stop(self, run: str) -> None:
        """Ask the run to end after its step with a checkpoint; returns at once."""
        self.running.stop(run)

    def pause(self, run: str) -> None:
        """Ask the run to hold after its step; returns at once. It keeps its memory, and its state is saved."""
        self.running.pause(run)

    def unpause(self, run: str) -> None:
        """Let a paused run go on; what chat loaded meanwhile makes room."""
        self.talks.unload()
        self.running.unpause(run)

    def discard(self, run: str) -> None:
        """Ask the run to end after its step and take its folder away; returns at once.

        Raises StudioError when it is not the one that is on here.
        """
        self.running.discard(run)

    def answer_stall(self, run: str, choice: str) -> bool:
        """Do what a person chose for a run that stands still: wait, restart or stop; False when it does not."""
        return self.running.answer_stall(run, choice)

    def reopen(self, resumed: str = "", failed: str = "") -> None:
        """Take up what the last process left: once, by the window's process.

        A supervised restart goes on with `resumed` (paused when it was paused), writes the end of `failed`, and lets
        the queue go on. Raises StudioError when the run cannot go on.
        """
        from studio.engine.run_folder import sweep_runs

        sweep_runs(self.workspace.runs)
        self.exports.sweep()
        try:
            if failed:
                self.note_death(failed)
            if resumed:
                self.queue.resume(resumed, paused=self.running.was_paused(resumed))
        except StudioError as error:
            self.queue.note_refused(resumed, error.what)
            raise
        finally:
            self.queue.wake()

    def restart(self) -> bool:
        """Ask for a new process in which the active run goes on; returns at once, False without a supervisor.

        Raises StudioError while an export or a test is on, which would be lost.
        """
        if PARENT_VARIABLE not in os.environ:
            return False
        self._refuse_loss()
        request_restart(self.workspace.heartbeat, self.active_run())
        self.restarting = True
        self._closing.set()
        self._on_end()
        return True

    def hand_over(self, port: int) -> None:
        """Let the studio inside WSL2 take this workspace and `port`, and end here.

        Raises StudioError during a run, an export or a test.
        """
        self.running.refuse_busy()
        self._refuse_loss()
        self.health.open_bridge(port)
        self._closing.set()
        self._on_end()

    def quit(self) -> None:
        """Let this process, and the studio with it, end: a run with a checkpoint first. Returns at once."""
        self._closing.set()
        self._on_end()

    def working(self) -> str:
        """Return what ends with this process: `run`, which is saved, `export` or `test`, which are lost, "" nothing."""
        return "run" if self.active_run() else self._find_loss()

    def is_busy(self) -> bool:
        """Return whether the engine's thread, or that of light work, has something to do."""
        return self._engine.busy or self._light.busy

    def stop_all(self) -> None:
        """Ask for the end of whatever is being done (a run with a checkpoint, answers where they are) or comes next."""
        self._closing.set()

    @property
    def stopping(self) -> bool:
        """Whether the active run, or everything, was asked to end."""
        return self.running.stopping

    def wait(self, run: str) -> RunRecord:
        """Wait for the end of a run that this desk started, and return its record."""
        return self.running.wait(run) or self.run(run)

    def active_run(self) -> str | None:
        """Return the id of the run that this desk is training, or None."""
        return self.running.active

    def runs(self) -> tuple[RunRecord, ...]:
        """Return the records of the workspace's runs, newest first; damaged ones are left out."""
        from studio.engine.run_folder import list_runs

        records = []
        for folder in list_runs(self.workspace.runs):
            try:
                records.append(self.running.truthful(folder.read_record()))
            except StudioError:
                continue  # a damaged run.json: the other runs must still be listed
        return tuple(records)

    def run(self, run: str) -> RunRecord:
        """Return a run's record. Raises StudioError when there is no such run."""
        lost = self.running.lost(run)
        return lost or self.running.truthful(self._folder(run).read_record())

    def recipe(self, run: str) -> Recipe:
        """Return a run's frozen recipe. Raises StudioError."""
        return self._folder(run).read_recipe()

    def events(self, run: str, after: int = 0, wait_s: float = 0.0) -> tuple[RunEvent, ...]:
        """Return the run's events with seq above `after`, waiting up to `wait_s`. Reading never consumes."""
        log = self._logs.open(run)
        if run != self.active_run():
            log.refresh()
        return log.wait(after, wait_s) if wait_s else log.since(after)

    def note_death(self, run: str) -> None:
        """Write the end of a run whose process died too often at one step, for its next reader. Raises StudioError."""
        from studio.engine.crash_records import fail_run, read_deaths

        folder = self._folder(run)
        fail_run(folder, read_deaths(folder)[-1])
        self._logs.open(run).refresh()

    # Results ----------------------------------------------------------------------------------------------------

    def chat(
        self,
        run: str,
        messages: Sequence[dict[str, str]],
        *,
        side: str = "tuned",
        checkpoint: str = "",
        system: str = "",
        **sampling: float,
    ) -> Iterator[str]:
        """Yield the growing answer of the `base` or `tuned` model; `sampling` as engine.chat.Sampling has it.

        Raises StudioError, also while a run trains.
        """
        answers = self.talks.answer(
            messages, run=run, side=side, checkpoint=checkpoint, system=system, **sampling
        )
        with closing(answers):
            for answer in answers:
                yield answer.words

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
        return self.talks.answer_all(
            run,
            conversations,
            side=side,
            max_new_tokens=max_new_tokens,
            on_progress=on_progress,
            should_stop=lambda: self.stopping,
        )

    def export(
        self,
        run: str,
        target: str,
        folder: Path | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        place: str = "",
    ) -> Export:
        """Write the run's result as `target` (adapter, merged) into the workspace's exports or `folder`; waits.

        place: a checkpoint's name, to write that instead.

        Raises StudioError for an unknown target, an unfinished run, a full disk, an existing folder, or when
        `should_stop` ended it.
        """
        self.running.refuse_busy()
        return self.exports.write(run, target, folder, should_stop, place)

    def close(self, timeout_s: float = 18.0) -> None:
        """Stop the active run with a checkpoint and let the threads end; returns after at most `timeout_s`."""
        self._closing.set()
        self._engine.close(timeout_s)
        self._light.close(0.1)
        self.talks.close()
        self.datasets.close()
        self.health.close()

    # Inside -----------------------------------------------------------------------------------------------------

    def _release(self, run: str) -> str:
        """Free what is loaded of a run that is to be deleted; return who still works with it, "" for nobody."""
        return "export" if self.exports.is_writing(run) else self.talks.release(run)

    def _uses_caches(self) -> bool:
        """Whether something reads or writes what is compiled, converted or fetched."""
        exporting = self.exports.job is not None and not self.exports.job.ended
        return bool(self.running.busy()) or exporting or self.talks.busy or self.datasets.view().working

    def _find_loss(self) -> str:
        """Return what no later process goes on with: `export`, `test` or ""."""
        if self.exports.busy:
            return "export"
        return "test" if self.talks.testing else ""

    def _refuse_loss(self) -> None:
        lost = self._find_loss()
        if lost:
            raise StudioError(
                text(f"desk.restart.{lost}"), text("desk.restart.why"), text(f"desk.restart.{lost}.fix")
            )

    def _forget(self, run: str) -> None:
        """Let what is kept of a deleted run elsewhere go with it."""
        self.queue.forget(run)
        self.talks.files.forget(run)

    def _folder(self, run: str) -> Any:
        from studio.engine.run_folder import find_run

        return find_run(self.workspace.runs, run)

    def _find_result(self, run: str, place: str = "") -> Any:
        """Return what `run` made, for a model of it to be loaded on this machine: the libraries for that come next."""
        machine = self.health.machine()
        hide_broken_triton(machine)
        return find_result(self._folder(run), machine, place)
