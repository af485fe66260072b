"""Talking to models: whom there is to talk to, one answer after another, files of questions, memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import Verdict
from studio.core.i18n import Text, text
from studio.core.recipe import Recipe
from studio.core.run_record import SIDES, RunRecord
from studio.data.questions import QuestionSet
from studio.machine.workspace import Workspace
from studio.models.catalog import inspect_model
from studio.models.resolve import open_packed
from studio.planning.learned_limits import Remembered
from studio.planning.run_plan import plan
from studio.services.chat_history import TalkFiles
from studio.services.eval_table import EvalTable, make_table
from studio.services.machine_state import MachineState, hide_broken_triton
from studio.services.results import find_result
from studio.services.runs import Runs
from studio.services.worker import Job, Worker

POLL_S = 0.2


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
        self._runs = runs
        self._hold = threading.Lock()
        """Held by whoever uses the loaded model."""
        self._speaker: Any = None
        self._loaded: LoadedModel | None = None
        self._turn = 0
        self._asked: list[str] = []
        """Runs whose models are answering, one entry an answer."""
        self._tested = ""

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
        return self._loaded

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
        self.refuse_while_training()
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = threading.Event()
        turn = self._turn
        asked = [dict(message) for message in messages]
        if system.strip():
            words = system.strip().encode("utf-8", "replace").decode("utf-8")
            asked = [{"role": "system", "content": words}, *asked]

        def should_end() -> bool:
            return ended.is_set() or self._must_end(turn) or should_stop()

        def speak() -> None:
            try:
                if should_end():
                    answers.put(None)
                    return
                from studio.engine.chat import Sampling

                drawn = Sampling(**sampling)
                with self._hold:
                    if not should_end():  # what it waited for may have been to make room
                        speaker = self._speak(run, checkpoint, recipe)
                        self._sparing(lambda: speaker.stream(asked, side, drawn, answers.put, should_end))
                        self._loaded = replace(self._loaded, slow=speaker.explain_slow(side))
                answers.put(None)
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
                answers.put(error)

        self._asked.append(run)
        try:
            self._worker().submit(speak)
            while True:
                try:
                    answer = answers.get(timeout=POLL_S)
                except queue.Empty:
                    if should_end():  # also while the model is still being loaded
                        return
                    continue
                if answer is None:
                    return
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            ended.set()
            self._asked.remove(run)

    def lend(
        self,
        run: str,
        checkpoint: str,
        recipe: Recipe | None,
        work: Callable[[Any, Callable[[], bool]], Any],
    ) -> Any:
        """Return `work(engine.chat.Speaker, should_stop)` with the model loaded; waits for its turn and its end.

        Raises StudioError, also where memory is too small, and what `work` raises.
        """

        def use() -> Any:
            with self._hold:
                return self._sparing(
                    lambda: work(self._speak(run, checkpoint, recipe), lambda: self._runs.stopping)
                )

        self._asked.append(run)
        try:
            return self._worker().call(use)
        finally:
            self._asked.remove(run)

    # Tests with many questions ---------------------------------------------------------------------------------------

    def start_test(
        self,
        questions: QuestionSet,
        *,
        run: str = "",
        checkpoint: str = "",
        recipe: Recipe | None = None,
        sides: Sequence[str] = SIDES,
        system: str = "",
        max_new_tokens: int = 256,
    ) -> Job:
        """Let both sides answer every question greedily; the Job's result is a Table, of what was reached when stopped.

        Raises StudioError while a run trains or another test is on.
        """
        self.refuse_while_training()
        if self.test is not None and not self.test.ended:
            raise StudioError(text("test.busy"), text("test.busy.why"), text("test.busy.fix"))
        turn = self._turn
        sides = tuple(sides) if run else ("base",)

        def should_stop() -> bool:
            return job.stopping or self._must_end(turn)

        def work(job: Job) -> EvalTable:
            from studio.engine.answer_losses import measure_losses, render_expected

            job.tell(text("test.loading"))
            speaker = self._speak(run, checkpoint, recipe)
            front = ({"role": "system", "content": system.strip()},) if system.strip() else ()
            asked = [
                prompt.messages if prompt.messages[0]["role"] == "system" else (*front, *prompt.messages)
                for prompt in questions.asked
            ]
            wanted = [prompt.expected for prompt in questions.asked]
            rows = render_expected(speaker.tokenizer, asked, wanted)
            limit = getattr(speaker.tuned.config.get_text_config(), "max_position_embeddings", 0) or 0
            answers, losses = {}, {}
            for side in sides:
                told = text(f"test.answers.{side}")
                job.tell(told, 0, len(asked))
                answers[side] = speaker.answer_all(
                    asked,
                    side,
                    max_new_tokens=max_new_tokens,
                    on_progress=lambda done, total, told=told: job.tell(told, done, total),
                    should_stop=should_stop,
                )
                told = text(f"test.losses.{side}")
                with speaker.using(side) as model:
                    losses[side] = measure_losses(
                        model,
                        rows,
                        pad_id=speaker.tokenizer.pad_token_id,
                        limit=limit,
                        on_progress=lambda done, total, told=told: job.tell(told, done, total),
                        should_stop=should_stop,
                    )
                if should_stop():
                    break
            return make_table(questions, run, checkpoint, answers, losses, whole=not should_stop())

        def hold(job: Job) -> EvalTable:
            with self._hold:
                if should_stop():  # what it waited for may have been to make room: nothing is loaded any more
                    return make_table(questions, run, checkpoint, {}, {}, whole=False)
                return self._sparing(lambda: work(job))

        job, self._tested = Job(), run
        self.test = job
        return job.begin(self._worker(), hold, "test")

    @property
    def testing(self) -> bool:
        """Whether a test is on, or waits for its turn, that nobody has asked to end."""
        return self.test is not None and not (self.test.ended or self.test.stopping)

    # Memory ----------------------------------------------------------------------------------------------------------

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
        """Let the own thread end."""
        self._aside.close(0.1)

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

        partner = self.find_partner(run, checkpoint, recipe)
        if self._speaker is None or not self._speaker.serves(partner):
            self._drop()
            self._speaker = self._sparing(lambda: Speaker(partner))
        speaker, other = self._speaker, self._has_other_base(partner)
        names = partner.facts.name, partner.run, partner.place
        self._loaded = LoadedModel(*names, speaker.device, speaker.size_bytes, other)
        return speaker

    def _has_other_base(self, partner: Any) -> bool:
        """Return whether the base under the adapter of `partner` changed since: its words look like any others then."""
        from studio.engine.base_hash import hash_base

        record = partner.record
        if record is None or not record.base_hash or partner.recipe.adapter.method == "full":
            return False
        # Remembered where a run or a talk read these files before; else 4 s for 16 GB, once.
        return hash_base(partner.facts.folder, Remembered(self.workspace.remembered)) != record.base_hash

    def find_partner(self, run: str, checkpoint: str, recipe: Recipe | None) -> Any:
        """Return the engine.chat.Partner asked for, without loading it. Raises StudioError where it cannot be had."""
        machine = self._health.facts()
        hide_broken_triton(machine)
        from studio.engine.chat import Partner
        from studio.engine.run_folder import find_run

        if not run:
            if recipe is None:
                raise StudioError(
                    text("ui.chat.no_run"), text("ui.chat.no_run.why"), text("ui.chat.no_run.fix")
                )
            facts = open_packed(
                inspect_model(recipe.model.source, revision=recipe.model.revision), recipe.model.revision
            )
            return Partner(facts=facts, plan=plan(machine, recipe, facts), recipe=recipe)
        found = find_result(find_run(self.workspace.runs, run), machine, checkpoint)
        return Partner(
            facts=found.facts,
            plan=found.plan,
            recipe=found.recipe,
            folder=found.folder,
            record=found.record,
            place=found.place,
        )

    def _sparing(self, work: Callable[[], Any]) -> Any:
        """Do `work`; a memory too small becomes a StudioError, and what was loaded makes room."""
        from torch import OutOfMemoryError

        try:
            return work()
        except OutOfMemoryError as error:
            self._drop()
            raise StudioError(
                text("chat.memory"), text("chat.memory.why"), text("chat.memory.fix"), exit_code=1
            ) from error


def say_place(name: str, step: int) -> Text:
    """Return what a place of a run is called."""
    return text("chat.place.step", step=step) if name else text("chat.place.result", step=step)
