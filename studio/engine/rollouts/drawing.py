"""Draws the answers of one rollout with the model as it is now, and lets rewards judge a group while others are drawn.

What is drawn hangs on the run's seed, the rollout, the prompt and the answer's number alone, so that a run which is
killed anywhere draws the same again. Guesses ahead are off: they hang on the clock, and change what rounds together.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from studio.core.events import Warned
from studio.core.i18n import text
from studio.core.metrics.metric import MetricSettings
from studio.core.recipe import SamplingSpec
from studio.data.prompt_rows import PromptRow, PromptRows
from studio.data.sequence_packing import Example
from studio.engine.generation.answerer import Answerer, leave_answers_own
from studio.engine.generation.request import Completion, Request, Sampling
from studio.engine.held_out_score import read_asked, suggest_for
from studio.engine.oom_fallback import MemoryExhausted, is_out_of_memory, let_go
from studio.engine.rewards.reward import Answered, RewardSet, Scores
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.rollouts.advantages import SAME, spread_of
from studio.engine.rollouts.alarms import DRAWN
from studio.engine.rollouts.rollout import AnswerGroup, DrawnAnswer, measure
from studio.engine.rollouts.rollout_steps import Drawing
from studio.engine.stop_tokens import find_ends
from studio.engine.trainer import StepAbandoned, Trainer
from studio.models.adapt import evaluation_mode

SLOTS = 64
"""Answers that grow at once where nobody says how many: each step reads all weights once, for however many."""
MEASURED_BY = 100
"""Rows by which it is chosen what drawn answers are measured by."""
LOOK_S = 0.5
"""How often somebody who waits for rewards looks whether the run is to end."""


class Drawer:
    """Gives the rollouts of one run."""

    def __init__(
        self,
        trainer: Trainer,
        model: torch.nn.Module,
        tokenizer: Any,
        prompts: Sequence[Example],
        rows: PromptRows,
        rewards: RewardSet,
    ) -> None:
        """prompts: token ids of what is asked, `rows`: the same as rewards see it."""
        self.trainer, self.model, self.tokenizer = trainer, model, tokenizer
        self._prompts, self._rows, self._rewards = prompts, rows, rewards
        self._settings: SamplingSpec = trainer.recipe.sampling
        suiting = suggest_for(read_asked(rows, range(min(MEASURED_BY, len(rows)))))
        self._metric = next((one for one in suiting if one.name == trainer.keeps), next(iter(suiting), None))
        self._slots = self._settings.slots or SLOTS
        self._ends = find_ends(tokenizer, model.generation_config.eos_token_id)
        self._answerer: Answerer | None = None
        self._kernels: dict[str, str] = {}
        """Those by which it answers: an op that fails in training answers by its twin, too."""
        self._told_slow = False
        self._judges = ThreadPoolExecutor(1, "rewards")

    def close(self) -> None:
        """End the thread that rewards are asked on; what it is at ends first."""
        self._judges.shutdown(wait=True, cancel_futures=True)

    def draw(self, number: int) -> Drawing:
        """Return the scored answers of rollout `number`: of the prompts whose turn it is.

        Where the recipe wants it, groups whose answers were all scored alike are replaced by those of other prompts.
        Raises StepAbandoned when the end is asked for, StudioError when a reward cannot judge, MemoryExhausted, and
        what `recover` gives up on.
        """
        begun_s = time.perf_counter()
        rows = self.trainer.order.indices(number)
        drawn, waited_s = self._draw(number, 0, rows)
        alike = 0
        for turn in range(1, self._settings.redraws + 1):
            dull = [place for place, group in enumerate(drawn) if _is_alike(group)]
            others = self._choose_others(number, turn, len(dull), {group.row for group in drawn})
            if not others:
                break
            alike += len(dull)
            fresh, more_s = self._draw(number, turn, others)
            waited_s += more_s
            for place, group in zip(dull, fresh, strict=False):
                if not _is_alike(group):
                    drawn[place] = group
        metrics = measure(drawn, self._rewards.names) | self._compare(drawn)
        took_s = time.perf_counter() - begun_s
        metrics |= {"seconds/answers": took_s - waited_s, "seconds/rewards": waited_s}
        if self._settings.redraws:
            metrics["groups/redrawn"] = float(alike)
        return Drawing(drawn, metrics)

    def _compare(self, groups: Sequence[AnswerGroup]) -> dict[str, float]:
        """Return what drawn answers are worth by what held-out ones are measured by: no reward is led by that."""
        if self._metric is None:
            return {}
        counts = []
        for group in groups:
            expected = read_asked(self._rows, [group.row])[0]
            for one in group.answers:
                given = self._metric.count(
                    dataclasses.replace(expected, given=one.words.strip()), MetricSettings()
                )
                counts += [] if given is None else [given]
        sums = [sum(column) for column in zip(*counts, strict=True)]
        return {f"{DRAWN}{self._metric.name}": float(self._metric.total(sums))} if counts else {}

    def _choose_others(self, number: int, turn: int, count: int, taken: set[int]) -> list[int]:
        """Return up to `count` rows that are not among `taken`, drawn by the run's seed."""
        free = [row for row in range(len(self._prompts)) if row not in taken]
        chance = np.random.default_rng([self.trainer.recipe.seed, number, turn])
        return chance.permutation(free)[:count].tolist() if free and count else []

    def _draw(self, number: int, turn: int, rows: Sequence[int]) -> tuple[list[AnswerGroup], float]:
        """Return the groups of these rows, scored, and for how many seconds nothing but rewards was waited for."""
        asked = [self._rows.read(row) for row in rows]
        members = [
            [
                Completion(
                    Request(
                        tuple(self._prompts[row].token_ids.tolist()), self._sampling(number, turn, row, k)
                    )
                )
                for k in range(self._settings.group_size)
            ]
            for row in rows
        ]
        judged: list[Future[list[Scores]] | None] = [None] * len(rows)
        left = deque(range(len(rows)))

        def look() -> None:
            for place in list(left):
                if all(one.reason in ("end", "limit") for one in members[place]):
                    left.remove(place)
                    judged[place] = self._judges.submit(
                        self._rewards.score, [self._show(asked[place], one) for one in members[place]]
                    )

        try:
            self._grow([one for group in members for one in group], look)
            look()
            begun_s = time.perf_counter()
            scores = self._collect([one for one in judged if one is not None])
        finally:
            for one in filter(None, judged):
                one.cancel()  # those that nobody waits for any more
        waited_s = time.perf_counter() - begun_s
        groups = [
            AnswerGroup(row, group[0].request.prompt, [self._take(one) for one in group], said)
            for row, group, said in zip(rows, members, scores, strict=True)
        ]
        return groups, waited_s

    def _sampling(self, number: int, turn: int, row: int, member: int) -> Sampling:
        parts = np.random.SeedSequence([self.trainer.recipe.seed, number, turn, row, member])
        return Sampling(
            max_new_tokens=self._settings.answer_tokens,
            temperature=self._settings.temperature,
            seed=int(parts.generate_state(1, np.uint64)[0] >> 2),
        )

    def _grow(self, completions: Sequence[Completion], look: Callable[[], None]) -> None:
        """Let all answers grow to their ends; with fewer at once where memory is short."""
        trainer, tokens = self.trainer, 0

        def hear(grown: Sequence[Completion]) -> None:
            nonlocal tokens
            tokens += 1
            self._tell_slow()
            trainer.hooks.beat("answers", trainer.state.step + 1, tokens)
            if any(one.reason is not None for one in grown):
                look()

        with self._answering() as answerer:
            while any(one.reason is None for one in completions):
                if trainer.hooks.should_stop():
                    raise StepAbandoned
                try:
                    answerer.grow(
                        [one for one in completions if one.reason is None],
                        slots=self._slots, on_step=hear, should_stop=trainer.hooks.should_stop,
                    )  # fmt: skip
                except Exception as error:  # raised again unless there is a way on
                    if not is_out_of_memory(error):
                        if not trainer.hooks.recover(error, trainer.state):
                            raise
                        continue
                    let_go(error)
                    self._have_less(str(error))
                self._take_again(completions)

    def _tell_slow(self) -> None:
        """Say once, with the first token, why the model's own code answers: a rollout may take it minutes."""
        if self._answerer.slow is not None and not self._told_slow:
            self._told_slow = True
            self.trainer.hooks.emit(Warned(step=self.trainer.state.step, message=self._answerer.slow))

    def _take_again(self, completions: Sequence[Completion]) -> None:
        """Let those go on that only the memory, or the end of the run, cut short."""
        short = [one for one in completions if one.reason == "room"]
        for one in completions:
            if one.reason in ("room", "stopped"):
                one.reason = None
        if short:
            self._have_less("There is no room for keys and values.")

    def _have_less(self, words: str) -> None:
        """Let half as many grow at once. Raises MemoryExhausted where it is one already."""
        if self._slots == 1:
            raise MemoryExhausted(words)
        self._slots //= 2
        self.trainer.tell_freed("answers", text("memory.answers", count=self._slots))

    @contextmanager
    def _answering(self) -> Iterator[Answerer]:
        """Have what answers, on the weights as they are now; keys and values have their memory inside alone."""
        trainer, generators = self.trainer, read_generators()
        trainer.step.clear()  # weights as they are now
        try:
            with torch.no_grad(), evaluation_mode(self.model):
                kernels = leave_answers_own(trainer.step.kernels)
                if self._answerer is None or kernels != self._kernels:
                    given = {"kernels": kernels, "autocast": trainer.autocast_dtype, "looks_ahead": False}
                    self._answerer = Answerer(self.model, self.tokenizer, self._ends, **given)
                    self._kernels = kernels
                yield self._answerer
        finally:
            if self._answerer is not None:
                self._answerer.release()
            write_generators(generators)

    def _collect(self, judged: Sequence[Future[list[Scores]]]) -> list[list[Scores]]:
        """Return what rewards said of each group, when they have."""
        trainer = self.trainer
        while True:
            done = sum(one.done() for one in judged)
            trainer.hooks.beat("rewards", trainer.state.step + 1, done)
            ended, waiting = wait(judged, timeout=LOOK_S)
            for one in ended:
                one.result()  # raises what kept a reward from judging
            if not waiting:
                return [one.result() for one in judged]
            if trainer.hooks.should_stop():
                raise StepAbandoned

    def _show(self, row: PromptRow, one: Completion) -> Answered:
        return Answered(
            prompt=row.messages,
            answer=self._say(one),
            columns=row.columns,
            length_tokens=len(one.tokens),
            ended=one.reason == "end",
        )

    def _take(self, one: Completion) -> DrawnAnswer:
        return DrawnAnswer(
            tuple(one.tokens), one.reason == "end", self._say(one), tuple(one.log_probabilities)
        )

    def _say(self, one: Completion) -> str:
        return self._ends.cut(self.tokenizer.decode(one.tokens, skip_special_tokens=True))


def _is_alike(group: AnswerGroup) -> bool:
    """Return whether all answers were scored alike: nothing can be learned from them."""
    return float(spread_of(group.totals)[0]) <= SAME
