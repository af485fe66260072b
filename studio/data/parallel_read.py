"""Stretches of a large file in several processes, their results in order."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from studio.data.convert_part import DataPart, PartResult, read_part
from studio.data.formats import FORMATS
from studio.data.understanding import Understanding

__all__ = ["BrokenProcessPool", "leave_with_parent", "read_alone", "read_in_pool"]


def read_in_pool(
    parts: Sequence[DataPart],
    understanding: Understanding,
    workers: int,
    tell: Callable[[int], None],
    stop: Callable[[], None],
    poll_s: float,
) -> Iterator[PartResult]:
    """Yield the result of each part in order.

    Raises what `stop` raises, at most one part later, and BrokenProcessPool when a process dies or cannot start.
    """
    name = understanding.format.name if understanding.format else ""
    known = replace(understanding, format=None, ranked=())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=leave_with_parent)
    try:
        futures = [pool.submit(read_alone, part, name, known) for part in parts]
        for future in futures:
            while not future.done():
                wait([future], timeout=poll_s, return_when=FIRST_COMPLETED)
                stop()
                tell(0)
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def read_alone(part: DataPart, format_name: str, known: Understanding) -> PartResult:
    """Read a Part in a process of its own; formats hold functions, which do not travel, so that their name does."""
    chosen = next((one for one in FORMATS if one.name == format_name), None)
    return read_part(part, replace(known, format=chosen))


def leave_with_parent() -> None:
    """End this process when the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_for, args=(parent,), daemon=True).start()


def _wait_for(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
