"""Which examples make up each optimizer step: those of the data, in an order that is drawn once an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from studio.data.sequence_packing import Example
from studio.engine.batches import StepOrder


class Windows(Protocol):
    """Gives the examples of each step; drawing a step again, as a replay does, gives the same."""

    def draw(self, step: int) -> list[Example]:
        """Return the examples of `step`, counted from 0, the longest first: they pad least, and memory that is short
        shows at once.
        """

    def draw_ahead(self, step: int) -> None:
        """Hear that `step` comes next, while the device computes the one before it."""

    def metrics(self) -> Mapping[str, float]:
        """Return what is known of the examples that were drawn last, by Metric.name."""

    def state_data(self) -> dict[str, Any]:
        """Return what a checkpoint holds of them: tensors and plain values."""

    def load_state_data(self, data: Mapping[str, Any]) -> None:
        """Go on from state_data()."""


class DataWindows:
    """The examples of the data; those asked for last are kept, so that the next ones can be drawn ahead."""

    def __init__(self, examples: Callable[[], Sequence[Example]], order: StepOrder) -> None:
        """`examples`: gives them as they are by now: what an objective compares with is added after the start."""
        self._examples, self._order = examples, order
        self._drawn: tuple[int, list[Example]] = (-1, [])

    def draw(self, step: int) -> list[Example]:
        """See Windows."""
        if self._drawn[0] != step:
            examples = self._examples()
            self._drawn = step, sort_window([examples[i] for i in self._order.indices(step)])
        return self._drawn[1]

    def draw_ahead(self, step: int) -> None:
        """See Windows."""
        self.draw(step)

    def metrics(self) -> Mapping[str, float]:
        """See Windows."""
        return {}

    def state_data(self) -> dict[str, Any]:
        """See Windows: the order is drawn from seed and epoch."""
        return {}

    def load_state_data(self, data: Mapping[str, Any]) -> None:
        """See Windows."""


def sort_window(examples: Sequence[Example]) -> list[Example]:
    """Return the examples of a step in the order of Windows.draw()."""
    return sorted(examples, key=lambda example: len(example.token_ids), reverse=True)
