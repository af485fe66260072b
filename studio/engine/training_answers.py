"""Answers of a model in the middle of its training: weights, optimizer and random generators stay as they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import PeftModel

from studio.engine.generation.answerer import Answerer, leave_answers_own
from studio.engine.generation.generator import SLOTS
from studio.engine.generation.request import Completion, Request, Sampling
from studio.engine.oom_fallback import is_out_of_memory, let_go
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.stop_tokens import find_ends
from studio.engine.trainer import Trainer
from studio.models.adapt import evaluation_mode

MANY_SLOTS = 64
FEW_WEIGHTS = 2**25
"""A model of fewer grows more answers at once on a processor: its steps wait for operations to be begun, and others'
products of more than 16 rows for arithmetic."""


class Said(NamedTuple):
    """One answer."""

    words: str
    tokens: int
    """The end token included."""
    ended: bool
    """By itself; False: cut."""


class TrainingAnswers:
    """Lets the model of a run answer greedily; memory that runs out ends the answers, never the run."""

    def __init__(self, trainer: Trainer, model: torch.nn.Module, tokenizer: Any) -> None:
        self.trainer, self.model, self.tokenizer = trainer, model, tokenizer
        self.ends = find_ends(tokenizer, model.generation_config.eos_token_id)
        on_processor = model.device.type == "cpu"
        few = on_processor and sum(one.numel() for one in model.parameters()) < FEW_WEIGHTS
        self.slots = MANY_SLOTS if few else SLOTS
        """Answers that grow at once."""
        self._opens = on_processor
        self._answerer: Answerer | None = None
        self._given: dict[str, Any] = {}
        self._stay = False

    @contextmanager
    def weights_stay(self) -> Iterator[None]:
        """Inside, nothing is trained: all answers come from what was made ready once."""
        self._stay = True
        try:
            yield
        finally:
            self._stay, self._answerer = False, None

    @property
    def has_base(self) -> bool:
        """Whether what the base says can be asked at any time: its weights stay as they are under an adapter."""
        return isinstance(self.model, PeftModel)

    def answer(
        self, prompts: Sequence[tuple[Sequence[int], int]], *, base: bool, limit_s: float
    ) -> list[Said] | None:
        """Return the answers to (token ids, most tokens of the answer); cut where they take longer than `limit_s`.

        None when memory ran out. [] when the end of the run was asked for. Raises what `recover` gives up on.
        """
        trainer, generators = self.trainer, read_generators()
        while True:
            try:
                return self._generate(prompts, base, limit_s)
            except Exception as error:  # raised again unless there is a way on
                self._answerer = None
                if is_out_of_memory(error):
                    let_go(error)
                    return None
                if not trainer.hooks.recover(error, trainer.state):
                    raise
            finally:
                write_generators(generators)

    def say(self, tokens: Sequence[int]) -> str:
        """Return the words of an answer, without what ends it."""
        return self.ends.cut(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    @torch.no_grad()
    def _generate(
        self, prompts: Sequence[tuple[Sequence[int], int]], base: bool, limit_s: float
    ) -> list[Said]:
        trainer = self.trainer
        if trainer.hooks.should_stop():
            return []
        requests = [Request(tuple(prompt), Sampling(max_new_tokens=most)) for prompt, most in prompts]
        watch = _Watch(trainer, limit_s)
        plain = self.model.disable_adapter() if base and self.has_base else nullcontext()
        with evaluation_mode(self.model):
            told = {"on_step": watch.step, "should_stop": watch.must_end}
            with plain:
                found = self._find_answerer().answer(requests, adapted=not base, slots=self.slots, **told)
        if trainer.hooks.should_stop():
            return []
        return [Said(self.say(one.tokens), len(one.tokens), one.reason == "end") for one in found]

    def _find_answerer(self) -> Answerer:
        """Return who answers by the weights as they are; another one where a kernel was given up meanwhile."""
        trainer = self.trainer
        given = {
            "kernels": leave_answers_own(trainer.step.kernels),
            "autocast": trainer.autocast_dtype,
            "opens": self._opens,
        }
        if self._answerer is not None and given == self._given:
            return self._answerer
        answerer = Answerer(self.model, self.tokenizer, self.ends, **given)
        if self._stay:
            self._answerer, self._given = answerer, given
        return answerer


class _Watch:
    """Tells with every token that the run is alive, and ends the answers when the run is to end."""

    def __init__(self, trainer: Trainer, limit_s: float) -> None:
        self.trainer = trainer
        self.tokens = 0
        self.ends_s = time.monotonic() + limit_s

    def step(self, grown: Sequence[Completion]) -> None:
        """Hear that answers have grown by a token."""
        self.tokens += 1
        self.trainer.hooks.beat("evaluate", self.trainer.state.step, self.tokens)

    def must_end(self) -> bool:
        """Return whether the answers have to end where they are."""
        return self.trainer.hooks.should_stop() or time.monotonic() > self.ends_s


def find_answer(trained: np.ndarray, find: Callable[[np.ndarray], int]) -> tuple[int, int]:
    """Return (begin, end) of an answer in the marks (bool) of what is learned: `find` picks among the begins."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], trained.astype(np.int8), [0]))))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return 0, 0
    chosen = find(begins)
    return int(begins[chosen]), int(ends[chosen])
