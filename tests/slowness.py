"""How much slower than the machine that limits of time were set on this one is just now: machines are shared."""

from __future__ import annotations

import statistics
import time
import zlib

WORK = b"".join(b"%d " % number for number in range(350_000))
ALONE_S = 0.066
"""What compressing WORK takes on the two quiet cores (AMD EPYC, zlib 1.2.13) where the limits hold as they stand."""
TIMES = 7


def slowness() -> float:
    """Return how many times longer the same work takes at this moment; never less than 1.

    What a test measured in seconds is divided by it: a machine whose processors are half taken away is no regression,
    and a fast one may not hide one.
    """
    taken_s = []
    for _ in range(TIMES):
        begun_s = time.perf_counter()
        zlib.compress(WORK)
        taken_s.append(time.perf_counter() - begun_s)
    return max(1.0, statistics.median(taken_s) / ALONE_S)
