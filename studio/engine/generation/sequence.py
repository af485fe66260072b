"""A sequence while it grows: its tokens, its pages of keys and values, and what was drawn for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from studio.engine.generation.lookahead import Told
from studio.engine.generation.request import Completion, Read
from studio.models.decoder.cached_rows import PAGE_TOKENS


@dataclass(slots=True, eq=False)
class GrowingSequence:
    """See the file's docstring."""

    completion: Completion
    pages: list[int]
    tokens: list[int]
    """Of prompt and answer."""
    kept: int
    """Tokens whose keys and values are kept."""
    told: Told
    drawn: deque[tuple[int, float, Read | None]] = field(default_factory=deque)
    """Tokens that come next, with their log-probabilities: more than one where guesses were right."""

    @property
    def last_tokens(self) -> int:
        """Tokens that it can come to."""
        request = self.completion.request
        return len(request.prompt) + request.sampling.max_new_tokens

    @property
    def drawn_by_device(self) -> bool:
        """Whether nobody looks at its distributions, and nothing but temperature shapes them."""
        return not self.completion.watched and self.completion.request.sampling.plain


def begin(completion: Completion) -> GrowingSequence:
    """Return `completion` as a sequence of which nothing is kept yet."""
    tokens = [*completion.request.prompt, *completion.tokens]
    return GrowingSequence(completion, [], tokens, 0, Told(tokens))


def count_pages(tokens: int) -> int:
    """Return how many pages so many tokens take."""
    return -(-tokens // PAGE_TOKENS)
