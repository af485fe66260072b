"""What is asked of a model, and what came of it, in token ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

EndReason = Literal["end", "limit", "stopped", "room"]
"""The model ended the answer; the limit of tokens was reached; whoever asked wants no more; its keys and values have no
room."""


Scores = tuple[float, tuple[tuple[int, float], ...]]
"""A token's log-probability, and the likeliest tokens with theirs."""
Read = Callable[[int], Scores]


class Constraint(Protocol):
    """What one answer may say, token by token."""

    def restrict(self, logits: Tensor) -> None:
        """Set those of logits (V,) fp32 that may not come next to -inf, in place."""

    def take(self, token: int) -> bool:
        """Hear what came next; return whether the answer is whole with it."""


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
    likeliest: int | None = None
    """How many of the likeliest tokens are told with each, 0 for its own log-probability alone; None tells nothing."""


@dataclass(slots=True)
class Completion:
    """An answer as it grows."""

    request: Request
    constraint: Constraint | None = None
    tokens: list[int] = field(default_factory=list)
    """The end token included."""
    log_probabilities: list[float] = field(default_factory=list)
    """Of each token in the distribution that it was drawn from; at temperature 0 in the model's own."""
    reason: EndReason | None = None
    """Why it ended, None while it grows. Who wants no more of it sets it, on the thread that computes."""
    likeliest: list[Scores] = field(default_factory=list)
    """Where the request asks for it: each token's log-probability as the model has it, before temperature, cuts and
    constraint, and the likeliest tokens with theirs."""

    @property
    def watched(self) -> bool:
        """Whether every single distribution is looked at: nothing may be drawn ahead."""
        return self.constraint is not None or self.request.likeliest is not None


def read_own(logits: Tensor, completion: Completion) -> Read | None:
    """Return what tells a token's own log-probability and the likeliest tokens, None where nobody asks.

    logits: (V,) fp32; afterwards what the constraint forbids is -inf.
    """
    count, read = completion.request.likeliest, None
    if count is not None:
        scores = logits.log_softmax(-1)
        top = scores.topk(min(count, len(scores)))
        likeliest = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))

        def read(token: int) -> Scores:
            return float(scores[token]), likeliest

    if completion.constraint is not None:
        completion.constraint.restrict(logits)
    return read
