"""Sample answers: what the model says to the same few prompts before training, at each evaluation, and at the end."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from studio.core.events import SampleWritten, Warned
from studio.core.i18n import text
from studio.data.sequence_packing import Example
from studio.engine.generation.answerer import Answerer
from studio.engine.generation.request import Completion, Request, Sampling
from studio.engine.oom_fallback import is_out_of_memory, let_go
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.stop_tokens import find_ends
from studio.engine.trainer import Trainer
from studio.models.adapt import evaluation_mode

LIMIT_S = 10.0
"""An evaluation's answers take no longer; what is unfinished by then is shown as far as it came."""
ANSWER_TOKENS = 96
PROMPT_TOKENS = 512
"""Of a longer prompt the end is kept: that is what the answer follows."""
LOOKED_AT = 64
"""Rows looked at in search of distinct prompts."""
ROLE = re.compile(r"^(?:system|user|human|assistant|model|bot)\s*(?:\n|$)", re.IGNORECASE)
"""What templates write before a turn, beside their markers."""
TEXT_SHARE = 0.25
"""Of a text without question and answer, the beginning that the model is to go on with."""


class Samples:
    """The prompts of one run, and what the model as it came answered to them.

    Weights, optimizer and random generators stay as they are; memory that runs out ends the samples, never the run.
    """

    def __init__(
        self, trainer: Trainer, model: torch.nn.Module, tokenizer: Any, seed: int, count: int
    ) -> None:
        """Choose up to `count` distinct prompts by `seed`, from the validation rows where there are some."""
        self.trainer, self.model, self.tokenizer = trainer, model, tokenizer
        rows = trainer.validation if len(trainer.validation) else trainer.train_examples
        self.ends = find_ends(tokenizer, model.generation_config.eos_token_id)
        self.prompts = list(_choose(rows, seed, count)) if count else []
        self.base: list[str] = list(trainer.state.base_answers)
        self.written_step = -1

    @property
    def due(self) -> bool:
        """Whether the base's answers are to be written: a resumed run has them in its checkpoint.

        A full training that resumes without them goes on without: its weights as they came are gone.
        """
        there = self.can_wait or not self.trainer.state.step
        return bool(self.prompts) and not self.base and there

    @property
    def can_wait(self) -> bool:
        """Whether what the base says can be asked later, too: its weights stay as they are under an adapter."""
        return isinstance(self.model, PeftModel)

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
                    prompt=self._ask(prompt),
                    answer=answer,
                    expected=self.ends.cut(self._words(expected)),
                    base=before,
                )
            )

    def _words(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True).strip()

    def _ask(self, ids: Sequence[int]) -> str:
        """The prompt as a person would say it: without a template's markers and names of roles."""
        specials, parts = set(self.tokenizer.all_special_ids), [[]]
        for id in ids:
            parts.append([]) if id in specials else parts[-1].append(id)
        said = [ROLE.sub("", self.tokenizer.decode(part).strip()).strip() for part in parts]
        return "\n".join(words for words in said if words)

    def _answer(self, *, base: bool) -> list[str]:
        """Return the greedy answers to all prompts, none when the end was asked for or memory ran out."""
        trainer, generators = self.trainer, read_generators()
        while self.prompts:
            try:
                return self._generate(base)
            except Exception as error:  # raised again unless there is a way on
                if is_out_of_memory(error):
                    let_go(error)
                    self.prompts = []
                    trainer.hooks.emit(Warned(step=trainer.state.step, message=text("samples.given_up")))
                elif not trainer.hooks.recover(error, trainer.state):
                    raise
            finally:
                write_generators(generators)
        return []

    @torch.no_grad()
    def _generate(self, base: bool) -> list[str]:
        trainer = self.trainer
        if trainer.hooks.should_stop():
            return []
        longest = max(len(expected) for _, expected in self.prompts)
        sampling = Sampling(max_new_tokens=min(ANSWER_TOKENS, 2 * longest + 8))
        requests = [Request(tuple(prompt), sampling) for prompt, _ in self.prompts]
        watch = _Watch(trainer)
        plain = self.model.disable_adapter() if base and self.can_wait else nullcontext()
        with evaluation_mode(self.model):
            answerer = self._answerer()
            with plain:
                found = answerer.answer(
                    requests, adapted=not base, on_step=watch.step, should_stop=watch.must_end
                )
        if trainer.hooks.should_stop():
            return []
        answers = self.tokenizer.batch_decode([one.tokens for one in found], skip_special_tokens=True)
        return [self.ends.cut(answer).strip() for answer in answers]

    def _answerer(self) -> Answerer:
        """Return who answers, for the weights as they are now."""
        return Answerer(self.model, self.tokenizer, self.ends, autocast=self.trainer.autocast_dtype)


class _Watch:
    """Tells with every token that the run is alive, and ends the answers when the run is to end."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.tokens = 0
        self.begun_s = time.monotonic()

    def step(self, grown: Sequence[Completion]) -> None:
        """Hear that answers have grown by a token."""
        self.tokens += 1
        self.trainer.hooks.beat("evaluate", self.trainer.state.step, self.tokens)

    def must_end(self) -> bool:
        """Return whether the answers have to end where they are."""
        return self.trainer.hooks.should_stop() or time.monotonic() - self.begun_s > LIMIT_S


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
