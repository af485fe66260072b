"""Waits for an answer no longer than told, where asking cannot be cut short: a driver, a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def limit(ask: Callable[[], T], timeout_s: float) -> T | None:
    """Return `ask()`, or None when it takes longer: its thread is then left behind and holds up no exit."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(ask()), name="asking", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else None
