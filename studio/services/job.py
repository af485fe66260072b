"""Work that goes on behind a screen: how far it is, what it made, and a way to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from studio.core.i18n import Text
from studio.services.worker import Worker


class Job:
    """One piece of work on a Worker; screens may leave it and come back, any thread may look and stop."""

    def __init__(self) -> None:
        self.phase: Text | None = None
        """What it does now; None while it waits for its turn."""
        self.done, self.total = 0, 0
        self._stop = threading.Event()
        self._future: Future | None = None

    def begin(self, worker: Worker, work: Callable[[Job], Any], name: str = "") -> Job:
        """Queue `work(self)` and return this job; `name` tells those who wait behind it what it is."""
        self._future = worker.submit(lambda: work(self), name)
        return self

    def tell(self, phase: Text, done: int = 0, total: int = 0) -> None:
        """Say how far it is; `total` 0 where that is not known."""
        self.phase, self.done, self.total = phase, done, total

    def stop(self) -> None:
        """Ask for the end; returns at once."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether the end was asked for."""
        return self._stop.is_set()

    @property
    def ended(self) -> bool:
        """Whether there is a result or an error."""
        return self._future is not None and self._future.done()

    @property
    def error(self) -> BaseException | None:
        """What went wrong, once it ended."""
        return self._future.exception() if self.ended else None

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the end and return what the work returned. Raises what it raised; TimeoutError."""
        return self._future.result(timeout_s)
