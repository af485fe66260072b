"""A growing answer as words: told now and then, never with half a character or half an end mark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from studio.data.conversation import ToolCall
from studio.engine.generation.request import Completion, EndReason
from studio.engine.stop_tokens import Ends, cut_at

EMIT_EVERY_S = 0.05
"""A growing answer is told at most so often."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of an answer and its log-probability as the model has it, with the likeliest ones in its place."""

    token: int
    words: str
    log_probability: float
    likeliest: tuple[tuple[int, str, float], ...] = ()


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
    prompt_tokens: int = 0
    reason: EndReason | None = None
    """Why it ended, None while it grows."""
    calls: tuple[ToolCall, ...] = ()
    """Functions that it calls, where tools were offered."""
    scores: Sequence[TokenScore] = ()
    """Of each token, where that was asked for; it goes on growing."""

    @property
    def tokens_per_s(self) -> float:
        """After the first token, whose time goes into reading the question; 0 for a single token."""
        return (self.tokens - 1) / max(self.took_s - self.first_s, 1e-6) if self.tokens > 1 else 0.0


class TextStream:
    """Emits the answer so far as its completion grows; the clock runs from when this is made."""

    def __init__(
        self, tokenizer: Any, emit: Callable[[Answer], None], ends: Ends, stop: Sequence[str] = ()
    ) -> None:
        """`stop`: words that end the answer and are no part of it, beside those of `ends`."""
        self._tokenizer, self._emit = tokenizer, emit
        self._stop, self._end_ids = tuple(stop), frozenset(ends.ids)
        self._marks = (ends.words, *stop)
        self._looked_back = max(map(len, self._marks))
        self._began_s = time.perf_counter()
        self._first_s = 0.0
        self._told_s = 0.0
        self._last_s = self._began_s
        self._words = ""
        """Of whole characters."""
        self._start = self._read = 0
        """Tokens from `start` on are looked at; the words hold those up to `read`."""
        self._scores: list[TokenScore] = []
        self.answer = Answer("", 0, 0.0, 0.0)

    def grow(self, completion: Completion) -> None:
        """Hear that there is a token more; ends the completion where words of `stop` stand in it."""
        self._last_s = time.perf_counter()
        self._first_s = self._first_s or self._last_s - self._began_s
        due = self._last_s - self._told_s >= EMIT_EVERY_S
        if not due and not self._stop:
            return
        before = len(self._words)
        self._advance(completion.tokens)
        if self._stop:
            new = self._words[max(0, before - self._looked_back) :]
            if any(mark in new for mark in self._stop):
                completion.reason = completion.reason or "end"
        if due and completion.reason is None and self._read == len(completion.tokens):
            self._told_s = self._last_s
            self.answer = self._describe(cut_at(self._words, self._marks, growing=True), completion)
            self._emit(self.answer)

    def end(self, completion: Completion) -> None:
        """Emit the whole answer."""
        words = self._tokenizer.decode(completion.tokens, skip_special_tokens=True)
        self.answer = self._describe(cut_at(words, self._marks), completion)
        self._emit(self.answer)

    def _advance(self, tokens: Sequence[int]) -> None:
        """Take over the words of new tokens, unless they end in half a character."""
        found = self._tokenizer.decode(tokens[self._start :], skip_special_tokens=True)
        known = self._tokenizer.decode(tokens[self._start : self._read], skip_special_tokens=True)
        if found.endswith("\ufffd"):
            return
        self._words += found[len(known) :]
        # What is read once more next time begins with words: a first word may lose its blank.
        self._start = self._read if found[len(known) :] else self._start
        self._read = len(tokens)

    def _describe(self, words: str, completion: Completion) -> Answer:
        said = list(zip(completion.tokens, completion.likeliest, strict=False))
        for token, (score, top) in said[len(self._scores) :]:
            if token in self._end_ids:  # no part of what it says
                continue
            likeliest = tuple((other, self._say(other), value) for other, value in top)
            self._scores.append(TokenScore(token, self._say(token), score, likeliest))
        return Answer(
            words,
            len(completion.tokens),
            self._first_s,
            self._last_s - self._began_s,
            completion.reason == "limit",
            len(completion.request.prompt),
            completion.reason,
            scores=self._scores,
        )

    def _say(self, token: int) -> str:
        return self._tokenizer.decode([token])
