"""How many held-out rows a run's model answers rightly: measured at evaluations that ask for it, and at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from studio.core.events import AnswersScored, HeldOutScore, Warned
from studio.core.i18n import text
from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings
from studio.core.metrics.suggest import suggest_metrics
from studio.data.sequence_packing import Example
from studio.engine.confidence import Bounded, bound_value
from studio.engine.training_answers import TrainingAnswers, find_answer

LIMIT_S = 60.0
"""One look takes no longer: the rows answered until then count, which are drawn by chance."""
CHUNK_ROWS = 16
LONGEST_ANSWER_TOKENS = 512
"""Rows whose given answer is longer are no questions to be right or wrong about."""


class HeldOutAnswers:
    """The questions among a run's held-out rows, and how the model answers them."""

    def __init__(
        self, answers: TrainingAnswers, rows: Sequence[Example], *, seed: int, count: int, keeps: str
    ) -> None:
        """`count`: rows at most, drawn by `seed`; `keeps`: the metric that the best state is kept by, or none."""
        self._answers = answers
        self._prompts: list[tuple[list[int], int]] = []
        self._rows: list[AnsweredRow] = []
        order = np.random.default_rng(seed).permutation(len(rows)) if count else ()
        for place in order:
            if len(self._rows) == count:
                break
            self._take(rows[int(place)])
        chosen = tuple(metric for metric in METRICS if metric.name == keeps)
        suiting = sorted(suggest_metrics(self._rows, ("answers",)), key=lambda metric: metric.decides)
        self.metrics: tuple[AnswerMetric, ...] = tuple(dict.fromkeys((*chosen, *suiting)))
        """What is measured: the one that the best is kept by, then those that suit."""

    def measure(self, *, base: bool = False) -> dict[str, Bounded]:
        """Return the value of each metric by name, {} where no row could be answered."""
        counts: dict[str, list[Counts]] = {metric.name: [] for metric in self.metrics}
        ends_s = time.monotonic() + LIMIT_S
        for start in range(0, len(self._rows), CHUNK_ROWS):
            left_s = ends_s - time.monotonic()
            prompts = self._prompts[start : start + CHUNK_ROWS]
            said = self._answers.answer(prompts, base=base, limit_s=left_s) if left_s > 0 else []
            if said is None:
                trainer = self._answers.trainer
                trainer.hooks.emit(Warned(step=trainer.state.step, message=text("score.given_up")))
            if not said or time.monotonic() > ends_s and start:
                break  # a part that was cut off is left out whole: short answers alone would be in it
            self._count(counts, self._rows[start : start + CHUNK_ROWS], said)
        found = {metric.name: bound_value(metric, counts[metric.name]) for metric in self.metrics}
        return {name: bounded for name, bounded in found.items() if bounded is not None}

    @property
    def rows(self) -> int:
        """How many questions there are."""
        return len(self._rows)

    def score(self, base: Mapping[str, float], step: int) -> AnswersScored | None:
        """Return what the model, of `step`, is worth now; None where there is nothing to score.

        `base`: what the base is worth by each metric, where that was measured before its weights changed.
        """
        found = self.measure()
        if not found:
            return None
        if not base and self._answers.has_base:
            base = {name: one.value for name, one in self.measure(base=True).items()}
        scores = tuple(
            HeldOutScore(
                metric=name,
                value=one.value,
                low=one.low,
                high=one.high,
                rows=one.rows,
                base=base.get(name),
            )
            for name, one in found.items()
        )
        return AnswersScored(step=step, scores=scores)

    def _take(self, row: Example) -> None:
        length = row.lengths[0]
        begin, end = find_answer(row.trained[:length], lambda begins: len(begins) - 1)
        if begin <= 1 or not 0 < end - begin <= LONGEST_ANSWER_TOKENS:
            return  # a text without a question, or an answer that nobody gives twice
        prompt, expected = row.token_ids[:begin].tolist(), row.token_ids[begin:end].tolist()
        self._prompts.append((prompt, 2 * len(expected) + 8))
        asked = self._answers.tokenizer.decode(prompt, skip_special_tokens=True)
        self._rows.append(AnsweredRow(given="", expected=self._answers.say(expected), prompt=asked))

    def _count(
        self, counts: dict[str, list[Counts]], rows: Sequence[AnsweredRow], said: Sequence[str]
    ) -> None:
        for row, words in zip(rows, said, strict=True):
            answered = AnsweredRow(given=words, expected=row.expected, prompt=row.prompt)
            for metric in self.metrics:
                found = metric.count(answered, MetricSettings())
                if found is not None:
                    counts[metric.name].append(found)
