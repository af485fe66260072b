"""Answers in OpenAI's shapes: whole ones, and the pieces of a stream."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

REASONS = {"end": "stop", "limit": "length"}
LEAST_SCORE = -9999.0
"""JSON has no infinity."""


@dataclass(slots=True)
class Piece:
    """One choice as it grows: what of it has been sent."""

    index: int
    chat: bool
    told: bool
    """Whether log-probabilities are told."""
    parallel: bool = True
    answer: Any = None
    """The last engine.generation.text_stream.Answer."""
    sent_signs: int = 0
    sent_scores: int = 0
    begun: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reason(self) -> str:
        """Why it ended, as OpenAI says it."""
        return "tool_calls" if self.calls else REASONS[self.answer.reason]

    def take(self, answer: Any) -> None:
        """Hear of the answer as it stands now."""
        self.answer = answer
        if answer.reason is not None and not self.calls:
            calls = answer.calls if self.parallel else answer.calls[:1]
            self.calls = [
                {
                    "id": f"call_{secrets.token_hex(12)}",
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(dict(call.arguments), ensure_ascii=False),
                    },
                }
                for call in calls
            ]

    def whole(self) -> dict[str, Any]:
        """Return the choice of a whole answer."""
        words = self.answer.words
        scores = _chat_scores(self.answer.scores) if self.chat else _text_scores(self.answer.scores, 0)
        logprobs = scores if self.told else None
        if not self.chat:
            return {"index": self.index, "text": words, "logprobs": logprobs, "finish_reason": self.reason}
        message: dict[str, Any] = {"role": "assistant", "content": words, "refusal": None}
        if self.calls:
            message |= {"content": words or None, "tool_calls": self.calls}
        return {"index": self.index, "message": message, "logprobs": logprobs, "finish_reason": self.reason}

    def next(self, ended: bool) -> list[dict[str, Any]]:
        """Return the choices of the stream's next pieces: what is new, and at the end why it ended."""
        found = []
        words = self.answer.words[self.sent_signs :] if self.answer else ""
        scores = list(self.answer.scores)[self.sent_scores :] if self.answer and self.told else []
        if self.chat and not self.begun:
            found.append(self._piece({"role": "assistant", "content": ""}, None))
            self.begun = True
        if words or scores:
            if self.chat:
                logprobs = _chat_scores(scores) if self.told else None
                found.append(self._piece({"content": words}, None) | {"logprobs": logprobs})
            else:
                logprobs = _text_scores(scores, self.sent_signs) if self.told else None
                found.append(self._piece(words, None) | {"logprobs": logprobs})
            self.sent_signs += len(words)
            self.sent_scores += len(scores)
        if ended:
            if self.calls:
                numbered = [{"index": place, **call} for place, call in enumerate(self.calls)]
                found.append(self._piece({"tool_calls": numbered}, None))
            found.append(self._piece({} if self.chat else "", self.reason))
        return found

    def _piece(self, said: Any, reason: str | None) -> dict[str, Any]:
        part = {"delta": said} if self.chat else {"text": said}
        return {"index": self.index, **part, "logprobs": None, "finish_reason": reason}


def count_tokens(pieces: Sequence[Piece], prompts: int) -> dict[str, int]:
    """Return the usage of all choices; each of the prompts counts once."""
    each = len(pieces) // prompts
    prompt = sum(piece.answer.prompt_tokens for piece in pieces[::each] if piece.answer)
    answered = sum(piece.answer.tokens for piece in pieces if piece.answer)
    return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}


def _chat_scores(scores: Sequence[Any]) -> dict[str, Any]:
    def describe(words: str, score: float) -> dict[str, Any]:
        # Of half a character the bytes are not known.
        told = None if "\ufffd" in words else list(words.encode("utf-8"))
        return {"token": words, "logprob": _finite(score), "bytes": told}

    content = [
        describe(one.words, one.log_probability)
        | {"top_logprobs": [describe(words, score) for _, words, score in one.likeliest]}
        for one in scores
    ]
    return {"content": content, "refusal": None}


def _text_scores(scores: Sequence[Any], start: int) -> dict[str, Any]:
    offsets = [start]
    for one in scores:
        offsets.append(offsets[-1] + len(one.words))
    return {
        "tokens": [one.words for one in scores],
        "token_logprobs": [_finite(one.log_probability) for one in scores],
        "top_logprobs": [{words: _finite(score) for _, words, score in one.likeliest} for one in scores],
        "text_offset": offsets[:-1],
    }


def _finite(score: float) -> float:
    return score if math.isfinite(score) else LEAST_SCORE
