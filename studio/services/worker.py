"""A thread that does one job after another: one for the engine, one for light work such as previews."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

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
