"""The numbers of a run in typed columns: they grow at their end, and a chart gets those that it lacks."""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from studio.core.events import Metric, name_metric
from studio.core.i18n import Text

COLUMNS = {
    "step": ("step", "seconds", "loss", "lr", "grad_norm", "tokens_per_s", "vram_bytes"),
    "eval": ("step", "seconds", "loss"),
    "metric": ("step", "seconds", "number", "value", "held_out"),
    "gpu": ("seconds", "utilisation", "memory_bytes", "temperature_c", "power_w"),
}
"""Columns by kind; `seconds` counts from the run's first event, `utilisation` is 0..1, NaN is a gap.

`metric`: `value` of the metric at place `number` of the run's; `held_out` 1 where it is of the validation rows.
"""
PAYLOAD_ROWS = 24_000
"""A replay of more rows than that is thinned: a chart is some 300 pixels wide and shows the extremes of each."""
THINNED_BY = {"step": "loss", "metric": "value", "gpu": "utilisation"}
CURVE_OF = ("number", "held_out")
"""What tells the curves of the metrics apart."""


class Points:
    """An unchanging look at tables that only grow: adding returns a new look at the same columns.

    Two looks may share their columns, as each knows how many rows of them are its own; adding to an older look copies.
    """

    __slots__ = ("_tables", "counts")

    def __init__(
        self, tables: Mapping[str, tuple[array, ...]] | None = None, counts: Mapping[str, int] | None = None
    ) -> None:
        self._tables = tables or {kind: tuple(array("d") for _ in names) for kind, names in COLUMNS.items()}
        self.counts = dict(counts or dict.fromkeys(COLUMNS, 0))

    def add(self, kind: str, *values: float) -> Points:
        """Return the points with one row more; a value that is not finite becomes a gap."""
        tables, count = self._tables, self.counts[kind]
        if count != len(tables[kind][0]):  # a look before others were added
            tables = dict(tables) | {kind: tuple(column[:count] for column in tables[kind])}
        for column, value in zip(tables[kind], values, strict=True):
            column.append(value if math.isfinite(value) else math.nan)
        return Points(tables, self.counts | {kind: count + 1})

    def cut(self, last_step: int) -> Points:
        """Return the points without steps and evaluations above `last_step`; self when there are none."""
        tables, counts = dict(self._tables), dict(self.counts)
        for kind in ("step", "eval", "metric"):
            kept = bisect_right(tables[kind][0], last_step, 0, counts[kind])
            if kept != counts[kind]:
                tables[kind] = tuple(column[:kept] for column in tables[kind])
                counts[kind] = kept
        return self if counts == self.counts else Points(tables, counts)

    def column(self, kind: str, name: str, since: int = 0) -> array:
        """Return a copy of a column from row `since` on; a negative `since` counts from the end."""
        count = self.counts[kind]
        first = max(0, count + since) if since < 0 else since
        return self._tables[kind][COLUMNS[kind].index(name)][first:count]

    def rows(self, kind: str) -> Iterator[tuple[float | None, ...]]:
        """Yield the rows of a kind, gaps as None."""
        return zip(*(_gaps(column[: self.counts[kind]]) for column in self._tables[kind]), strict=True)


def _gaps(column: array) -> list[float | None]:
    """Gaps as None; whole numbers without their `.0`."""
    return [None if value != value else int(value) if value % 1 == 0 else value for value in column]


def _pack(columns: Sequence[array]) -> str:
    """Columns one behind the other as 32-bit floats, little-endian, in base64.

    A string because Gradio's page wraps every number of a list in an object of its own: 20,000 rows took it 160 MB and
    some seconds. 32 bits tell steps up to 16 million apart.
    """
    numbers = array("f", (value for column in columns for value in column))
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode("ascii")


def payload(
    run: str,
    generation: int,
    points: Points,
    shown: Mapping[str, Any],
    *,
    card: bool = True,
    metrics: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any] | None:
    """Return the columns that a chart lacks, each kind's packed in one string; None when it lacks nothing.

    `metrics`: what label_metrics() returns; each is a chart of its own. `card`: whether the run is on a graphics card,
    so that a chart shows the card's figures or leaves them out. `shown` is what the chart has:
    {"run", "generation", "cursor": {kind: rows}, "card"}. Rows go on from `since` when the chart shows the same run and
    generation (how often rows were taken back), else all are sent with `since` 0.
    """
    same = shown.get("run") == run and shown.get("generation") == generation
    had = shown.get("cursor") if same else None
    since = {kind: min(had.get(kind, 0), points.counts[kind]) if had else 0 for kind in COLUMNS}
    if had and since == points.counts and shown.get("card", card) == card:
        return None
    message = {
        "run": run, "generation": generation, "since": since, "until": dict(points.counts), "card": card,
        "metrics": [*metrics],
    }  # fmt: skip
    for kind, names in COLUMNS.items():
        columns = [points.column(kind, name, since[kind]) for name in names]
        if len(columns[0]) > PAYLOAD_ROWS:
            chosen = _thin(kind, columns) if kind in THINNED_BY else None
            columns = [array("d", [column[i] for i in chosen]) for column in columns] if chosen else columns
        message[kind] = _pack(columns)
    return message


def label_metrics(metrics: Sequence[Metric], say: Callable[[Text], str]) -> list[dict[str, Any]]:
    """Return of each metric of a run what tabs/training/chart.js takes: name, words, unit, whether it comes first."""
    return [
        {"name": one.name, "label": say(name_metric(one.name)), "unit": one.unit, "first": one.first}
        for one in metrics
    ]


def _thin(kind: str, columns: Sequence[array]) -> list[int]:
    """Return the places of the rows that are sent, of all curves of a kind PAYLOAD_ROWS together."""
    names = COLUMNS[kind]
    curves: dict[tuple[float, ...], list[int]] = {}
    parting = [columns[names.index(name)] for name in CURVE_OF if name in names]
    for place in range(len(columns[0])):
        curves.setdefault(tuple(column[place] for column in parting), []).append(place)
    values, rows = columns[names.index(THINNED_BY[kind])], PAYLOAD_ROWS // len(curves)
    chosen = [
        places[i]
        for places in curves.values()
        for i in (
            _extremes([values[place] for place in places], rows) if len(places) > rows else range(len(places))
        )
    ]
    return sorted(chosen)


def _extremes(column: Sequence[float], rows: int) -> list[int]:
    """Return `rows` places at most: of the least and greatest values of equal parts, with the first and the last."""
    parts = rows // 2 - 1
    edges = [len(column) * i // parts for i in range(parts + 1)]
    places = {0, len(column) - 1}
    for first, end in pairwise(edges):
        part = range(first, end)
        known = [i for i in part if column[i] == column[i]] or list(part)[:1]
        places |= {min(known, key=column.__getitem__), max(known, key=column.__getitem__)}
    return sorted(places)
