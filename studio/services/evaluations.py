"""Evaluations: models beside each other on the rows of a file; every answer is kept as it comes, so that it is resumed.

What a model answered to a set of questions lies in a journal of its own in the run's folder. Another metric, another
model beside it, or the same command once more reads it, and asks only for what is missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from studio.core.errors import StudioError
from studio.core.facts import MachineFacts
from studio.core.i18n import Text, text
from studio.core.metrics.metric import AnsweredRow, AnswerMetric
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.data.questions import QuestionSet
from studio.machine.workspace import Workspace
from studio.services.chat_service import ChatService
from studio.services.evaluation_result import (
    BASE,
    TUNED,
    AnswerJudge,
    Contender,
    EvaluationResult,
    EvaluationWish,
    Side,
    choose_metrics,
    compare_sides,
    measure_side,
)
from studio.services.partners import find_partner
from studio.services.worker import Job

CHECKPOINTS = "checkpoints"
KEY_CHARACTERS = 16
Tell = Callable[[Text, int, int], None]


class Evaluations:
    """Models of one workspace, measured. Methods may be called from any thread."""

    def __init__(self, workspace: Workspace, chat: ChatService, machine: Callable[[], MachineFacts]) -> None:
        self.workspace, self._machine = workspace, machine
        self._chat = chat

    def contenders(self, name: str, beside: Sequence[str] = (), step: int = 0) -> tuple[Contender, ...]:
        """Return run `name` (its result, or its state after `step`) or model `name` first, then those `beside` it.

        `beside`: base, tuned, checkpoints, or `step-N`. Raises StudioError for what there is not.
        """
        from studio.engine.run_folder import find_run
        from studio.engine.run_states import RESULT, list_places

        if not self._is_run(name):
            recipe = self._describe_model(name)
            if beside or step:
                raise StudioError(
                    text("eval.model_alone"), text("eval.model_alone.why"), text("eval.model_alone.fix")
                )
            return (Contender(BASE, "", side=BASE, recipe=recipe),)
        folder = find_run(self.workspace.runs, name)
        places = list_places(folder, folder.read_record())
        steps = [place for place in places if place.name != RESULT and place.problem is None]

        def of_step(number: int) -> Contender:
            return Contender(f"step-{number}", name, f"step-{number:08d}")

        def of_result() -> Contender:
            place = self._chat.find_place(name)
            return Contender(TUNED, name, place)

        found = [of_step(step) if step else of_result()]
        for wish in beside:
            number = wish.removeprefix("step-")
            if wish == BASE:
                found.append(Contender(BASE, name, found[0].checkpoint, BASE))
            elif wish == TUNED:
                found.append(of_result())
            elif wish == CHECKPOINTS:
                found += [of_step(place.step) for place in reversed(steps)]
            elif wish.startswith("step-") and number.isdecimal():
                found.append(of_step(int(number)))
            else:
                known = [BASE, CHECKPOINTS, *(f"step-{place.step}" for place in steps)]
                raise StudioError(
                    text("eval.beside", name=wish),
                    text("eval.beside.why"),
                    text("eval.beside.fix", known=known),
                )
        return tuple(dict.fromkeys(found))

    def held_out(self, run: str) -> QuestionSet:
        """Return the held-out rows of a run as questions. Raises StudioError where it has none."""
        from studio.engine.held_out_rows import read_held_out

        partner = find_partner(self.workspace, self._machine(), run, self._chat.find_place(run), None)
        name = partner.record.name or run
        return read_held_out(partner.recipe, partner.facts, self.workspace.data_cache, name)

    def start(
        self,
        read: Callable[[], QuestionSet],
        contenders: Sequence[Contender],
        wish: EvaluationWish,
    ) -> Job:
        """Begin to evaluate what `read` reads; the Job's result is an EvaluationResult, of what was reached if stopped.

        Raises StudioError while a run trains or another test is on.
        """

        def work(job: Job) -> EvaluationResult:
            job.tell(text("eval.reading"))
            return self.evaluate(read(), contenders, wish, tell=job.tell, should_stop=lambda: job.stopping)

        return self._chat.begin_test(contenders[0].run, work)

    def evaluate(
        self,
        questions: QuestionSet,
        contenders: Sequence[Contender],
        wish: EvaluationWish,
        *,
        tell: Tell = lambda phase, done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> EvaluationResult:
        """Let every contender answer what it has not answered yet, and measure; waits.

        Raises StudioError, also while a run trains or another process evaluates the same; OSError.
        """
        metrics = wish.metrics or choose_metrics(questions, judged=wish.judge is not None)
        sides, ended = [], False
        with ExitStack() as exits:
            exits.enter_context(self._hold())
            for contender in contenders:
                journal = self._open(exits, questions, contender, wish)
                refused = None
                if not (ended or should_stop()):
                    refused = self._ask(questions, contender, wish, metrics, journal, tell, should_stop)
                ended = refused is None
                sides.append((contender, journal, refused or {}))
            if wish.judge is not None and not (ended or should_stop()):
                self._judge(questions, sides, wish.judge, tell, should_stop)
            measured = tuple(
                measure_side(questions, one, journal, refused, metrics, wish)
                for one, journal, refused in sides
            )
        whole = not (ended or should_stop()) and all(_is_whole(questions, side) for side in measured)
        compared = tuple(compare_sides(measured[0], other, metrics) for other in measured[1:])
        return EvaluationResult(questions, metrics, measured, compared, whole)

    # Inside ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Let no other process of this workspace write journals meanwhile. Raises StudioError."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.workspace.locks / "evaluations.lock", timeout=0, mode=0o600, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise StudioError(text("eval.busy"), text("eval.busy.why"), text("eval.busy.fix"), 1) from error
        try:
            yield
        finally:
            lock.release()

    def _is_run(self, name: str) -> bool:
        from studio.engine.run_folder import RUN_NAME

        return bool(RUN_NAME.fullmatch(name)) and (self.workspace.runs / name / "run.json").is_file()

    def _describe_model(self, name: str) -> Recipe:
        from studio.models.catalog import inspect_model

        try:
            found = inspect_model(name)
        except StudioError as error:
            what = text("eval.unknown", name=name)
            raise StudioError(
                what, text("eval.unknown.why", reason=error.what), text("eval.unknown.fix")
            ) from error
        if not found.folder and found.shape is None:
            raise StudioError(
                text("eval.unknown", name=name), text("eval.not_here"), text("eval.unknown.fix")
            )
        return Recipe(model=ModelChoice(source=name), data=DatasetSpec(source=""))

    def _open(
        self, exits: ExitStack, questions: QuestionSet, contender: Contender, wish: EvaluationWish
    ) -> Any:
        """Return the contender's journal, closed with `exits`."""
        from studio.engine.answer_journal import AnswerJournal

        about = {
            "name": contender.name,
            "questions": questions.content_hash,
            "weights": self._stamp(contender),
            "system": wish.system.strip(),
            "max_new_tokens": wish.max_new_tokens,
        }
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:KEY_CHARACTERS]
        root = self.workspace.runs / contender.run if contender.run else self.workspace.root
        journal = AnswerJournal(root / "evaluations" / f"{digest}.jsonl", about)
        exits.callback(journal.close)
        return journal

    def _stamp(self, contender: Contender) -> str:
        """Return what changes with the weights that answer, and with how they are held."""
        from studio.engine.base_hash import stamp_weights
        from studio.engine.run_states import RESULT, find_weights

        partner = find_partner(
            self.workspace, self._machine(), contender.run, contender.checkpoint, contender.recipe
        )
        parts = [
            stamp_weights(partner.facts.folder),
            partner.plan.dtype.value,
            partner.plan.quantization.value,
        ]
        parts.append(partner.recipe.data.template)
        if contender.side == TUNED:
            place = partner.folder.path / partner.record.artifact
            if partner.place != RESULT:
                place = find_weights(partner.folder, partner.place).parent
            parts.append(stamp_weights(place))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _ask(
        self,
        questions: QuestionSet,
        contender: Contender,
        wish: EvaluationWish,
        metrics: Sequence[AnswerMetric],
        journal: Any,
        tell: Tell,
        should_stop: Callable[[], bool],
    ) -> dict[int, Text] | None:
        """Return by row why it could not be asked; None where a run, or the end, came before all were."""
        from studio.engine.evaluation import answer_questions, measure_expected

        asked = questions.asked
        wants = {metric.needs for metric in metrics}
        unanswered = any(one.number not in journal.answers for one in asked)
        unmeasured = "losses" in wants and any(
            one.expected is not None and one.number not in journal.losses for one in asked
        )
        if not (unanswered or unmeasured):
            return {}

        def work(speaker: Any, ends: Callable[[], bool]) -> dict[int, Text]:
            def must_end() -> bool:
                return ends() or should_stop()

            shown = text("eval.answers", name=contender.name)
            refused = answer_questions(
                speaker,
                contender.side,
                asked,
                journal,
                system=wish.system,
                max_new_tokens=wish.max_new_tokens,
                on_progress=lambda done, total: tell(shown, done, total),
                should_stop=must_end,
            )
            if unmeasured and not must_end():
                losses = text("eval.losses", name=contender.name)
                measure_expected(
                    speaker,
                    contender.side,
                    asked,
                    journal,
                    system=wish.system,
                    on_progress=lambda done, total: tell(losses, done, total),
                    should_stop=must_end,
                )
            return refused

        self._chat.refuse_while_training()
        return self._chat.lend(contender.run, contender.checkpoint, contender.recipe, work)

    def _judge(
        self,
        questions: QuestionSet,
        sides: Sequence[tuple[Contender, Any, Mapping[int, Text]]],
        judge: AnswerJudge,
        tell: Tell,
        should_stop: Callable[[], bool],
    ) -> None:
        for contender, journal, _ in sides:
            rows = [
                one
                for one in questions.asked
                if one.number in journal.answers and (one.number, judge.rubric) not in journal.verdicts
            ]
            given = [
                AnsweredRow(
                    given=journal.answers[one.number].words, expected=one.expected or "", prompt=one.prompt
                )
                for one in rows
            ]
            phase, done = text("eval.judging", name=contender.name), 0

            def keep(
                place: int,
                verdict: Any,
                rows: Sequence[Any] = rows,
                journal: Any = journal,
                phase: Text = phase,
            ) -> None:
                nonlocal done
                journal.add(rows[place].number, "verdict", verdict, judge.rubric)
                done += 1
                tell(phase, done, len(rows))

            judge.judge(given, keep, should_stop)


def _is_whole(questions: QuestionSet, side: Side) -> bool:
    """Return whether a side has answered whatever can be asked."""
    return all(one.number in side.answers or one.number in side.refused for one in questions.asked)
