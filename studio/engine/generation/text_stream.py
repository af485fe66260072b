"""A growing answer as words: told now and then, never with half a character or half an end mark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from studio.engine.generation.request import Completion
from studio.engine.stop_tokens import Ends

EMIT_EVERY_S = 0.05
"""A growing answer is told at most so often: each telling decodes all of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer so far. Seconds count from when the model got the question, loading left out."""

    words: str
    tokens: int
    first_s: float
    """Until the first token."""
    took_s: float
    """Until the last token that there is."""
    unfinished: bool = False
    """Whether it was cut off at the limit of tokens: the model had not ended it."""

    @property
    def tokens_per_s(self) -> float:
        """After the first token, whose time goes into reading the question; 0 for a single token."""
        return (self.tokens - 1) / max(self.took_s - self.first_s, 1e-6) if self.tokens > 1 else 0.0


class TextStream:
    """Emits the answer so far as its completion grows; the clock runs from when this is made."""

    def __init__(self, tokenizer: Any, emit: Callable[[Answer], None], ends: Ends) -> None:
        self._tokenizer, self._emit, self._ends = tokenizer, emit, ends
        self._began_s = time.perf_counter()
        self._first_s = 0.0
        self._told_s = 0.0
        self._last_s = self._began_s
        self.answer = Answer("", 0, 0.0, 0.0)

    def grow(self, completion: Completion) -> None:
        """Hear that there is a token more."""
        self._last_s = time.perf_counter()
        self._first_s = self._first_s or self._last_s - self._began_s
        if self._last_s - self._told_s >= EMIT_EVERY_S:
            self._read(completion, growing=True)
            if not self.answer.words.endswith("\ufffd"):
                self._told_s = self._last_s
                self._emit(self.answer)

    def end(self, completion: Completion) -> None:
        """Emit the whole answer."""
        self._read(completion)
        self._emit(self.answer)

    def _read(self, completion: Completion, *, growing: bool = False) -> None:
        said = self._tokenizer.decode(completion.tokens, skip_special_tokens=True)
        self.answer = Answer(
            self._ends.cut(said, growing=growing),
            len(completion.tokens),
            self._first_s,
            self._last_s - self._began_s,
            not growing and completion.reason == "limit",
        )
