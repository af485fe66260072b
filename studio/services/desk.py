"""The whole API that screens and the command line use: facts, checks, runs, chat and export of one workspace."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from studio.core.errors import StudioError
from studio.core.heartbeat import PARENT_VARIABLE, request_restart
from studio.core.i18n import text
from studio.machine.workspace import Workspace
from studio.services.chat_service import ChatService
from studio.services.dataset_session import Datasets
from studio.services.evaluations import Evaluations
from studio.services.event_log import EventLogs
from studio.services.exports import Exports
from studio.services.hub_uploads import Uploads
from studio.services.machine_state import MachineState, hide_broken_triton
from studio.services.model_library import ModelLibrary
from studio.services.preferences import Preferences
from studio.services.presets import Presets
from studio.services.queue import Queue
from studio.services.recipe_checks import RecipeChecks
from studio.services.results import find_result
from studio.services.reward_code import RewardCode
from studio.services.reward_trials import RewardTrials
from studio.services.reward_verdicts import RewardVerdicts
from studio.services.run_answers import RunAnswers
from studio.services.run_library import RunLibrary
from studio.services.runs import Runs
from studio.services.sharing import Sharing
from studio.services.worker import Worker


class Desk:
    """What a person can do in one workspace, by nouns, and the life of this process.

    Methods may be called from any thread; heavy work goes to threads of its own.

    `on_end` is called when the window is to end by itself: for a restart, or for the studio inside WSL2. `keep_queue`
    False is for commands that run beside the window: what they start is in no queue on disk.
    """

    def __init__(
        self, workspace: Workspace, on_end: Callable[[], None] = lambda: None, *, keep_queue: bool = True
    ) -> None:
        self.workspace = workspace
        self.restarting = False
        """Whether this process is to end with RESTART_CODE."""
        self._on_end = on_end
        self._engine = Worker("engine")
        self._light = Worker("light")
        self.machine = MachineState(workspace)
        self.datasets = Datasets(workspace)
        self.runs = Runs(
            workspace,
            self.machine,
            EventLogs(workspace.runs),
            self._engine,
            on_begin=lambda: self.chat.unload(),
            on_end=lambda record, by_person: self.queue.note_end(record, by_person=by_person),
        )
        self.reward_code = RewardCode(workspace)
        verdicts = RewardVerdicts(workspace)
        self.recipes = RecipeChecks(
            workspace,
            self.machine,
            self.datasets,
            self._light,
            self.reward_code,
            verdicts,
            confirmed=keep_queue,
        )
        self.queue = Queue(
            workspace.queue if keep_queue else None, self.runs, self.recipes.check, self._engine.submit
        )
        self.models = ModelLibrary(workspace, self.machine, self.datasets, self.recipes)
        self.presets = Presets(workspace, self.runs)
        self.library = RunLibrary(workspace, self.runs, self.machine.facts, self._forget, self._release)
        self.chat = ChatService(workspace, self.machine, self._engine, self.runs)
        self.evaluations = Evaluations(workspace, self.chat, self.machine.facts)
        self.answers = RunAnswers(workspace)
        self.trials = RewardTrials(workspace, self.chat, verdicts)
        self.settings = Preferences(workspace, self._uses_caches)
        self.exports = Exports(
            workspace, self._engine, self.runs, find=self._find_result, make_room=self.chat.unload
        )
        self.uploads = Uploads(self.exports, self.runs, self.machine.mirror)
        self.sharing = Sharing(workspace)

    # This process ---------------------------------------------------------------------------------------------------

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
                self.runs.note_death(failed)
            if resumed:
                self.queue.resume(resumed, paused=self.runs.was_paused(resumed))
        except StudioError as error:
            self.queue.note_refused(resumed, error.what)
            raise
        finally:
            self.queue.wake()

    def restart(self) -> bool:
        """Ask for a new process in which the active run goes on; returns at once, False without a supervisor.

        Raises StudioError while an export, an upload or a test is on, which would not go on by itself.
        """
        if PARENT_VARIABLE not in os.environ:
            return False
        self._refuse_unfinished()
        request_restart(self.workspace.heartbeat, self.runs.active)
        self.restarting = True
        self.runs.stop_all()
        self._on_end()
        return True

    def hand_over(self, port: int) -> None:
        """Let the studio inside WSL2 take this workspace and `port`, and end here.

        Raises StudioError during a run, an export, an upload or a test.
        """
        self.runs.refuse_busy()
        self._refuse_unfinished()
        self.machine.open_bridge(port)
        self.runs.stop_all()
        self._on_end()

    def quit(self) -> None:
        """Let this process, and the studio with it, end: a run with a checkpoint first. Returns at once."""
        self.runs.stop_all()
        self._on_end()

    def working(self) -> str:
        """Return what ends with this process: `run`, `export`, `upload`, `test` (its answers are lost), "" nothing."""
        return "run" if self.runs.active else self._find_unfinished()

    def is_busy(self) -> bool:
        """Return whether the engine's thread, or that of light work, has something to do."""
        return self._engine.busy or self._light.busy or self.uploads.busy

    def close(self, timeout_s: float = 18.0) -> None:
        """Stop the active run with a checkpoint and let the threads end; returns after at most `timeout_s`."""
        self.runs.stop_all()
        self.uploads.close()
        self._engine.close(timeout_s)
        self._light.close(0.1)
        self.chat.close()
        self.trials.close()
        self.datasets.close()
        self.machine.close()

    # Inside -----------------------------------------------------------------------------------------------------

    def _release(self, run: str) -> str:
        """Free what is loaded of a run that is to be deleted; return who still works with it, "" for nobody."""
        return "export" if self.exports.is_writing(run) else self.chat.release(run)

    def _uses_caches(self) -> bool:
        """Whether something reads or writes what is compiled, converted or fetched."""
        exporting = self.exports.job is not None and not self.exports.job.ended
        return bool(self.runs.busy()) or exporting or self.chat.busy or self.datasets.view().working

    def _find_unfinished(self) -> str:
        """Return what no later process goes on with by itself: `export`, `upload`, `test` or ""."""
        if self.exports.busy or self.uploads.busy:
            return "export" if self.exports.busy else "upload"
        return "test" if self.chat.testing else ""

    def _refuse_unfinished(self) -> None:
        work = self._find_unfinished()
        if work:
            raise StudioError(
                text(f"desk.restart.{work}"), text("desk.restart.why"), text(f"desk.restart.{work}.fix")
            )

    def _forget(self, run: str) -> None:
        """Let what is kept of a deleted run elsewhere go with it."""
        self.queue.forget(run)
        self.chat.files.forget(run)

    def _find_result(self, run: str, place: str = "") -> Any:
        """Return what `run` made, for a model of it to be loaded on this machine: the libraries for that come next."""
        machine = self.machine.facts()
        hide_broken_triton(machine)
        return find_result(self.runs.folder(run), machine, place)
