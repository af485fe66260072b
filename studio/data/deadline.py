"""Ends a chat template that does not come to an end on some row; in our own process, at thousands of rows a second.

    with Deadline() as deadline:
        for row, conversation in rows:
            deadline.begin(row)
            ... render ...
            deadline.rest()

A thread looks on. It interrupts the one that renders between two steps of Python, wherever that is in the template, so
that what ends in time pays for one attribute a row. What is one step of C alone is bounded by the sandbox
(studio/data/template.py).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import TracebackType

from studio.core.errors import StudioError
from studio.core.i18n import text

ROW_S = 10.0
LOOK_S = 0.1


class Overrun(BaseException):
    """Raised in the rendering thread; no template catches it."""


class Deadline:
    """Raises StudioError, which names the row, in the thread that entered it when one row takes `row_s`."""

    def __init__(self, row_s: float = ROW_S, *, number: Callable[[int], int] = lambda row: row) -> None:
        """`number` turns what begin() was given into the row's number in its file, from 1."""
        self.row_s, self._number_row = row_s, number
        self._row: int | None = None
        self._begun = 0
        self._late_row: int | None = None
        self._closed = threading.Event()
        self._turn = threading.Lock()

    def begin(self, row: int) -> None:
        """Count from now on for `row`."""
        self._begun += 1
        self._row = row

    def rest(self) -> None:
        """Count for nothing until the next row begins."""
        self._row = None

    def __enter__(self) -> Deadline:
        self._renders = threading.get_ident()
        self._looks = threading.Thread(target=self._look_on, name="deadline", daemon=True)
        self._looks.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._turn:
                self._closed.set()
            if self._late_row is not None and kind is not Overrun:  # the row ended in this very moment
                _interrupt(self._renders, None)
        except Overrun:
            pass
        self._looks.join()
        if self._late_row is not None and kind in (None, Overrun):
            raise self._refuse(self._number_row(self._late_row)) from None

    def _look_on(self) -> None:
        # Looks are counted, not seconds: a machine that slept meanwhile has not kept a row waiting.
        seen, looks = 0, 0
        while not self._closed.wait(LOOK_S):
            if self._row is None or self._begun != seen:
                seen, looks = self._begun, 0
                continue
            looks += 1
            if looks * LOOK_S < self.row_s:
                continue
            with self._turn:
                if not self._closed.is_set() and self._row is not None and self._begun == seen:
                    self._late_row = self._row
                    _interrupt(self._renders, Overrun)
                    return

    def _refuse(self, row: int) -> StudioError:
        what = text("data.template.row", row=row) if row else text("data.template.endless")
        why = text("data.template.row.why", seconds=round(self.row_s))
        return StudioError(what, why, text("data.template.endless.fix"))


def _interrupt(thread: int, kind: type[BaseException] | None) -> None:
    """Let `thread` raise `kind` at its next step; None takes back what it has not raised yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(kind) if kind else ctypes.c_void_p(None)
    )
