"""Sample answers: what the model says to the same few prompts before training, at each evaluation, and at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from studio.core.events import SampleWritten, Warned
from studio.core.i18n import text
from studio.data.prompt_rows import PromptRows
from studio.data.sequence_packing import Example
from studio.engine.held_out_rows import say_prompt
from studio.engine.rewards.given_answer import find_expected
from studio.engine.trainer import Trainer
from studio.engine.training_answers import TrainingAnswers

LIMIT_S = 10.0
"""An evaluation's answers take no longer; what is unfinished by then is shown as far as it came."""
ANSWER_TOKENS = 96
PROMPT_TOKENS = 512
"""Of a longer prompt the end is kept: that is what the answer follows."""
LOOKED_AT = 64
"""Rows looked at in search of distinct prompts."""
TEXT_SHARE = 0.25
"""Of a text without question and answer, the beginning that the model is to go on with."""


class Samples:
    """The prompts of one run, and what the model as it came answered to them.

    Weights, optimizer and random generators stay as they are; memory that runs out ends the samples, never the run.
    """

    def __init__(
        self,
        trainer: Trainer,
        model: torch.nn.Module,
        tokenizer: Any,
        seed: int,
        count: int,
        asked: tuple[Sequence[Example], PromptRows] | None = None,
    ) -> None:
        """Choose up to `count` distinct prompts by `seed`, from the validation rows where there are some.

        `asked`: questions, and the same as they were read, where these are all that the rows hold.
        """
        self.trainer, self.tokenizer = trainer, tokenizer
        self.answers = TrainingAnswers(trainer, model, tokenizer)
        rows = trainer.validation if len(trainer.validation) else trainer.train_examples
        chosen = _choose(rows, seed, count) if asked is None else self._choose_asked(*asked, seed, count)
        self.prompts = list(chosen) if count else []
        self.base: list[str] = list(trainer.state.base_answers)
        self.written_step = -1

    def _choose_asked(
        self, prompts: Sequence[Example], rows: PromptRows, seed: int, count: int
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield `count` questions with the answers that their rows give, none where they give none, as token ids."""
        for place in random.Random(seed).sample(range(len(prompts)), min(count, len(prompts))):
            expected = find_expected(rows.read(place).columns) or ""
            ids = self.tokenizer(expected, add_special_tokens=False)["input_ids"][:ANSWER_TOKENS]
            yield prompts[place].token_ids[-PROMPT_TOKENS:].tolist(), ids

    @property
    def due(self) -> bool:
        """Whether the base's answers are to be written: a resumed run has them in its checkpoint.

        A full training that resumes without them goes on without: its weights as they came are gone.
        """
        there = self.can_wait or not self.trainer.state.step
        return bool(self.prompts) and not self.base and there

    @property
    def can_wait(self) -> bool:
        """Whether what the base says can be asked later, too."""
        return self.answers.has_base

    def catch_up(self) -> None:
        """Write what the base answers where that is not known yet: after the first step, which comes 10 s sooner."""
        if self.due:
            self.begin()

    def begin(self) -> None:
        """Write what the model answers before it has learned anything."""
        answers = self._answer(base=True)
        if len(answers) < len(self.prompts):
            return
        self.base = self.trainer.state.base_answers = answers
        if self.trainer.state.step <= 1:
            self._emit(0, answers)
            self.written_step = 0

    def write(self) -> None:
        """Write what the model answers now, once a step."""
        step = self.trainer.state.step
        if self.prompts and step != self.written_step:
            self._emit(step, self._answer(base=False))
            self.written_step = step

    def _emit(self, step: int, answers: Sequence[str]) -> None:
        base = self.base or [""] * len(answers)
        for (prompt, expected), answer, before in zip(self.prompts, answers, base, strict=False):
            self.trainer.hooks.emit(
                SampleWritten(
                    step=step,
                    prompt=say_prompt(self.tokenizer, prompt),
                    answer=answer,
                    expected=self.answers.say(expected),
                    base=before,
                )
            )

    def _answer(self, *, base: bool) -> list[str]:
        """Return the greedy answers to all prompts, none when the end was asked for or memory ran out."""
        if not self.prompts:
            return []
        longest = max(len(expected) for _, expected in self.prompts)
        most = min(ANSWER_TOKENS, 2 * longest + 8) if longest else ANSWER_TOKENS
        found = self.answers.answer(
            [(prompt, most) for prompt, _ in self.prompts], base=base, limit_s=LIMIT_S
        )
        if found is None:
            self.prompts = []
            self.trainer.hooks.emit(Warned(step=self.trainer.state.step, message=text("samples.given_up")))
        return [one.words for one in found or ()]


def _choose(rows: Sequence[Example], seed: int, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield `count` distinct (prompt, expected answer) as token ids, fewer when the rows have no more."""
    seen: set[tuple[int, ...]] = set()
    places = random.Random(seed).sample(range(len(rows)), min(LOOKED_AT, len(rows)))
    for place in places:
        row = rows[place]
        prompt, expected = split_example(row.token_ids[: row.lengths[0]], row.trained[: row.lengths[0]])
        key = tuple(prompt)
        if not prompt or not expected or key in seen:
            continue
        seen.add(key)
        yield prompt, expected
        if len(seen) == count:
            return


def split_example(token_ids: np.ndarray, trained: np.ndarray) -> tuple[list[int], list[int]]:
    """Return the first prompt of a document and the answer that it teaches, as token ids.

    token_ids: int32 [tokens]; trained: bool [tokens]. Where next to everything is learned there is no question: the
    beginning is the prompt, and the answer what follows.
    """
    places = np.flatnonzero(trained)
    if not len(places):
        return [], []
    first = int(places[0])
    if first <= 1:
        first = max(1, int(len(token_ids) * TEXT_SHARE))
        end = len(token_ids)
    else:
        gaps = np.flatnonzero(~trained[first:])
        end = first + int(gaps[0]) if len(gaps) else len(token_ids)
    prompt, expected = token_ids[max(0, first - PROMPT_TOKENS) : first], token_ids[first:end]
    return prompt.tolist(), expected[:ANSWER_TOKENS].tolist()
