"""What is asked of a model, and what came of it, in token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EndReason = Literal["end", "limit", "stopped"]
"""The model ended the answer; the limit of tokens was reached; whoever asked wants no more."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is drawn: greedy at temperature 0; `top_p` 1, `top_k` 0, `repetition_penalty` 1 change nothing."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_p: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether temperature alone shapes the distribution."""
        return self.top_p >= 1.0 and not self.top_k and self.repetition_penalty == 1.0 and not self.min_p


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, at least one token, and how its answer is drawn."""

    prompt: tuple[int, ...]
    sampling: Sampling = Sampling()


@dataclass(slots=True)
class Completion:
    """An answer as it grows."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    """The end token included."""
    log_probabilities: list[float] = field(default_factory=list)
    """Of each token in the distribution that it was drawn from; at temperature 0 in the model's own."""
    reason: EndReason | None = None
    """Why it ended, None while it grows."""
