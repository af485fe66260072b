"""The queue: what runs next, kept in one file; the next run starts by itself when the engine is free."""

from __future__ import annotations

import dataclasses
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from studio.core.atomic_files import replace_file, write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import Problem, StudioError
from studio.core.heartbeat import PARENT_VARIABLE
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.core.migrate import QUEUE_VERSION, lift
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import RunFolder
from studio.machine.failures import refuse_system
from studio.services.recipe_problems import refuse
from studio.services.runs import Runs

ENDED_KEPT = 50
"""Items that ended stay to be seen; beyond this many the oldest go."""
WAITING_LIMIT = 200
"""More than a person puts there; a program that adds without end is stopped here."""
ItemState = Literal["waiting", "running", "done", "failed", "stopped"]
END_STATES: dict[str, ItemState] = {"finished": "done", "failed": "failed"}
"""State of a run's record -> state of its item; every other end is a stop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueItem:
    """One run that was asked for: it waits, runs, or has ended."""

    id: str
    name: str
    recipe: Recipe
    state: ItemState = "waiting"
    run: str = ""
    """The run's id; "" while it waits, and where it never began."""
    added_s: float = 0.0
    ended_s: float = 0.0
    problem: Text | None = None
    """What ended it, or kept it from beginning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueFile:
    """queue.json: all that outlives the process. Items are in the order in which they came to run, or will."""

    version: int = QUEUE_VERSION
    session: str = ""
    """Under which supervisor it was written: its restarts go on, any other start waits for the person."""
    reason: Text | None = None
    """Why nothing is begun; None when the next item may begin."""
    keep_going: bool = False
    items: tuple[QueueItem, ...] = ()


class Queue:
    """Runs one after another. Methods may be called from any thread; what changes is on disk when they return.

    A run that is started directly is an item too. Nothing polls: the end of a run, a new item and the person's word
    are what begin the next one. A person's Stop holds the queue, so does a failure unless `keep_going`.
    """

    def __init__(
        self,
        file: Path | None,
        runs: Runs,
        check: Callable[[Recipe], tuple[Problem, ...]],
        later: Callable[[Callable[[], None]], Any],
        *,
        session: str = "",
    ) -> None:
        """`later` does a job when the engine is free. `file` None keeps the queue in memory (command line)."""
        self.file = file
        self._runs, self._check, self._later = runs, check, later
        self._session = session or name_session()
        self._lock = threading.RLock()
        self._kept: QueueFile | None = None
        self._notice: Text | None = None

    # What there is ----------------------------------------------------------------------------------------------

    def items(self) -> tuple[QueueItem, ...]:
        """Return the one that runs, those that wait in their order, and those that ended, last first."""
        items = self._state().items
        by_state = {state: [i for i in items if i.state == state] for state in ("running", "waiting")}
        ended = [item for item in reversed(items) if item.state not in by_state]
        return (*by_state["running"], *by_state["waiting"], *ended)

    @property
    def held(self) -> bool:
        """Whether nothing begins until the person says so."""
        return self._state().reason is not None

    @property
    def reason(self) -> Text | None:
        """Why it is held; None when it is not."""
        return self._state().reason

    @property
    def keep_going(self) -> bool:
        """Whether the next item begins after a failed one too."""
        return self._state().keep_going

    @property
    def notice(self) -> Text | None:
        """What went wrong with the queue's own file; None when nothing did."""
        self._state()
        return self._notice

    # What a person does -----------------------------------------------------------------------------------------

    def add(self, recipe: Recipe) -> QueueItem:
        """Put `recipe` at the end; it begins at once when nothing is on. Raises StudioError when too many wait."""
        with self._lock:
            if sum(item.state == "waiting" for item in self._state().items) >= WAITING_LIMIT:
                raise _refusal("queue.full", limit=WAITING_LIMIT)
            item = self._make_item(recipe)
            self._keep(items=(*self._state().items, item))
        self.wake()
        return item

    def start(self, recipe: Recipe, *, checked: bool = False) -> str:
        """Check `recipe` and start it past those that wait; returns the run's id at once.

        Raises StudioError: what refuse() makes of the errors found, another run is on; OSError (disk full).
        """
        errors = () if checked else _errors(self._check(recipe))
        if errors:
            raise refuse(errors)
        with self._lock:
            return self._begin(self._make_item(recipe))

    def resume(self, run: str, *, paused: bool = False) -> None:
        """Go on with a run that ended before its time. Raises StudioError when it cannot."""
        with self._lock:
            self._state()
            self._runs.resume(run, paused=paused)
            folder = RunFolder(self._runs.workspace.runs / run)
            item = self._of(run)
            if item is None:
                recipe = folder.read_recipe()
                item = _name_item(recipe, folder.read_name(recipe.name) or run)
            self._put(dataclasses.replace(item, state="running", run=run, ended_s=0.0, problem=None))

    def move(self, id: str, steps: int) -> None:
        """Let a waiting item come `steps` places later, earlier when negative. Raises StudioError."""
        with self._lock:
            item = self._waiting(id)
            waiting = [each for each in self._state().items if each.state == "waiting"]
            others = [each for each in self._state().items if each.state != "waiting"]
            place = min(max(waiting.index(item) + steps, 0), len(waiting) - 1)
            waiting.remove(item)
            waiting.insert(place, item)
            self._keep(items=(*others, *waiting))

    def drop(self, id: str) -> None:
        """Take a waiting or ended item out; its run stays. Raises StudioError for the one that runs."""
        with self._lock:
            item = self._find(id)
            if item.state == "running":
                raise _refusal("queue.runs", name=item.name)
            self._keep(items=tuple(each for each in self._state().items if each.id != id))

    def clear(self) -> None:
        """Take all ended items out; their runs stay."""
        with self._lock:
            items = self._state().items
            self._keep(items=tuple(each for each in items if each.state in ("waiting", "running")))

    def hold(self, on: bool) -> None:
        """Begin nothing more, or go on."""
        with self._lock:
            self._keep(reason=text("queue.held.person") if on else None)
        self.wake()

    def set_keep_going(self, on: bool) -> None:
        """Choose whether the next item begins after a failed one too."""
        with self._lock:
            self._keep(keep_going=bool(on))

    # What happens to it -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Begin the next item as soon as the engine is free; nothing happens when there is none, or it is held."""
        if self._next() is not None:
            with suppress(RuntimeError):  # the engine's thread has ended: the studio closes
                self._later(self._advance)

    def note_end(self, record: RunRecord, *, by_person: bool) -> None:
        """Take in how a run ended, and begin the next one."""
        with self._lock:
            item = self._of(record.run)
            if item is not None and item.state == "running":
                self._end(item, record)
                if by_person:
                    self._hold(text("queue.held.stopped", name=item.name))
        self.wake()

    def note_refused(self, run: str, problem: Text) -> None:
        """Mark the item of a run that could not go on."""
        with self._lock:
            item = self._of(run)
            if item is not None:
                self._fail(item, problem)

    def rename(self, run: str, name: str) -> None:
        """Call the item of a run that was given another name by that name."""
        with self._lock:
            item = self._of(run)
            if item is not None:
                self._keep(
                    items=tuple(
                        dataclasses.replace(each, name=name) if each.id == item.id else each
                        for each in self._state().items
                    )
                )

    def forget(self, run: str) -> None:
        """Take out the item of a run that is gone."""
        with self._lock:
            if self._of(run) is not None:
                self._keep(items=tuple(each for each in self._state().items if each.run != run))

    def _advance(self) -> None:
        """Begin the next item that can; on the engine's thread, between two of its jobs."""
        while (item := self._next()) is not None:
            problem = self._find_problem(item.recipe)
            with self._lock:
                if self._next() is not item:
                    continue  # it was moved or dropped, or the person started another
                if problem is not None:
                    self._fail(item, problem)
                    continue
                try:
                    self._begin(item)
                except StudioError as error:  # another process trains in this workspace
                    self._hold(error.what)
                except OSError as error:  # a full disk
                    self._fail(item, refuse_system(error).what)

    def _begin(self, item: QueueItem) -> str:
        """Launch an item's run and return its id, by which an item without a name goes from then on."""
        run = self._runs.launch(item.recipe)
        self._put(dataclasses.replace(item, name=item.recipe.name or run, state="running", run=run))
        return run

    def _find_problem(self, recipe: Recipe) -> Text | None:
        """Return what keeps `recipe` from running now: files may be gone since it was added."""
        try:
            errors = _errors(self._check(recipe))
        except StudioError as error:
            return error.what
        except OSError as error:
            return refuse_system(error).what
        return refuse(errors).what if errors else None

    def _next(self) -> QueueItem | None:
        with self._lock:
            if self.held or self._runs.active or self._runs.closing.is_set():
                return None
            return next((item for item in self._state().items if item.state == "waiting"), None)

    def _end(self, item: QueueItem, record: RunRecord) -> None:
        state = END_STATES.get(record.state, "stopped")
        what = record.diagnosis.what if record.diagnosis else None
        run = item.run if (self._runs.workspace.runs / item.run).exists() else ""  # discarded
        if state == "failed":
            self._fail(dataclasses.replace(item, run=run), what or text("queue.failed"))
            return
        self._put(dataclasses.replace(item, state=state, run=run, ended_s=time.time(), problem=None))

    def _fail(self, item: QueueItem, problem: Text) -> None:
        self._put(dataclasses.replace(item, state="failed", ended_s=time.time(), problem=problem))
        if not self.keep_going:
            self._hold(text("queue.held.failed", name=item.name))

    def _hold(self, reason: Text) -> None:
        """Hold what waits; where nothing waits, the next item that is added may begin."""
        if any(item.state == "waiting" for item in self._state().items) and not self.held:
            self._keep(reason=reason)

    # Keeping it -------------------------------------------------------------------------------------------------

    def _of(self, run: str) -> QueueItem | None:
        return next((item for item in self._state().items if run and item.run == run), None)

    def _find(self, id: str) -> QueueItem:
        found = next((item for item in self._state().items if item.id == id), None)
        if found is None:
            raise _refusal("queue.unknown")
        return found

    def _waiting(self, id: str) -> QueueItem:
        item = self._find(id)
        if item.state != "waiting":
            raise _refusal("queue.begun", name=item.name)
        return item

    def _make_item(self, recipe: Recipe) -> QueueItem:
        """Return an item for `recipe` under a name that no other has that runs or waits."""
        item = _name_item(recipe, recipe.name or time.strftime("%Y-%m-%d %H:%M"))
        taken = {each.name for each in self._state().items if each.state in ("waiting", "running")}
        name, number = item.name, 2
        while name in taken:
            name, number = f"{item.name}-{number}", number + 1
        recipe = dataclasses.replace(recipe, name=name) if recipe.name else recipe
        return dataclasses.replace(item, name=name, recipe=recipe)

    def _put(self, item: QueueItem) -> None:
        """Keep `item` in place of the one with its id, before those that wait unless it waits itself."""
        others = [each for each in self._state().items if each.id != item.id]
        first = next((i for i, each in enumerate(others) if each.state == "waiting"), len(others))
        others.insert(first, item)
        self._keep(items=tuple(others))

    def _keep(self, **changes: Any) -> None:
        kept = dataclasses.replace(self._state(), **changes)
        ended = [item for item in kept.items if item.state not in ("waiting", "running")]
        gone = {item.id for item in ended[: max(0, len(ended) - ENDED_KEPT)]}
        self._kept = dataclasses.replace(
            kept, items=tuple(item for item in kept.items if item.id not in gone)
        )
        if self.file is None:
            return
        try:
            write_json(self.file, to_json(self._kept), lasting=True)
        except OSError as error:  # a full disk: what is in memory stays the truth
            self._notice = text("queue.unwritten", reason=refuse_system(error).what)
        else:
            if self._notice is not None and self._notice.id == "queue.unwritten":
                self._notice = None

    def _state(self) -> QueueFile:
        """Return what is kept; read on first use, so that a command that only looks at runs touches nothing."""
        with self._lock:
            if self._kept is None:
                found = self._read()
                self._kept = dataclasses.replace(found, session=self._session)
                for item in found.items:
                    if item.state == "running" and item.run != self._runs.active:
                        self._end(item, self._record_of(item.run))
                if found.session != self._session:
                    self._hold(text("queue.held.restarted"))
            return self._kept

    def _record_of(self, run: str) -> RunRecord:
        """Return the record of a run that the last process left; a lost one counts as stopped."""
        try:
            return RunFolder(self._runs.workspace.runs / run).read_record()
        except StudioError:
            return RunRecord(run=run, name=run, state="stopped", created_s=0.0)

    def _read(self) -> QueueFile:
        if self.file is None or not self.file.exists():
            return QueueFile(session=self._session)
        try:
            return from_json(QueueFile, lift("queue", _require_object(read_json(self.file))))
        except StudioError as error:
            aside = self.file.with_name(f"{self.file.name}.broken")
            self._notice = text("queue.broken", name=aside.name, reason=error.what)
            with suppress(OSError):  # Windows: somebody reads it just now; the next change replaces it
                replace_file(self.file, aside)
            return QueueFile(session=self._session)


def name_session() -> str:
    """Return a name of the supervisor that this process lives under, of the process itself without one."""
    pid = int(os.environ.get(PARENT_VARIABLE, "0")) or os.getpid()
    try:
        return f"{pid}-{psutil.Process(pid).create_time():.2f}"
    except psutil.Error:  # it is just ending
        return f"{pid}-{secrets.token_hex(4)}"


def _name_item(recipe: Recipe, name: str) -> QueueItem:
    """Return an item that waits."""
    return QueueItem(id=secrets.token_hex(4), name=name, recipe=recipe, added_s=round(time.time(), 3))


def _errors(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    return tuple(problem for problem in problems if problem.severity == "error")


def _require_object(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _refusal("queue.no_object")
    return data


def _refusal(id: str, **values: object) -> StudioError:
    return StudioError(text(id, **values), text(f"{id}.why"), text(f"{id}.fix"))
