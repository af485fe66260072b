"""What one caller may take: requests a second, requests at once, and the pages' sessions that are its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

CALLERS = 4096
SESSIONS_EACH = 64
"""Pages of one browser that are remembered; beyond that the oldest is given up."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Requests a second in the long run, in one burst, and open at the same time."""

    rate: float
    burst: float
    at_once: int


ALLOWANCES = {
    # A page is some 100 files, asked for at once; a page that shows a run asks once a second.
    "owner": Allowance(100.0, 1500.0, 250),
    "viewer": Allowance(20.0, 400.0, 48),
    "stranger": Allowance(5.0, 60.0, 24),
    # Who comes by a link has its tunnel's address: one visitor's flood of login pages is all that another one gets.
    "crowd": Allowance(50.0, 500.0, 100),
    "here": Allowance(50.0, 600.0, 64),
}
"""By role; whoever is not known yet is counted by address: a stranger from outside, or a program at this machine."""


class RateLimits:
    """Counts requests of callers (an address, a browser, a program); `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}
        self._open: dict[str, int] = {}

    def enter(self, caller: str, role: str) -> bool:
        """Count one request of `caller`; return whether it may go on. What entered must `leave`."""
        allowance = ALLOWANCES[role]
        with self._lock:
            now_s = self._clock()
            left, seen_s = self._left.pop(caller, (allowance.burst, now_s))
            left = min(allowance.burst, left + (now_s - seen_s) * allowance.rate)
            allowed = left >= 1.0 and self._open.get(caller, 0) < allowance.at_once
            self._left[caller] = (left - 1.0 if allowed else left, now_s)
            while len(self._left) > CALLERS:
                self._left.pop(next(iter(self._left)))
            if allowed:
                self._open[caller] = self._open.get(caller, 0) + 1
            return allowed

    def leave(self, caller: str) -> None:
        """One request of `caller` is over."""
        with self._lock:
            count = self._open.get(caller, 1) - 1
            if count > 0:
                self._open[caller] = count
            else:
                self._open.pop(caller, None)


class Sessions:
    """Whose a page's session is. Gradio keys events and state by a name that the page chooses: the first owns it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, str] = {}
        self._names: dict[str, dict[str, None]] = {}

    def claim(self, session: str, caller: str) -> bool:
        """Return whether `session` is `caller`'s: it was before, or it was nobody's and is now."""
        with self._lock:
            owner = self._owners.get(session)
            if owner is not None:
                return owner == caller
            names = self._names.setdefault(caller, {})
            self._owners[session] = caller
            names[session] = None
            while len(names) > SESSIONS_EACH:
                oldest = next(iter(names))
                del names[oldest], self._owners[oldest]
            while len(self._names) > CALLERS:
                for name in self._names.pop(next(iter(self._names))):
                    del self._owners[name]
            return True
