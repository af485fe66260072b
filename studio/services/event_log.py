"""The event log of a run: append-only, numbered, teed to events.jsonl; reading never consumes."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

from studio.core.codec import event_from_json, to_json
from studio.core.events import RunEvent
from studio.core.json_file import parse_json
from studio.engine.run_folder import LATEST_S, find_run

KEPT_LOGS = 8
"""So many logs stay in memory that nobody works with: 36,000 steps take 12 MB."""

LONGEST_BYTES = 2**20
"""Of a line: the longest event holds a diagnosis of some 10 KB."""


class EventLog:
    """All events of one run in order; `append` and `since` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        """Read what `path` holds; a torn last line of a killed writer is not an event."""
        self.path = path
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._events: list[RunEvent] = []
        self._read_bytes = 0
        self._last_seq = 0
        self.refresh()

    def append(self, event: RunEvent) -> RunEvent:
        """Number, time and keep `event`, and write it out; returns the numbered event.

        Raises OSError (disk full); readers of this log have the event all the same.
        """
        with self._lock:
            numbered = dataclasses.replace(event, seq=self._last_seq + 1, time_s=round(time.time(), 3))
            line = json.dumps(to_json(numbered), ensure_ascii=False, allow_nan=False) + "\n"
            data = line.encode("utf-8")
            self._last_seq = numbered.seq
            self._events.append(numbered)
            self._arrived.notify_all()
            with self.path.open("r+b" if self.path.exists() else "wb") as file:
                # Write after the last whole line: what a killed writer left behind it is cut off.
                file.seek(self._read_bytes)
                file.truncate()
                file.write(data)
            self._read_bytes += len(data)
            return numbered

    def since(self, cursor: int) -> tuple[RunEvent, ...]:
        """Return the events with `seq` above `cursor`, oldest first."""
        with self._lock:
            return self._since(cursor)

    def wait(self, cursor: int, timeout_s: float) -> tuple[RunEvent, ...]:
        """Return since(cursor), waiting up to `timeout_s` for the first."""
        with self._lock:
            self._arrived.wait_for(lambda: self._last_seq > cursor, timeout_s)
            return self._since(cursor)

    def refresh(self) -> None:
        """Take in the whole lines that another process has added to the file."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    file.seek(self._read_bytes)
                    for line, size_bytes in _read_lines(file):
                        self._read_bytes += size_bytes
                        event = _parse(line)
                        if event is not None and event.seq > self._last_seq:
                            self._events.append(event)
                            self._last_seq = event.seq
            except FileNotFoundError:
                return

    def _since(self, cursor: int) -> tuple[RunEvent, ...]:
        # seq counts from 1 without gaps unless lines of another version were passed over, so search from the end.
        first = len(self._events)
        while first and self._events[first - 1].seq > cursor:
            first -= 1
        return tuple(self._events[first:])


class EventLogs:
    """The logs of a workspace's runs: those in somebody's hands, as of the run that is on, and the last asked for.

    There is never a second one of a run: a reader would not see what the other one's writer adds.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._lock = threading.Lock()
        self._logs: WeakValueDictionary[str, EventLog] = WeakValueDictionary()
        self._last: dict[str, EventLog] = {}
        """The last asked for, the newest at the end."""

    def open(self, run: str) -> EventLog:
        """Return the log of `run`. Raises StudioError when there is no such run."""
        with self._lock:
            log = self._logs.get(run)
            if log is None:
                self._logs[run] = log = EventLog(find_run(self.runs, run).events)
            self._last.pop(run, None)
            self._last[run] = log
            if len(self._last) > KEPT_LOGS:
                del self._last[next(iter(self._last))]
            return log

    def drop(self, run: str) -> None:
        """Forget the log of a run that is gone."""
        with self._lock:
            self._logs.pop(run, None)
            self._last.pop(run, None)


def _read_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each whole line with its length; of one beyond LONGEST_BYTES, which no run writes, nothing but that."""
    while line := file.readline(LONGEST_BYTES):
        size_bytes, more = len(line), line
        while not more.endswith(b"\n"):
            more = file.readline(LONGEST_BYTES)
            if not more:
                return  # torn, or still being written
            line, size_bytes = b"", size_bytes + len(more)
        yield line, size_bytes


def _parse(line: bytes) -> RunEvent | None:
    """Return the event of a line; None for a line that a crash has damaged or another version wrote."""
    try:
        data = parse_json(line)
        event = event_from_json(data) if isinstance(data, dict) else None
    except (ValueError, RecursionError):
        return None
    if event is not None and not 0 <= event.time_s <= LATEST_S:
        return dataclasses.replace(event, time_s=0.0)  # no calendar holds it
    return event
