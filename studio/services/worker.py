"""A thread that does one piece of work after another (the engine's, light work), and jobs that a screen watches."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from studio.core.i18n import Text

Jobs = queue.SimpleQueue[tuple[Future, Callable[[], Any], str] | None]


class Worker:
    """One daemon thread, started with its first job. A job's exception lands in its Future, never in the thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: Jobs = queue.SimpleQueue()
        self._now, self._busy = [""], [False]
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        # A command ends with its process and closes no desk: the thread knows the jobs alone, and goes with its owner.
        weakref.finalize(self, self._jobs.put, None).atexit = False

    @property
    def doing(self) -> str:
        """The name of the job that is being done; "" for none, and for one without a name."""
        return self._now[0]

    @property
    def busy(self) -> bool:
        """Whether a job is being done, or waits."""
        return self._busy[0] or not self._jobs.empty()

    @property
    def waits(self) -> bool:
        """Whether a job waits for the one that is being done."""
        return not self._jobs.empty()

    def submit(self, job: Callable[[], Any], name: str = "") -> Future:
        """Queue `job` and return the Future of its result; `name` tells those who wait behind it what it is.

        Raises RuntimeError after close().
        """
        future: Future = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self.name} is closed")  # its Future would never resolve
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_work, args=(self._jobs, self._now, self._busy), name=self.name, daemon=True
                )
                self._thread.start()
            self._jobs.put((future, job, name))
        return future

    def call(self, job: Callable[[], Any]) -> Any:
        """Do `job` on this thread and return its result; waits. Raises what the job raises."""
        return self.submit(job).result()

    def close(self, timeout_s: float) -> bool:
        """Let the thread end after its queued jobs; returns whether it did within `timeout_s`."""
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        if self._thread:
            self._thread.join(timeout_s)
        return not (self._thread and self._thread.is_alive())


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


def _work(jobs: Jobs, now: list[str], busy: list[bool]) -> None:
    while (entry := jobs.get()) is not None:
        busy[0] = True
        future, job, now[0] = entry
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the Future carries it to whoever asked
                future.set_exception(error)
        now[0], busy[0] = "", False
        del entry, future, job  # what was done holds nobody back from being let go, nor a model in memory
