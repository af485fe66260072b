"""When the window's process is renewed: one that has trained or talked is heavy, and nobody may notice that it goes.

A run leaves torch, transformers and peft behind: 644 MB after the demo, of which giving back what is free saves 90, and
a new process 510. It starts in 4 s, on the same port, and open pages come back to where they were.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from studio.core.heartbeat import PARENT_VARIABLE

if TYPE_CHECKING:
    from studio.services.desk import Desk

LIGHT_BYTES = 350 * 2**20
"""A process that holds no more stays: one that has only served pages holds 130 MB."""
REST_S = 40.0
"""So long nobody has touched a page or asked anything, and nothing was done."""
TALK_REST_S = 600.0
"""The same where a model is loaded: loading it again costs whoever comes back to a chat some seconds."""
FIRST_S = 60.0
"""A process younger than that stays: its end would count as one of a row (SETTLED_S of the supervisor)."""


def count_resident_bytes() -> int:
    """Return the memory that this process holds just now."""
    import psutil

    return psutil.Process().memory_info().rss


class IdleRestart:
    """Watches one desk; `is_due` is asked now and then, from one thread."""

    def __init__(
        self,
        desk: Desk,
        clock: Callable[[], float] = time.monotonic,
        weigh: Callable[[], int] = count_resident_bytes,
    ) -> None:
        self.announced = False
        """Whether open pages are to come back by themselves: the process is about to end."""
        self._desk, self._clock, self._weigh = desk, clock, weigh
        self._born_s = self._used_s = clock()

    def note_presence(self, rest_s: float = 0.0) -> None:
        """Somebody asked something, or touched a page `rest_s` ago."""
        self._used_s = max(self._used_s, self._clock() - max(0.0, rest_s))

    def is_due(self) -> bool:
        """Return whether the process may make room for a new one now, and should."""
        if PARENT_VARIABLE not in os.environ:  # nobody would start the new one
            return False
        desk, now_s = self._desk, self._clock()
        if desk.working() or desk.is_busy() or desk.datasets.view().working:
            self._used_s = now_s
            return False
        rest_s = TALK_REST_S if desk.chat.loaded() else REST_S
        if now_s <= max(self._born_s + FIRST_S, self._used_s + rest_s):
            return False
        # Guests' pages or an address may be open, and the answers of a test are in this process alone.
        alone = desk.chat.test is None and not desk.chat.addressed and not desk.sharing.view().on
        return self._weigh() > LIGHT_BYTES and alone
