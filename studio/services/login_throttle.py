"""Slows down whoever guesses pass phrases: each wrong one doubles the wait, many of them lock an address out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

FREE_TRIES = 2
"""So many slips of a finger cost no wait."""
LONGEST_WAIT_S = 64.0
LONGEST_SHARED_WAIT_S = 8.0
TRIES = 10
"""Wrong phrases of one address in a row before it is locked out."""
TRIES_OF_ALL = 50
"""Wrong phrases of all addresses together; from then on TRIES_THEN lock one out, for somebody may have many."""
TRIES_THEN = 3
LOCKED_S = 900.0
ADDRESSES = 1024


@dataclass(slots=True)
class Tries:
    """Wrong phrases in a row, and until when the next one is not even looked at."""

    count: int = 0
    until_s: float = 0.0
    last_s: float = 0.0


class Throttle:
    """Counts by address; `clock` gives seconds. What one address does keeps no other one out.

    `shared` is for a link, whose visitors all have the address of its tunnel: it is slowed down and never locked, as
    the lock would be that of the owner too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, shared: bool = False) -> None:
        self.shared = shared
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Tries] = {}
        self._all = Tries()

    def wait_s(self, address: str) -> float:
        """Return how long `address` must wait before its next phrase is looked at; 0.0 when it need not."""
        with self._lock:
            tries = self._known.get(address)
        return max(0.0, tries.until_s - self._clock()) if tries else 0.0

    def note_failure(self, address: str) -> bool:
        """Count a wrong phrase of `address`; return whether it is locked out by this one."""
        with self._lock:
            now_s = self._clock()
            tries = self._known.pop(address, Tries())
            self._known[address] = tries  # the last one that was heard of stands at the end
            while len(self._known) > ADDRESSES:
                self._known.pop(next(iter(self._known)))
            for counted in (tries, self._all):
                counted.count = 1 if now_s - counted.last_s > LOCKED_S else counted.count + 1
                counted.last_s = now_s
            limit = TRIES if self._all.count <= TRIES_OF_ALL else TRIES_THEN
            if tries.count >= limit and not self.shared:
                tries.until_s = now_s + LOCKED_S
                return True
            longest_s = LONGEST_SHARED_WAIT_S if self.shared else LONGEST_WAIT_S
            if tries.count > FREE_TRIES:
                tries.until_s = now_s + min(longest_s, 2.0 ** min(tries.count - FREE_TRIES, 9))
            return False

    def note_success(self, address: str) -> None:
        """Forget the wrong phrases of `address`."""
        with self._lock:
            self._known.pop(address, None)
