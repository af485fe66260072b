"""Waits for an answer no longer than told, where asking cannot be cut short: a driver, a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def limit(ask: Callable[[], T], timeout_s: float) -> T | None:
    """Return `ask()`, or None when it takes longer: its thread is then left behind and holds up no exit.

    Raises what `ask` raises in time.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            answer.set_exception(error)

    threading.Thread(target=work, name="asking", daemon=True).start()
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        if answer.done():  # `ask` itself raised a TimeoutError
            raise
        return None
