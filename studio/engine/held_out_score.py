"""How many held-out rows a run's model answers rightly: measured at evaluations that ask for it, and at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from studio.core.events import AnswersScored, HeldOutScore, Warned
from studio.core.i18n import Text, text
from studio.core.metrics import METRICS
from studio.core.metrics.metric import AnsweredRow, AnswerMetric, Counts, MetricSettings
from studio.core.metrics.suggest import suggest_metrics
from studio.data.prompt_rows import PromptRows
from studio.data.sequence_packing import Example
from studio.engine.confidence import Bounded, bound_value
from studio.engine.rewards.given_answer import find_expected
from studio.engine.training_answers import Said, TrainingAnswers, find_answer

LIMIT_S = 60.0
"""One look takes no longer: the rows answered until then count, which are drawn by chance."""
LONGEST_ANSWER_TOKENS = 512
"""Rows whose given answer is longer are no questions to be right or wrong about."""


class HeldOutAnswers:
    """The questions among a run's held-out rows, and how the model answers them."""

    def __init__(
        self,
        answers: TrainingAnswers,
        rows: Sequence[Example],
        *,
        seed: int,
        count: int,
        keeps: str,
        asked: PromptRows | None = None,
        answer_tokens: int = 0,
    ) -> None:
        """`count`: rows at most, drawn by `seed`; `keeps`: the metric that the best state is kept by, or none.

        `asked`: the rows as they were read, where `rows` are questions alone, answered with up to `answer_tokens`.
        """
        self._answers = answers
        self._prompts: list[tuple[list[int], int]] = []
        self._rows: list[AnsweredRow] = []
        self.places: list[int] = []
        """Numbers of the rows that are questions, in the order in which they are asked."""
        self.looked_at = self.too_long = 0
        """Rows that were held to be questions, and those of them whose answer is too long to be one."""
        order = np.random.default_rng(seed).permutation(len(rows)).tolist() if count else []
        if asked is not None:
            self.places = order[:count]
            self._prompts = [(rows[place].token_ids.tolist(), answer_tokens) for place in self.places]
            self._rows = read_asked(asked, self.places)
        for place in order if asked is None else ():
            if len(self._rows) == count:
                break
            if self._take(rows[place]):
                self.places.append(place)
        chosen = tuple(metric for metric in METRICS if metric.name == keeps)
        suiting = suggest_for(self._rows)
        self.metrics: tuple[AnswerMetric, ...] = tuple(dict.fromkeys((*chosen, *suiting)))
        """What is measured: the one that the best is kept by, then those that suit."""

    def measure(self, *, base: bool = False) -> dict[str, Bounded]:
        """Return the value of each metric by name, {} where no row could be answered."""
        return self.bound(self.answer(base=base))

    def answer(self, *, base: bool = False) -> list[Said]:
        """Return what the model says to the questions, to as many of the first as the time allows."""
        given: list[Said] = []
        ends_s, size = time.monotonic() + LIMIT_S, self._answers.slots
        with self._answers.weights_stay():
            for start in range(0, len(self._rows), size):
                left_s = ends_s - time.monotonic()
                prompts = self._prompts[start : start + size]
                said = self._answers.answer(prompts, base=base, limit_s=left_s) if left_s > 0 else []
                if said is None:
                    trainer = self._answers.trainer
                    trainer.hooks.emit(Warned(step=trainer.state.step, message=text("score.given_up")))
                if not said or time.monotonic() > ends_s and start:
                    break  # a part that was cut off is left out whole: short answers alone would be in it
                given += said
        return given

    def bound(self, given: Sequence[Said]) -> dict[str, Bounded]:
        """Return the value of each metric by name, of answers to the first questions; {} without any."""
        counts: dict[str, list[Counts]] = {metric.name: [] for metric in self.metrics}
        self._count(counts, self._rows[: len(given)], [one.words for one in given])
        found = {metric.name: bound_value(metric, counts[metric.name]) for metric in self.metrics}
        return {name: bounded for name, bounded in found.items() if bounded is not None}

    @property
    def rows(self) -> int:
        """How many questions there are."""
        return len(self._rows)

    @property
    def left_out(self) -> Text | None:
        """What the score does not tell of, None where it tells of all that was looked at."""
        if not self.too_long:
            return None
        given = {"count": self.too_long, "rows": self.looked_at, "tokens": LONGEST_ANSWER_TOKENS}
        return text("score.too_long" if self.rows else "score.all_too_long", **given)

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

    def _take(self, row: Example) -> bool:
        """Take a row that is a question with an answer; return whether it is one."""
        self.looked_at += 1
        length = row.lengths[0]
        begin, end = find_answer(row.trained[:length], lambda begins: len(begins) - 1)
        if begin <= 1 or end <= begin:
            return False  # a text without a question
        if end - begin > LONGEST_ANSWER_TOKENS:
            self.too_long += 1
            return False
        prompt, expected = row.token_ids[:begin].tolist(), row.token_ids[begin:end].tolist()
        self._prompts.append((prompt, 2 * len(expected) + 8))
        asked = self._answers.tokenizer.decode(prompt, skip_special_tokens=True)
        self._rows.append(AnsweredRow(given="", expected=self._answers.say(expected), prompt=asked))
        return True

    def _count(
        self, counts: dict[str, list[Counts]], rows: Sequence[AnsweredRow], said: Sequence[str]
    ) -> None:
        for row, words in zip(rows, said, strict=True):
            answered = AnsweredRow(given=words, expected=row.expected, prompt=row.prompt)
            for metric in self.metrics:
                found = metric.count(answered, MetricSettings())
                if found is not None:
                    counts[metric.name].append(found)


def read_asked(rows: PromptRows, places: Sequence[int]) -> list[AnsweredRow]:
    """Return some of `rows` as metrics see them; "" is expected where a row has no given answer."""
    found = []
    for place in places:
        row = rows.read(place)
        asked = str(row.messages[-1].get("content", "")) if row.messages else ""
        found.append(AnsweredRow(given="", expected=find_expected(row.columns) or "", prompt=asked))
    return found


def suggest_for(rows: Sequence[AnsweredRow]) -> list[AnswerMetric]:
    """Return the metrics that suit these questions, the one that decides first; none where no answer is given."""
    if not any(row.expected for row in rows):
        return []
    return sorted(suggest_metrics(rows, ("answers",)), key=lambda metric: metric.decides)
