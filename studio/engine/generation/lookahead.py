"""Guesses what comes next from what was said before, so that one step reads several tokens and not one.

What stands behind the last few tokens of a sequence stood there before: in its own prompt and answer (a name that is
repeated), or in other answers of the same model (the keys of a JSON record). A step reads the guess together with the
last token and draws a token behind each; as far as what is drawn is the guess, it was read rightly. What is drawn hangs
on logits, seed and position alone (sampler.py): with guesses come the tokens that come without, drawn or greedy, and so
the same distribution. Source: Saxena 2023 (prompt lookup decoding); Leviathan et al. 2023, arXiv:2211.17192.

A guess that is wrong costs what its rows cost. Both are measured while answers grow, and as many tokens are guessed as
bring the most tokens a second, none where that is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

MATCHED_TOKENS = (4, 3, 2)
"""How many of the last tokens have to stand there, longest first."""
CHOICES = (0, 1, 2, 3, 5, 7)
"""Tokens guessed for each sequence."""
FEW_ROWS = 8
"""So many rows may be as fast as one."""
MOST_KNOWN = 200_000
"""Places of other answers: some 40 MB, reckoned."""
FIRST_SHARE = 0.6
"""Of guessed tokens that are right, before any was seen."""
LEARNED = 0.1
"""By how much one guessed token, right or wrong, moves that share."""
DOUBTED = 0.999
"""A count of rows that was not tried in a step may have become faster: so it is tried again now and then.

One that is s times as slow as the best is tried once in ln(s) / 0.001 steps: of six counts beyond 16 rows, up to three
times as slow, that is 1 % of the time, reckoned; with 0.995 it was 4 %.
"""

UNTRIED = 0.998
"""The same of one that was never tried, which is tried once.

With 0.995, 16 answers of 64 tokens had tried 48 and 64 rows within 190 steps, at 2.4 and 3.4 times the time of 16.
"""

Place = tuple[list[int], int]
"""Tokens, and where in them a guess begins."""


@dataclass(slots=True)
class Told:
    """The tokens of one sequence and where each few of them stand."""

    tokens: list[int]
    known: dict[tuple[int, ...], Place] = field(default_factory=dict)
    read: int = 0
    """Tokens that are in `known`."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What may come next, and how many tokens before it were found."""

    tokens: Sequence[int] = ()
    matched: int = 0


class Lookahead:
    """Guesses for the sequences of one model; learns what guesses bring and what rows cost."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Place] = {}
        self._shares = dict.fromkeys(MATCHED_TOKENS, FIRST_SHARE)
        self._seconds: dict[int, float] = {}
        """Of a step of so many rows."""
        self._doubt = 1.0
        """What a count of rows that was never tried may cost, as a share of what it is thought to."""

    def forget(self) -> None:
        """Forget what was said, and how often guesses are right: weights have changed. What rows cost stays."""
        self._known.clear()
        self._shares = dict.fromkeys(MATCHED_TOKENS, FIRST_SHARE)

    def follow(self, told: Told, prompt_tokens: int) -> None:
        """Take note of what has come to a sequence: for itself, and, of its answer, for all."""
        tokens = told.tokens
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        for place in range(max(1, told.read), len(tokens)):
            for length in MATCHED_TOKENS:
                if length <= place:
                    key = tuple(tokens[place - length : place])
                    told.known[key] = tokens, place
                    if place >= prompt_tokens:
                        self._known[key] = tokens, place
        told.read = len(tokens)

    def guess(self, tolds: Sequence[Told | None], room: Sequence[int]) -> list[Guess]:
        """Return what to read ahead of each sequence, at most `room` tokens; nothing where it is None."""
        longest = max(CHOICES)
        guesses = [
            Guess() if told is None or most < 1 else self._find(told, min(most, longest))
            for told, most in zip(tolds, room, strict=True)
        ]
        if not any(one.tokens for one in guesses):
            return guesses
        gains = [self._sum_shares(one.matched) for one in guesses]
        lengths = [len(one.tokens) for one in guesses]
        offers = [_offer(lengths, count) for count in CHOICES]
        best = max(offers, key=lambda offer: self._rate(offer, gains))
        return [Guess(one.tokens[:count], one.matched) for one, count in zip(guesses, best, strict=True)]

    def learn(self, rows: int, seconds: float, guesses: Sequence[Guess], right: Sequence[int]) -> None:
        """Hear that a step of `rows` rows took so long, and how many tokens of each guess were right."""
        kept = self._seconds.get(_round_rows(rows), seconds)
        for other in self._seconds:
            self._seconds[other] *= DOUBTED
        self._doubt *= UNTRIED
        # A machine that does something else too makes steps longer, never shorter.
        self._seconds[_round_rows(rows)] = min(seconds, (seconds + kept) / 2)
        for guess, count in zip(guesses, right, strict=True):
            for place in range(min(count + 1, len(guess.tokens))):
                share = self._shares[guess.matched]
                self._shares[guess.matched] += LEARNED * ((place < count) - share)

    def _find(self, told: Told, most: int) -> Guess:
        tokens = told.tokens
        for length in MATCHED_TOKENS:
            key = tuple(tokens[-length:])
            found = told.known.get(key) or self._known.get(key)
            if found is not None:
                where, place = found
                return Guess(where[place : place + most], length)
        return Guess()

    def _sum_shares(self, matched: int) -> list[float]:
        """Return how many tokens come of a step that reads 0, 1, 2 ... guessed ones."""
        share = self._shares.get(matched, 0.0)
        return list(accumulate(share**place for place in range(max(CHOICES) + 1)))

    def _rate(self, offer: Sequence[int], gains: Sequence[Sequence[float]]) -> float:
        """Return tokens a second to be expected of a step that reads so many guessed tokens of each sequence."""
        tokens = sum(gain[count] for gain, count in zip(gains, offer, strict=True))
        return tokens / self._expect_seconds(_round_rows(len(offer) + sum(offer)))

    def _expect_seconds(self, rows: int) -> float:
        """Return what a step of so many rows took; what was never tried is thought as fast as fewer rows, if few.

        Many are thought to take as many times as long: their products wait for arithmetic, not for weights.
        """
        work = max(rows, FEW_ROWS)
        fewer = max((one for one in self._seconds if one <= rows), default=0)
        if fewer == rows or not fewer:
            return self._seconds.get(rows, work / FEW_ROWS)
        return self._seconds[fewer] * max(1.0, self._doubt * work / max(fewer, FEW_ROWS))


def _offer(lengths: Sequence[int], count: int) -> list[int]:
    """Return how much to read of guesses of these lengths, at most `count` each, so that rows are as many as often."""
    offer = [min(length, count) for length in lengths]
    rows = len(offer) + sum(offer)
    excess = rows - _round_rows(rows)
    for most in range(count, 0, -1):
        for number, length in enumerate(offer):
            if excess and length == most:
                offer[number], excess = length - 1, excess - 1
    return offer


def _round_rows(rows: int) -> int:
    """Return the largest of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not above `rows`.

    Steps of many different counts would each be measured anew, and a product of a new shape takes 0.4 ms longer.
    """
    power = 1 << (rows.bit_length() - 1)
    return power + power // 2 if rows >= power + power // 2 else power
