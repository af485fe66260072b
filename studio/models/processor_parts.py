"""Work on processors cut into parts that do not wait for each other: a thread computes one, and PyTorch takes no more.

OpenMP's threads meet after every operation, in a busy loop. Over a quarter of a million numbers that is every 0.1 ms,
and where another program has one of the cores, all wait for it: packing Q4_K with two threads on two cores that six
programs shared took 23.2 s of the processors where one thread took 0.5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T, U = TypeVar("T"), TypeVar("U")
MOST_THREADS = 16
PART_BYTES = 2**25
"""At most so many parts at once, and what each takes: 32 MiB of numbers that are opened, 24 MB of packing Q4_K."""


def count_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_threads() -> int:
    """Return how many parts are computed at once."""
    return min(count_cores(), MOST_THREADS)


def compute_parts(work: Callable[[T], U], parts: Iterable[T]) -> list[U]:
    """Return work(part) of each part, as many at once as there are cores, up to 16. Raises what the first that fails
    raises.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for the pool's, too, which ask when they first compute
    try:
        with ThreadPoolExecutor(count_threads()) as pool:
            return list(pool.map(work, parts))
    finally:
        torch.set_num_threads(threads)
