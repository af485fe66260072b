"""The examples of a run, read lazily from the tokens on disk: cut, split or left out by a length limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from studio.core.i18n import text
from studio.data.convert import Converted
from studio.data.problems import KEPT, Problems
from studio.data.row import RowProblem
from studio.data.row_codes import RowCode
from studio.data.sequence_packing import Example, LazySequence
from studio.data.text_splitting import split_rows
from studio.data.tokens import Tokens

CUT_RULE = "answer_beyond_max_length"
EMPTY_RULE = "nothing_to_learn"
LONG_RULE = "too_long"


class Examples(LazySequence):
    """Stretches of the rows of Tokens."""

    def __init__(self, tokens: Tokens, chosen: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
        """chosen, starts, stops: int64 [examples]: place of the row in `tokens`, and which of its tokens are used."""
        self.tokens, self.chosen, self.starts, self.stops = tokens, chosen, starts, stops

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return self.stops - self.starts

    def make(self, i: int) -> Example:
        """Return example `i` of one document."""
        ids, trained = self.tokens.example(int(self.chosen[i]))
        start, stop = int(self.starts[i]), int(self.stops[i])
        trained = trained[start:stop]
        if start and len(trained):  # a piece: nothing stands before its first token
            trained = trained.copy()
            trained[0] = False
        weights = self.tokens.weights_of(int(self.chosen[i]))
        second = int(self.tokens.seconds[self.chosen[i]])
        return Example(
            ids[start:stop],
            trained,
            (second, stop - second) if second else (stop - start,),
            None if weights is None else weights[start:stop],
            label=self.tokens.label_of(int(self.chosen[i])),
        )

    @property
    def documents(self) -> np.ndarray:
        """int64 [examples]"""
        return 1 + (self.tokens.seconds[self.chosen] > 0)

    @property
    def labels(self) -> np.ndarray:
        """int8 [examples]: 1 for a good answer, 0 for a bad one, -1 where the data do not say."""
        return self.tokens.labels[self.chosen]

    def pick(self, places: np.ndarray) -> Examples:
        """Return the examples at `places`, in that order."""
        return Examples(self.tokens, self.chosen[places], self.starts[places], self.stops[places])

    def count_trained(self) -> int:
        """Return the number of trained tokens."""
        whole = (self.starts == 0) & (self.stops >= self.tokens.trained_end[self.chosen])
        rest = sum(int(self.make(i).trained.sum()) for i in np.flatnonzero(~whole))
        return int(self.tokens.trained_counts[self.chosen[whole]].sum()) + rest


class JoinedExamples(LazySequence):
    """Examples of several sources as one sequence."""

    def __init__(self, parts: Sequence[Examples], part: np.ndarray, place: np.ndarray) -> None:
        """part, place: int64 [examples]: which of `parts`, and which of its examples."""
        self.parts, self.part, self.place = parts, part, place

    def __len__(self) -> int:
        return len(self.part)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return self._gather("lengths")

    def _gather(self, name: str) -> np.ndarray:
        found = np.zeros(len(self), dtype=np.int64)
        for number, examples in enumerate(self.parts):
            own = self.part == number
            found[own] = getattr(examples, name)[self.place[own]]
        return found

    def make(self, i: int) -> Example:
        """Return example `i`."""
        return self.parts[int(self.part[i])].make(int(self.place[i]))

    @property
    def documents(self) -> np.ndarray:
        """int64 [examples]"""
        return self._gather("documents")

    @property
    def labels(self) -> np.ndarray:
        """int64 [examples]: as Examples.labels"""
        return self._gather("labels")

    def pick(self, places: np.ndarray) -> JoinedExamples:
        """Return the examples at `places`, in that order."""
        return JoinedExamples(self.parts, self.part[places], self.place[places])

    def count_trained(self) -> int:
        """Return the number of trained tokens."""
        numbered = enumerate(self.parts)
        return sum(part.pick(self.place[self.part == number]).count_trained() for number, part in numbered)


def join_examples(parts: Sequence[Examples]) -> JoinedExamples:
    """Return all examples of `parts` behind each other."""
    sizes = [len(part) for part in parts]
    place = [np.arange(size, dtype=np.int64) for size in sizes] or [np.zeros(0, np.int64)]
    return JoinedExamples(parts, np.repeat(np.arange(len(parts)), sizes), np.concatenate(place))


class Cutting:
    """What a length limit makes of rows: the examples that remain, and a name and number for all else."""

    def __init__(
        self,
        converted: Converted,
        tokens: Tokens,
        rows: np.ndarray,
        limit: int | None,
        too_long: str,
        split: str = "train",
        rates: Callable[[], np.ndarray] | None = None,
        prompts: bool = False,
    ) -> None:
        """rows: int64, places in `tokens`, in the order of learning; limit None cuts nothing.

        prompts: rows are questions, of which nothing is learned; what is too long is left out, never cut.
        rates: gives what text_splitting.rate_tokens says of the vocabulary, for long texts that are to be split.
        """
        self.dropped: Counter[str] = Counter()
        self.problems = Problems()
        """CUT, ANSWER_CUT, NOTHING_TO_LEARN, for the first hundred rows of each."""
        self._converted, self._tokens, self._split, self._limit = converted, tokens, split, limit
        lengths = tokens.full_lengths[rows]
        silent = (tokens.trained_end[rows] == 0) & (not prompts)
        rows, lengths = self._drop(rows, lengths, silent, EMPTY_RULE, "")
        self.cut = self.answers_cut = 0
        """Rows used whose end, or whose answer's end, is cut off."""
        if limit is None:
            self.examples = Examples(tokens, rows, np.zeros_like(rows), lengths)
            self.used = len(rows)
            return
        # Neither a pair is cut nor an answer with a label: without its end it is another one than was judged.
        whole = (tokens.seconds[rows] > 0) | (tokens.labels[rows] >= 0) | prompts
        unfit = (tokens.longest_sides[rows] > limit) & (whole | (too_long == "drop"))
        rows, lengths = self._drop(rows, lengths, unfit, LONG_RULE, RowCode.CUT)
        if whole.any():
            self.examples, self.used = Examples(tokens, rows, np.zeros_like(rows), lengths), len(rows)
            return
        if too_long == "split" and (lengths > limit).any() and _is_plain(converted):
            self.examples = self._split_rows(rows, limit, rates)
            self.used = len(rows)
            return
        beyond = tokens.first_trained[rows] >= limit
        rows, lengths = self._drop(rows, lengths, beyond, CUT_RULE, RowCode.NOTHING_TO_LEARN)
        long = lengths > limit
        answers = long & (tokens.trained_end[rows] > limit)
        self.cut, self.answers_cut = int(long.sum()), int(answers.sum())
        self._note(rows[answers], RowCode.ANSWER_CUT)
        self._note(rows[long & ~answers], RowCode.CUT)
        self.examples = Examples(tokens, rows, np.zeros_like(rows), np.minimum(lengths, limit))
        self.used = len(rows)

    def _split_rows(self, rows: np.ndarray, limit: int, rates: Callable[[], np.ndarray] | None) -> Examples:
        known = np.zeros((0, 3), dtype=np.uint8) if rates is None else rates()
        lacking = max(0, int(self._tokens.ids.max()) + 1 - len(known))  # ids that no word is known of
        known = np.pad(known, ((0, lacking), (0, 0)))
        chosen, starts, stops = split_rows(self._tokens.ids, self._tokens.edges, rows, known, limit)
        whole = stops - starts == self._tokens.full_lengths[chosen]
        examples = Examples(self._tokens, chosen, starts, stops)
        kept = whole | (stops - starts > 1)  # one token alone teaches nothing,
        some = self._tokens.trained_counts[chosen] < self._tokens.full_lengths[chosen] - 1
        for i in np.flatnonzero(kept & some & ~whole).tolist():  # nor does a piece whose labels are all -100
            kept[i] = examples.make(i).trained.any()
        return examples.pick(np.flatnonzero(kept))

    def _drop(
        self, rows: np.ndarray, lengths: np.ndarray, out: np.ndarray, rule: str, code: RowCode
    ) -> tuple[np.ndarray, np.ndarray]:
        if out.any():
            self.dropped[rule] += int(out.sum())
            if code:
                self._note(rows[out], code)
        return rows[~out], lengths[~out]

    def _note(self, rows: np.ndarray, code: RowCode) -> None:
        for row in np.sort(rows)[:KEPT].tolist():
            place = self._converted.place(int(self._tokens.rows[row]), self._split)
            values = {"tokens": int(self._tokens.full_lengths[row]), "limit": self._limit}
            self.problems.add(RowProblem(code=code, message=text(f"data.row.{code}", **values), **place))
        self.problems.counts[code] += max(0, len(rows) - KEPT)


def _is_plain(converted: Converted) -> bool:
    """Return whether rows are texts, which may be parted anywhere."""
    chosen = converted.understanding.format
    return chosen is not None and chosen.name in ("text", "pretokenized")
