"""Whether a sequence has ended, by its last token or by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studio.engine.stop_tokens import Ends

LOOKED_BACK_TOKENS = 8
"""So many tokens more than the words have may hold them: pieces that carry what stood before."""


class EndTest:
    """`ends` of one model, and its tokenizer, which is asked where words end an answer."""

    def __init__(self, ends: Ends, tokenizer: Any) -> None:
        self._ids = frozenset(ends.ids)
        self._words, self._tokenizer = ends.words, tokenizer
        self._width = 0
        if ends.words:
            self._width = (
                len(tokenizer(ends.words, add_special_tokens=False)["input_ids"]) + LOOKED_BACK_TOKENS
            )

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Return whether an answer of these tokens, at least one, is at its end."""
        if tokens[-1] in self._ids:
            return True
        return bool(self._words) and self._words in self._tokenizer.decode(list(tokens[-self._width :]))
