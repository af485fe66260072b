"""Rewards tried on the rows of a data set: with a model's answers, which are kept while a reward is changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec, Recipe, RewardSpec
from studio.core.temporary_folder import TemporaryFolder
from studio.data.questions import QuestionRow, read_questions
from studio.machine.workspace import Workspace
from studio.services.chat_service import ChatService
from studio.services.reward_verdicts import RewardVerdicts
from studio.services.worker import Job, Worker

SAMPLE_TEMPERATURE = 1.0
"""That at which training draws, too."""
KEPT_SETS = 4
"""Sets of answers that are remembered, the latest ones."""
Tell = Callable[[Text, int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialWish:
    """What rewards are tried on."""

    data: DatasetSpec
    run: str = ""
    """Whose model answers; "" where `recipe` names a model alone, or nobody answers."""
    checkpoint: str = ""
    recipe: Recipe | None = None
    rows: int = 16
    samples: int = 4
    """Answers of the model to each row; 0: only given answers are tried."""
    max_new_tokens: int = 256
    seed: int = 42

    @property
    def asks(self) -> bool:
        """Whether a model answers."""
        return bool(self.samples and (self.run or self.recipe))


class RewardTrials:
    """Trials of one workspace. Methods may be called from any thread."""

    def __init__(self, workspace: Workspace, chat: ChatService, verdicts: RewardVerdicts) -> None:
        self.workspace, self._chat, self.verdicts = workspace, chat, verdicts
        self.job: Job | None = None
        """The last trial that a screen began, on or ended."""
        self._worker = Worker("trials")
        self._kept: dict[tuple[Any, ...], list[list[tuple[str, int, bool]]]] = {}
        self._lock = threading.Lock()

    def start(self, rewards: Sequence[RewardSpec], wish: TrialWish) -> Job:
        """Begin a trial; the Job's result is an engine.rewards.trial.RewardTrial.

        Raises StudioError while another is on, and while a run trains where a model is to answer.
        """
        if self.job is not None and not self.job.ended:
            raise StudioError(text("test.busy"), text("test.busy.why"), text("test.busy.fix"))
        if wish.asks:
            self._chat.refuse_while_training()

        def work(job: Job) -> Any:
            return self.run(rewards, wish, tell=job.tell, should_stop=lambda: job.stopping)

        self.job = Job().begin(self._worker, work, "trial")
        return self.job

    def run(
        self,
        rewards: Sequence[RewardSpec],
        wish: TrialWish,
        *,
        tell: Tell = lambda phase, done, total: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Return the RewardTrial of `rewards`, whose verdict is remembered; waits.

        Raises StudioError: for rewards, data or a model that cannot be had, also while a run trains and a model is
        asked for.
        """
        from studio.engine.rewards import make_reward, open_rewards
        from studio.engine.rewards.code import Code
        from studio.engine.rewards.trial import try_rewards

        if not rewards:
            raise StudioError(*(text(f"reward.none{part}") for part in ("", ".why", ".fix")))
        made = [make_reward(spec) for spec in rewards]
        tell(text("eval.reading"), 0, 0)
        asked = read_questions(wish.data).asked[: wish.rows]
        drawn = self._draw(asked, wish, tell, should_stop) if wish.asks else [[] for _ in asked]
        if drawn is None:
            raise StudioError(*(text(f"reward.trial.stopped{part}") for part in ("", ".why", ".fix")))
        rows = [_make_row(made, one, answers) for one, answers in zip(asked, drawn, strict=True)]
        tell(text("reward.trial.scoring"), 0, 0)
        compares = any(one.needs_expected or isinstance(one, Code) for one in made)
        with (
            TemporaryFolder("trial") as folder,
            open_rewards(rewards, folder=folder, seed=wish.seed) as opened,
        ):
            trial = try_rewards(opened, rows, compares=compares, should_stop=should_stop)
        self.verdicts.note(rewards, wish.data, trial.refused)
        return trial

    def close(self) -> None:
        """Ask the trial that is on to end, and let its thread go."""
        if self.job is not None:
            self.job.stop()
        self._worker.close(0.1)

    def _draw(
        self, asked: Sequence[QuestionRow], wish: TrialWish, tell: Tell, should_stop: Callable[[], bool]
    ) -> list[list[tuple[str, int, bool]]] | None:
        """Return each row's answers as (words, tokens, whether it ended); None when it was stopped."""
        model = wish.recipe.model if wish.recipe else None
        questions = tuple(str([dict(turn) for turn in one.messages]) for one in asked)
        key = (wish.run, wish.checkpoint, str(model), wish.samples, wish.max_new_tokens, wish.seed, questions)
        with self._lock:
            if key in self._kept:
                return self._kept[key]

        def work(speaker: Any, ends: Callable[[], bool]) -> list[list[tuple[str, int, bool]]] | None:
            places, prompts = [], []
            for place, one in enumerate(asked):
                ids = speaker.read_prompt(one.messages)
                places += [place] * wish.samples
                prompts += [ids] * wish.samples
            done = 0

            def count(_: int, __: Any) -> None:
                nonlocal done
                done += 1
                tell(text("reward.trial.answers"), done, len(prompts))

            found = speaker.complete(
                prompts,
                "tuned",
                max_new_tokens=wish.max_new_tokens,
                on_end=count,
                should_stop=lambda: ends() or should_stop(),
                temperature=SAMPLE_TEMPERATURE,
                seed=wish.seed,
            )
            if any(one.reason not in ("end", "limit") for one in found):
                return None
            drawn: list[list[tuple[str, int, bool]]] = [[] for _ in asked]
            for place, one in zip(places, found, strict=True):
                drawn[place].append((speaker.say(one.tokens), len(one.tokens), one.reason == "end"))
            return drawn

        self._chat.refuse_while_training()
        drawn = self._chat.lend(wish.run, wish.checkpoint, wish.recipe, work)
        if drawn is not None:
            with self._lock:
                self._kept[key] = drawn
                while len(self._kept) > KEPT_SETS:
                    self._kept.pop(next(iter(self._kept)))
        return drawn


def _make_row(rewards: Sequence[Any], row: QuestionRow, drawn: Sequence[tuple[str, int, bool]]) -> Any:
    """Return the TrialRow of a row with its given answer, as the first reward that knows of one finds it."""
    from studio.engine.rewards.given_answer import add_expected
    from studio.engine.rewards.reward import Answered
    from studio.engine.rewards.trial import TrialRow

    prompt = tuple(dict(turn) for turn in row.messages)
    columns: Mapping[str, object] = add_expected(row.values, row.expected)
    given = next((found for one in rewards if (found := one.find_given(columns)) is not None), None)

    def answer(words: str, tokens: int, ended: bool) -> Answered:
        return Answered(prompt=prompt, answer=words, columns=columns, length_tokens=tokens, ended=ended)

    asked = answer(given or row.expected or "", 0, True)
    return TrialRow(number=row.number, asked=asked, samples=tuple(answer(*one) for one in drawn))
