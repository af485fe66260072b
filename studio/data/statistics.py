"""What a data set is like, counted over all its rows: sizes, repeats, labels, turns, scripts, secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from studio.core.i18n import Text, text
from studio.data.conversation import Conversation
from studio.data.duplicates import Overlap, Repeats, find_overlap, find_repeats, near_refusal
from studio.data.lengths import AtLimit, Histogram, Lengths, LengthSummary, Packing, make_histogram, summarize
from studio.data.row_stats import DESIRABLE, UNDESIRABLE, RowTraits, TraitCollector
from studio.data.secrets import SECRET_BITS, SECRETS
from studio.data.unicode_scripts import SCRIPTS

Rows = Callable[[], Iterable[tuple[int, Conversation]]]
"""Yields (row from 0, Conversation) of all rows in order; may be called several times."""
EXAMPLES = 20
"""So many rows or pairs are named for each kind of finding."""
MOST_TURNS = 20
"""Rows with more turns are counted under this number."""
FEWEST, MOST = 1.0, 4 / 3
"""Between these should lie the good examples times their weight over the bad ones times theirs: Ethayarajh et al.,
"KTO: Model Alignment as Prospect Theoretic Optimization", 2024 (arXiv 2402.01306)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Good and bad examples, and weights under which neither kind drowns the other."""

    desirable: int
    undesirable: int
    desirable_weight: float | None
    """None, like the other, where one kind is missing: no weight helps."""
    undesirable_weight: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFinding:
    """One kind of secret: how many rows hold it, and some of them. What it says is never repeated."""

    name: str
    is_key: bool
    rows: int
    examples: tuple[int, ...]

    @property
    def title(self) -> Text:
        """What it is."""
        return text(f"data.secret.{self.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """All that is counted; rows are numbered from 0 here, and by their lines in `to_dict`."""

    rows: int
    empty: int
    """Rows in which nothing that is learned is more than white space."""
    characters: LengthSummary
    answer_characters: LengthSummary
    repeats: Repeats
    overlap: Overlap | None
    """None where there are no rows for evaluation."""
    labels: Labels | None
    """None where no row has one."""
    turns: Mapping[int, int]
    """Rows with so many messages beside system prompts; the last key stands for all above, too."""
    scripts: Mapping[str, float]
    """Share of all letters, the greatest first."""
    findings: tuple[DataFinding, ...]
    histogram: Histogram
    """Of tokens where `tokens` is given, else of characters."""
    tokens: LengthSummary | None = None
    answer_tokens: LengthSummary | None = None
    trained_share: float | None = None
    at_limit: AtLimit | None = None
    packing: Packing | None = None
    padding: float | None = None
    """Share of padding without packing, as Lengths.pad_at."""
    lines: Sequence[int] | None = field(default=None, repr=False)
    """Line of each row, for `to_dict`; None: rows from 1."""

    def to_dict(self) -> dict[str, Any]:
        """Return the `stats` of the `data` command: plain values, Texts where a person reads."""
        repeats = self.repeats
        found: dict[str, Any] = {
            "rows": self.rows,
            "unit": "characters" if self.tokens is None else "tokens",
            "characters": {**_show(self.characters), "answers": _show(self.answer_characters)},
            "histogram": _show(self.histogram),
            "empty": self.empty,
            "exact_duplicates": len(repeats.exact),
            "near_duplicates": None if repeats.near is None else len(repeats.near),
            "duplicate_examples": self._name_pairs(repeats.exact),
            "near_duplicate_examples": self._name_pairs(() if repeats.near is None else repeats.near),
            "near_duplicate_clusters": repeats.clusters,
            "turns": {str(turns): rows for turns, rows in self.turns.items()},
            "scripts": dict(self.scripts),
            "secrets": [
                {
                    "kind": one.name,
                    "key": one.is_key,
                    "rows": one.rows,
                    "lines": [self._line(row) for row in one.examples],
                    "message": one.title,
                }
                for one in self.findings
            ],
        }
        if repeats.reason is not None:
            found["near_duplicates_reason"] = repeats.reason
        if self.tokens is not None:
            found["tokens"] = {**_show(self.tokens), "answers": _show(self.answer_tokens)}
            found["tokens"]["trained_share"] = self.trained_share
            found["at_limit"] = {**_show(self.at_limit), "padding": self.padding}
            found["at_limit"]["packed_rows"] = self.packing.rows
            found["at_limit"]["packing_efficiency"] = self.packing.efficiency
        if self.overlap is not None:
            near = self.overlap.near
            found["overlap"] = {
                "exact": len(self.overlap.exact),
                "near": None if near is None else len(near),
                "lines": [self._line(row) for row, _ in self.overlap.exact[:EXAMPLES]],
                "near_lines": [self._line(row) for row, _ in (() if near is None else near[:EXAMPLES])],
            }
        if self.labels is not None:
            found["labels"] = _show(self.labels)
        return found

    def _line(self, row: int) -> int:
        return int(row) + 1 if self.lines is None else int(self.lines[row])

    def _name_pairs(self, pairs: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[self._line(first), self._line(second)] for first, second in pairs[:EXAMPLES]]


def measure(
    read: Rows,
    *,
    traits: RowTraits | None = None,
    read_evaluation: Rows | None = None,
    evaluation: RowTraits | None = None,
    lengths: Lengths | None = None,
    max_length: int = 1024,
    micro_batch: int = 2,
    lines: Sequence[int] | None = None,
    near: bool | None = None,
    cache: Path | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> Statistics:
    """Return the Statistics of all rows.

    traits, evaluation: of the rows and of those for evaluation, collected from `read` and `read_evaluation` where
    they are not given. lengths: with a model. near: whether near duplicates are looked for (10 s for 250,000 rows);
    None: up to repeats.NEAR_ROWS rows; cache: folder in which they are kept for the next
    time. `on_rows` hears how many rows that has gone through, and may raise to stop.
    """
    traits = collect(read) if traits is None else traits
    reason = near_refusal(traits) if near is None else text("data.near.off") if not near else None
    repeats = find_repeats(
        traits, read if reason is None else None, reason=reason, cache=cache, on_rows=on_rows
    )
    overlap = None
    if read_evaluation is not None:
        evaluation = collect(read_evaluation) if evaluation is None else evaluation
        if near is None:
            reason = near_refusal(traits, evaluation)
        rows = (read, read_evaluation) if reason is None else None
        overlap = find_overlap(traits, evaluation, rows, cache=cache, on_rows=on_rows)
    measured = {} if lengths is None else _measure_lengths(lengths, max_length, micro_batch)
    return Statistics(
        rows=len(traits),
        empty=int((traits.answer_characters == 0).sum()),
        characters=summarize(traits.characters),
        answer_characters=summarize(traits.answer_characters),
        histogram=make_histogram(traits.characters if lengths is None else lengths.full),
        repeats=repeats,
        overlap=overlap,
        labels=balance_labels(
            int(np.count_nonzero(traits.flags & DESIRABLE)), int(np.count_nonzero(traits.flags & UNDESIRABLE))
        ),
        turns=_count_turns(traits.turns),
        scripts=_share_scripts(traits.letters),
        findings=tuple(_list_findings(traits.flags)),
        lines=lines,
        **measured,
    )


def collect(read: Rows) -> RowTraits:
    """Return the Traits of all rows that `read` yields."""
    collector = TraitCollector()
    for _, conversation in read():
        collector.add(conversation)
    return collector.traits()


def balance_labels(desirable: int, undesirable: int) -> Labels | None:
    """Return the Labels with weights that put the ratio between FEWEST and MOST; None without labels."""
    if not desirable and not undesirable:
        return None
    if not desirable or not undesirable:
        good = bad = None
    else:
        ratio, middle = desirable / undesirable, (FEWEST + MOST) / 2
        # The middle of the range, so that rounding to two places cannot leave it.
        good = 1.0 if ratio >= FEWEST else round(middle / ratio, 2)
        bad = 1.0 if ratio <= MOST else round(ratio / middle, 2)
    return Labels(desirable=desirable, undesirable=undesirable, desirable_weight=good, undesirable_weight=bad)


def _measure_lengths(lengths: Lengths, limit: int, micro_batch: int) -> dict[str, Any]:
    return {
        "tokens": summarize(lengths.full),
        "answer_tokens": summarize(lengths.answers),
        "trained_share": lengths.trained_share,
        "at_limit": lengths.at(limit),
        "packing": lengths.pack_at(limit),
        "padding": lengths.pad_at(limit, micro_batch),
    }


def _count_turns(turns: np.ndarray) -> dict[int, int]:
    counts = np.bincount(np.minimum(turns, MOST_TURNS))
    return {number: int(rows) for number, rows in enumerate(counts) if rows}


def _share_scripts(letters: np.ndarray) -> dict[str, float]:
    total = max(int(letters.sum()), 1)
    order = np.argsort(-letters, kind="stable")
    return {SCRIPTS[i]: round(float(letters[i] / total), 4) for i in order if letters[i]}


def _list_findings(flags: np.ndarray) -> Iterator[DataFinding]:
    for secret in SECRETS:
        rows = np.flatnonzero(flags & np.uint32(SECRET_BITS[secret.name]))
        if len(rows):
            yield DataFinding(
                name=secret.name,
                is_key=secret.is_key,
                rows=len(rows),
                examples=tuple(rows[:EXAMPLES].tolist()),
            )


def _show(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
