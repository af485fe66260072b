"""Talking to models: whom there is to talk to, one answer after another, files of questions, memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import Choice, Verdict
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.machine.workspace import Workspace
from studio.services.answer_queue import AnswerQueue, QueuedAnswer
from studio.services.chat_history import TalkFiles
from studio.services.machine_state import MachineState
from studio.services.partners import explain_failure, find_partner, has_other_base
from studio.services.runs import Runs
from studio.services.worker import Job, Worker


@dataclass(frozen=True, slots=True)
class TalkChoice:
    """A run that can be talked to, or why not."""

    record: RunRecord
    places: tuple[Any, ...]
    """Its engine.places.Place: the result first, then checkpoints, newest first."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What is in memory for answers."""

    name: str
    """Of the base model."""
    run: str
    checkpoint: str
    device: str
    size_bytes: int
    base_changed: bool = False
    """Whether an adapter answers on other weights than those it was trained on."""
    slow: Text | None = None
    """Why the model's own code answered last, None where the studio's decoder did."""
    ahead: Choice | None = None
    """Whether the last answers were read ahead of by guesses, and why; None before there was one, and where `slow`."""


class ChatService:
    """Answers of the desk's models, one at a time. Methods may be called from any thread.

    They are computed on the engine's thread; while a run holds it paused, on one of their own.
    """

    def __init__(self, workspace: Workspace, health: MachineState, engine: Worker, runs: Runs) -> None:
        self.workspace = workspace
        self.files = TalkFiles(workspace)
        """The last talk with each run."""
        self.test: Job | None = None
        """The last test with many questions, on or ended."""
        self._health = health
        self._engine = engine
        self._aside = Worker("talks")
        self._tests = Worker("tests")
        self._runs = runs
        self._hold = threading.Lock()
        """Held by whoever uses the loaded model."""
        self._speaker: Any = None
        self._loaded: LoadedModel | None = None
        self._turn = 0
        self._queue = AnswerQueue(self._worker, self._hold, self._speak_to, self._sparing, self._must_end)
        self._asked: list[str] = []
        """Runs whose models are answering, one entry an answer."""
        self._tested = ""
        self.addressed = False
        """Whether an address answers other programs, which would be lost with this process."""

    # Who -------------------------------------------------------------------------------------------------------------

    def choices(self, records: Sequence[RunRecord]) -> tuple[TalkChoice, ...]:
        """Return the runs among `records` that have a result or a checkpoint, in their order."""
        from studio.engine.run_folder import RunFolder
        from studio.engine.run_states import list_places

        found = [
            TalkChoice(record, list_places(RunFolder(self.workspace.runs / record.run), record))
            for record in records
        ]
        return tuple(choice for choice in found if choice.places)

    def find_place(self, run: str) -> str:
        """Return the place that answers for `run` where none is named: its result, else its newest whole checkpoint.

        "" for the result, and where there is nothing. Raises StudioError for a run that does not exist.
        """
        from studio.engine.run_folder import find_run
        from studio.engine.run_states import RESULT, list_places

        folder = find_run(self.workspace.runs, run)
        places = list_places(folder, folder.read_record())
        if places and places[0].name == RESULT:
            return RESULT
        return next((place.name for place in places if place.problem is None), "")

    def state(self) -> Verdict:
        """Return whether an answer can be had now, else why it must wait."""
        if not self._is_free():
            return Verdict(ok=False, reason=text("chat.waits", run=self._runs.busy()))
        before = self._worker().doing
        return Verdict(ok=False, reason=text(f"chat.waits.{before}")) if before else Verdict(ok=True)

    def loaded(self) -> LoadedModel | None:
        """Return what is in memory for answers, None when nothing is."""
        loaded, speaker = self._loaded, self._speaker
        if loaded is None or speaker is None:
            return loaded
        return replace(loaded, slow=speaker.slow, ahead=speaker.ahead)

    @property
    def busy(self) -> bool:
        """Whether an answer or a test is on."""
        return bool(self._asked) or (self.test is not None and not self.test.ended)

    # Answers ---------------------------------------------------------------------------------------------------------

    def answer(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        run: str = "",
        checkpoint: str = "",
        recipe: Recipe | None = None,
        side: str = "tuned",
        system: str = "",
        should_stop: Callable[[], bool] = lambda: False,
        **sampling: float,
    ) -> Iterator[Any]:
        """Yield the growing engine.chat.Answer of the `base` or `tuned` model of `run` at `checkpoint` ("" its result).

        Without a run the base model of `recipe` answers. `sampling`: as engine.chat.Sampling has it. Ends early and
        without an error when the generator is closed, `should_stop` says so, or a run starts. Raises StudioError, also
        while a run trains.
        """
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = threading.Event()
        asked = [dict(message) for message in messages]
        if system.strip():
            words = system.strip().encode("utf-8", "replace").decode("utf-8")
            asked = [{"role": "system", "content": words}, *asked]
        wish = self.ask(
            answers.put,
            run=run,
            checkpoint=checkpoint,
            recipe=recipe,
            side=side,
            should_stop=lambda: ended.is_set() or should_stop(),
            sampling=sampling,
            messages=asked,
        )
        try:
            yield from self._queue.follow(wish, answers)
        finally:
            ended.set()
            self._leave(run, wish.leaving)

    def ask(
        self,
        tell: Callable[[Any], None],
        *,
        run: str = "",
        checkpoint: str = "",
        recipe: Recipe | None = None,
        side: str = "tuned",
        should_stop: Callable[[], bool] = lambda: False,
        sampling: Mapping[str, float],
        **asked: Any,
    ) -> QueuedAnswer:
        """Ask for one answer, as answer() does, and return at once.

        `tell` hears the growing Answer, then None, or what was raised, on other threads; the same model answers all who
        ask meanwhile together. `asked`: further fields of engine.generation.answer_request.AnswerRequest. Raises
        StudioError while a run trains.
        """
        self.refuse_while_training()
        turn, leaving = self._turn, threading.Lock()

        def hear(said: Any) -> None:
            if said is None or isinstance(said, BaseException):
                self._leave(run, leaving)
            tell(said)

        self._asked.append(run)
        wish = QueuedAnswer(
            run=run,
            checkpoint=checkpoint,
            recipe=recipe,
            side=side,
            turn=turn,
            tell=hear,
            should_stop=lambda: self._must_end(turn) or should_stop(),
            asked=asked,
            sampling=dict(sampling),
            leaving=leaving,
        )
        self._queue.add(wish)
        return wish

    def _leave(self, run: str, leaving: threading.Lock) -> None:
        if leaving.acquire(blocking=False):  # once: by its end, or by who wants no more
            self._asked.remove(run)

    @property
    def waiting(self) -> int:
        """How many wait for an answer that has not begun."""
        return self._queue.count

    def lend(
        self,
        run: str,
        checkpoint: str,
        recipe: Recipe | None,
        work: Callable[[Any, Callable[[], bool]], Any],
    ) -> Any:
        """Return `work(engine.chat.Speaker, should_stop)` with the model loaded; waits for its turn and its end.

        None where it must end before it begins: a run begins, or what it waited for made room. Raises StudioError, also
        where memory is too small, and what `work` raises.
        """
        turn = self._turn

        def use() -> Any:
            with self._hold:
                if self._must_end(turn):
                    return None
                speaker = self._speak(run, checkpoint, recipe)
                return self._sparing(lambda: work(speaker, lambda: self._must_end(turn)))

        self._asked.append(run)
        try:
            return self._worker().submit(use, "test").result()
        finally:
            self._asked.remove(run)

    # Tests with many questions ---------------------------------------------------------------------------------------

    def begin_test(self, run: str, work: Callable[[Job], Any]) -> Job:
        """Do `work(job)` on a thread of its own, as the one test of the desk. `run`: whose files it reads.

        Raises StudioError while a run trains or another test is on.
        """
        self.refuse_while_training()
        if self.test is not None and not self.test.ended:
            raise StudioError(text("test.busy"), text("test.busy.why"), text("test.busy.fix"))
        self.test, self._tested = Job(), run
        return self.test.begin(self._tests, work, "test")

    @property
    def testing(self) -> bool:
        """Whether a test is on, or waits for its turn, that nobody has asked to end."""
        return self.test is not None and not (self.test.ended or self.test.stopping)

    # Memory ----------------------------------------------------------------------------------------------------------

    def load(self, run: str = "", checkpoint: str = "", recipe: Recipe | None = None) -> LoadedModel:
        """Load what answers for `run`, or for `recipe`, before anybody asks; waits. Raises StudioError."""
        self.refuse_while_training()

        def load() -> LoadedModel:
            with self._hold:
                self._speak(run, checkpoint, recipe)
                return self._loaded

        return self._worker().call(load)

    def unload(self) -> int:
        """Free what is loaded for answers and return how many bytes that were; answers end where they are.

        Called before a run loads or goes on, too.
        """
        self._turn += 1
        with self._hold:
            size_bytes = self._loaded.size_bytes if self._loaded else 0
            self._drop()
        return size_bytes

    def release(self, run: str) -> str:
        """Free what is loaded of `run`, unless somebody is at it: then return who, `test` or `talk`."""
        if self.test is not None and not self.test.ended and self._tested == run:
            return "test"
        if run in self._asked:
            return "talk"
        loaded = self._loaded
        if loaded is not None and loaded.run == run:
            self.unload()
        return ""

    def close(self) -> None:
        """Let the own threads end."""
        self._aside.close(0.1)
        self._tests.close(0.1)

    def refuse_while_training(self) -> None:
        """Raise StudioError while a run has the engine."""
        if not self._is_free():
            self._runs.refuse_busy()

    def _is_free(self) -> bool:
        """Whether no run is on, here or in another process, or the one that is holds still."""
        return not self._runs.busy() or self._runs.holding

    def _must_end(self, turn: int) -> bool:
        """Whether what was begun at `turn` is to end; asked with every token."""
        return not self._is_free() or self._runs.closing.is_set() or turn != self._turn

    def _worker(self) -> Worker:
        return self._engine if self._runs.active is None else self._aside

    def _drop(self) -> None:
        self._loaded = None
        if self._speaker is not None:
            from studio.engine.oom_fallback import release_memory

            self._speaker = None
            release_memory()

    # Inside ----------------------------------------------------------------------------------------------------------

    def _speak(self, run: str, checkpoint: str, recipe: Recipe | None) -> Any:
        """Return the Speaker asked for, loading it when another or none is loaded. Only while holding `_hold`."""
        from studio.engine.chat import Speaker

        partner = find_partner(self.workspace, self._health.facts(), run, checkpoint, recipe)
        if self._speaker is None or not self._speaker.serves(partner):
            self._drop()
            self._speaker = self._sparing(lambda: Speaker(partner))
        speaker, other = self._speaker, has_other_base(self.workspace, partner)
        names = partner.facts.name, partner.run, partner.place
        self._loaded = LoadedModel(*names, speaker.device, speaker.size_bytes, other)
        return speaker

    def _speak_to(self, wish: QueuedAnswer) -> Any:
        return self._speak(wish.run, wish.checkpoint, wish.recipe)

    def _sparing(self, work: Callable[[], Any]) -> Any:
        """Do `work`; what fails in it becomes a StudioError, and what was loaded makes room."""
        from studio_kernels.dispatch import ERRORS

        try:
            return work()
        except (MemoryError, *ERRORS) as error:
            self._drop()
            raise explain_failure(error) from error


def say_place(name: str, step: int) -> Text:
    """Return what a place of a run is called."""
    return text("chat.place.step", step=step) if name else text("chat.place.result", step=step)
