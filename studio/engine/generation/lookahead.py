"""Guesses what comes next from what was said before, so that one step reads several tokens and not one.

What stands behind the last few tokens of a sequence stood there before: in its own prompt and answer (a name that is
repeated), or in other answers of the same model (the keys of a JSON record). A step reads the guess together with the
last token and draws a token behind each; as far as what is drawn is the guess, it was read rightly.
Source: Saxena 2023 (prompt lookup decoding); Leviathan et al. 2023, arXiv:2211.17192.

Whether it is worth a row is reckoned before each step, from two measures:

    gain(m) = (n + sum_m p_i^k) / n * t(n) / t(n + m)        n sequences, m guessed tokens, the likeliest ones

p_i, the share of its guesses that sequence i drew, is had for nothing: a guess that is not read is held against what
is drawn, too. t, what a step of so many rows took, is learned by taking it. The m with the largest gain is read, none
below LEAST_GAIN: so a sequence whose guesses are wrong stops, a batch whose rows cost too much stops, and it is tried
again the more seldom the less that seems to bring (DOUBTED).

None of this touches what is said. A draw hangs on logits, seed and position alone (sampler.py), never on a guess: a
guess is right when it is what is drawn, and where it is wrong that same draw is kept, so there is no rejection that
could be biased. And what is decided for a step hangs on times and on tokens before it: whether the draw at a position
is read a step earlier or later, it is the same. So with guesses come the tokens that come without, drawn or greedy, but
where two tokens are as good as even: in fp32 on a processor a row among others is rounded in another order than alone
(1e-4 of logits near 39), with guesses or with neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

import numpy as np

from studio.core.facts import Choice
from studio.core.i18n import text

MATCHED_TOKENS = (4, 3, 2)
"""How many of the last tokens have to stand there, longest first."""
MOST_GUESSED = 7
"""Tokens guessed for each sequence."""
FEW_ROWS = 8
"""So many rows may be as fast as one."""
MOST_KNOWN = 200_000
"""Places of other answers: some 40 MB, reckoned."""
FIRST_SHARE = 0.6
"""Of guessed tokens that are right, before any was seen."""
LEARNED, LEARNED_OF_ALL = 0.1, 0.02
"""By how much one guessed token, right or wrong, moves that share: a sequence's own, and that of all it begins with."""
LEAST_GAIN = 1.1
"""Less is not told from chance, and where nobody waits, who ends sooner leaves a slot empty, not a shorter way.

SmolLM2-135M, 16 answers of 64 tokens: by 7 steps with guesses at a gain of 1 came 71 tokens more, and as many steps as
without, since not all sequences repeat themselves.
"""
TIMES = 5
"""Of a step of so many rows, the last ones, of which the middle counts.

With the mean of the last two, one step of 820 ms beside other programs made 16 rows cost 355 ms, where 24 had taken 175
and the usual 16 took 149, and guesses were read in 25 of 54 steps (SmolLM2-135M, 16 answers). The process's own time
knows no neighbours, but Windows counts it in parts of 16 ms.
"""
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
    shares: dict[int, float] = field(default_factory=dict)
    """Of its guesses behind so many matched tokens, how many were right lately."""


@dataclass(frozen=True, slots=True)
class Guess:
    """What may come next, how many tokens before it were found, and how much of it is read ahead."""

    tokens: Sequence[int] = ()
    matched: int = 0
    count: int = 0

    @property
    def ahead(self) -> Sequence[int]:
        """The tokens that are read ahead."""
        return self.tokens[: self.count]


@dataclass(slots=True)
class _Tally:
    """What guesses brought since it was begun."""

    read: int = 0
    right: int = 0
    found: int = 0
    drawn: int = 0
    """Tokens that were guessed, read or not, and those of them that came."""
    spent_s: float = 0.0
    plain_s: float = 0.0
    """What the steps took, and what those that bring the same tokens without guesses would have."""
    pays: bool = False
    gain: float = 0.0
    """Whether guesses were read when there last were any, and what was expected of the best count of them."""


@dataclass(slots=True)
class _Times:
    """What steps of one count of rows took, and when the last of them was."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES))
    step: int = 0


class Lookahead:
    """Guesses for the sequences of one model; learns what guesses bring and what rows cost."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Place] = {}
        self._shares = dict.fromkeys(MATCHED_TOKENS, FIRST_SHARE)
        self._times: dict[int, _Times] = {}
        """By count of rows."""
        self._step = 0
        self._tally = _Tally()

    def forget(self) -> None:
        """Forget what was said, and how often guesses are right: weights have changed. What rows cost stays."""
        self._known.clear()
        self._shares = dict.fromkeys(MATCHED_TOKENS, FIRST_SHARE)

    def begin(self) -> None:
        """Count anew what describe() tells."""
        self._tally = _Tally()

    def describe(self) -> Choice:
        """Return whether guesses are read ahead, as last decided, and why, by what was measured since begin()."""
        tally = self._tally
        if not tally.found:
            return Choice(value=False, reason=text("generation.ahead.nothing"))
        if not (tally.pays and tally.read):
            told = {"right": tally.drawn, "count": tally.found, "gain": f"{tally.gain:.2f}"}
            return Choice(value=False, reason=text("generation.ahead.stopped", **told))
        gain = f"{tally.plain_s / tally.spent_s:.2f}"
        told = {"right": tally.right, "count": tally.read, "gain": gain}
        return Choice(value=True, reason=text("generation.ahead.pays", **told))

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
        guesses = [
            Guess() if told is None or most < 1 else self._find(told, min(most, MOST_GUESSED))
            for told, most in zip(tolds, room, strict=True)
        ]
        lengths = np.array([len(one.tokens) for one in guesses])
        if not lengths.any():
            return guesses
        shares = [
            self._share(told, one.matched) if one.tokens else 0.0
            for told, one in zip(tolds, guesses, strict=True)
        ]
        places = np.arange(MOST_GUESSED)
        worth = np.where(places < lengths[:, None], np.array(shares)[:, None] ** (places + 1), -1.0).ravel()
        # The likeliest first: of one sequence in their order, each being less likely than the one before it.
        order = np.argsort(-worth, kind="stable")[: lengths.sum()]
        count = self._choose_count(len(guesses), np.cumsum(worth[order]))
        counts = np.bincount(order[:count] // MOST_GUESSED, minlength=len(guesses)).tolist()
        return [replace(one, count=most) for one, most in zip(guesses, counts, strict=True)]

    def learn(
        self,
        seconds: float,
        tolds: Sequence[Told | None],
        guesses: Sequence[Guess],
        drawn: Sequence[Sequence[int]],
    ) -> None:
        """Hear how long a step took and which tokens it drew of each sequence, those right in a guess and one more."""
        tally, read = self._tally, sum(one.count for one in guesses)
        self._step += 1
        times = self._times.setdefault(_round_rows(len(guesses) + read), _Times())
        times.seconds.append(seconds)
        times.step = self._step
        tokens = sum(map(len, drawn))
        tally.read += read
        tally.right += tokens - len(drawn)
        tally.spent_s += seconds
        tally.plain_s += self._expect_seconds(len(guesses), doubts=False) * tokens / len(guesses)
        for told, guess, came in zip(tolds, guesses, drawn, strict=True):
            for guessed, token in zip(guess.tokens, came, strict=False):
                right = guessed == token
                tally.found += 1
                tally.drawn += right
                share, of_all = self._share(told, guess.matched), self._shares[guess.matched]
                told.shares[guess.matched] = share + LEARNED * (right - share)
                self._shares[guess.matched] = of_all + LEARNED_OF_ALL * (right - of_all)

    def _find(self, told: Told, most: int) -> Guess:
        tokens = told.tokens
        for length in MATCHED_TOKENS:
            key = tuple(tokens[-length:])
            found = told.known.get(key) or self._known.get(key)
            if found is not None:
                where, place = found
                return Guess(where[place : place + most], length)
        return Guess()

    def _share(self, told: Told, matched: int) -> float:
        """Return which share of its guesses a sequence draws; what all do, before it had any."""
        return told.shares.get(matched, self._shares[matched])

    def _choose_count(self, sequences: int, gained: np.ndarray) -> int:
        """Return how many guessed tokens bring the most a second; gained: tokens to be expected of 1, 2, 3 ... more."""
        best, most, rows = 0, 0.0, sequences
        while (count := (rows := _find_next(rows)) - sequences) <= len(gained):
            gain = self._reckon_gain(sequences, count, gained, doubts=True)
            if gain > most:
                best, most = count, gain
        if best:
            self._tally.pays = most >= LEAST_GAIN
            self._tally.gain = self._reckon_gain(sequences, best, gained, doubts=False)
        return best if most >= LEAST_GAIN else 0

    def _reckon_gain(self, sequences: int, count: int, gained: np.ndarray, *, doubts: bool) -> float:
        """Return gain(count) of the file's docstring."""
        plain_s, s = (self._expect_seconds(rows, doubts=doubts) for rows in (sequences, sequences + count))
        return float(sequences + gained[count - 1]) / sequences * plain_s / s

    def _expect_seconds(self, rows: int, *, doubts: bool) -> float:
        """Return what a step of so many rows takes; what was never tried is thought as fast as fewer rows, if few.

        Many are thought to take as many times as long: their products wait for arithmetic, not for weights. `doubts`:
        less, the longer ago it was tried.
        """
        rows = _round_rows(rows)
        fewer = max((one for one in self._times if one <= rows), default=0)
        work = max(rows, FEW_ROWS)
        if not fewer and self._times:  # no less than its share of the next larger count: so it is tried
            more = min(self._times)
            return median_low(self._times[more].seconds) * rows / more
        if not fewer:
            return work / FEW_ROWS
        times = self._times[fewer]
        seconds = median_low(times.seconds)
        if doubts:
            seconds *= DOUBTED ** (self._step - times.step)
        if fewer == rows:
            return seconds
        return seconds * max(1.0, UNTRIED**self._step * work / max(fewer, FEW_ROWS))


def _round_rows(rows: int) -> int:
    """Return the largest of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... that is not above `rows`.

    Steps of many different counts would each be measured anew, and a product of a new shape takes 0.4 ms longer.
    """
    power = 1 << (rows.bit_length() - 1)
    return power + power // 2 if rows >= power + power // 2 else power


def _find_next(rows: int) -> int:
    """Return the smallest of those counts that is above `rows`."""
    power = 1 << (rows.bit_length() - 1)
    middle = power + power // 2
    return middle if power > 1 and rows < middle else 2 * power
