"""Text to token ids, and to which stretch of characters each belongs, by the tokenizer's own offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Span = tuple[int, int]
Encoded = tuple[np.ndarray, np.ndarray]
"""(ids int32 [tokens], which span each belongs to, counted from 1, int32 [tokens]; 0: to none)"""
PROBE = "A 1st line,\n  ünï 漢字 🙂 two"


class Encoder:
    """Encodes many texts with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if self.backend is not None:
            self._reset()
            for plain in (False, True):
                ours = self.backend.encode(PROBE, add_special_tokens=plain).ids
                if ours != self.tokenizer(PROBE, add_special_tokens=plain)["input_ids"]:
                    self.backend = None  # Its class does more than its backend.
                    break

    def encode(self, texts: Sequence[str], spans: Sequence[Sequence[Span]], plain: bool) -> list[Encoded]:
        """Return the tokens of each text and in which of its `spans` (ordered, apart) each stands.

        `plain`: the tokenizer adds the tokens that it puts around every text.
        """
        if not texts:
            return []
        if self.backend is None:
            return [self._encode_in_parts(words, own, plain) for words, own in zip(texts, spans, strict=True)]
        self._reset()
        encodings = self.backend.encode_batch(list(texts), add_special_tokens=plain)
        results = []
        for words, own, encoding in zip(texts, spans, encodings, strict=True):
            ids = np.array(encoding.ids, dtype=np.int32)
            owners = np.zeros(len(ids), dtype=np.int32)
            astride = False
            for number, (start, end) in enumerate(own, start=1):
                if start < end:
                    found = _find_tokens(encoding, len(ids), start, end)
                    first, past, apart = found or _find_by_offsets(encoding, start, end)
                    owners[first:past] = number
                    astride |= not apart
            row = ids, owners
            results.append(self._part_edges(words, own, plain, row) if astride else row)
        return results

    def _reset(self) -> None:
        """A tokenizer's file may ask for cutting and padding; both would lose or add tokens here."""
        self.backend.no_truncation()
        self.backend.no_padding()

    def _part_edges(self, words: str, spans: Sequence[Span], plain: bool, whole: Encoded) -> Encoded:
        """Where a token lies across the edge of an answer, part it there, as the prompt will be when the model answers.

        Tokenizers that put a space before each stretch would change the text: theirs stays whole and is trained.
        """
        parted = self._encode_in_parts(words, spans, plain)
        same = self.tokenizer.decode(parted[0]) == self.tokenizer.decode(whole[0])
        return parted if same else whole

    def _encode_in_parts(self, words: str, spans: Sequence[Span], plain: bool) -> Encoded:
        """For tokenizers that tell no offsets: each stretch of text is tokenised by itself."""
        ids: list[int] = []
        owners: list[int] = []
        places = [0, *(place for span in spans for place in span), len(words)]
        for number, (start, end) in enumerate(zip(places, places[1:], strict=False)):
            if start < end:
                part = self.tokenizer(words[start:end], add_special_tokens=plain and not ids)["input_ids"]
                ids += part
                owners += [number // 2 + 1 if number % 2 else 0] * len(part)
        return np.asarray(ids, dtype=np.int32), np.asarray(owners, dtype=np.int32)


def _find_tokens(encoding: Any, count: int, start: int, end: int) -> tuple[int, int, bool] | None:
    """Return (first, one past the last, whether no token lies across an edge) of the tokens of characters start to end.

    None where a character at an edge belongs to no token.
    """
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
    if first is None or last is None:
        return None
    apart = encoding.token_to_chars(first)[0] >= start
    while True:  # Several tokens may spell the last character.
        apart &= encoding.token_to_chars(last)[1] <= end
        last += 1
        following = encoding.token_to_chars(last) if last < count else None
        if following is None or not following[0] < end <= following[1]:
            return first, last, apart


def _find_by_offsets(encoding: Any, start: int, end: int) -> tuple[int, int, bool]:
    places = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    inside = np.flatnonzero((places[:, 0] < end) & (places[:, 1] > start))
    if not len(inside):
        return 0, 0, True
    first, last = int(inside[0]), int(inside[-1])
    return first, last + 1, bool(places[first, 0] >= start and places[last, 1] <= end)
