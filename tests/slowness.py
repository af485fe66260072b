"""How much slower than the machine that limits of time were set on this one is just now: machines are shared."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable

DATA = b"".join(b"%d " % number for number in range(350_000))
IMPORTS = "import asyncio, email.message, http.server, logging.config, sqlite3, unittest.mock, xml.dom.minidom, zipfile"
COMPUTING_S, STARTING_S = 0.066, 0.092
"""What compressing DATA takes, and a Python that loads IMPORTS, on the two quiet cores (AMD EPYC, Python 3.11) where
the limits hold as they stand."""
TIMES = 7


def slowness() -> float:
    """Return how many times longer the same work takes at this moment; never less than 1.

    What a test measured in seconds is divided by it: a machine whose processors are half taken away is no regression,
    and a fast one may not hide one. Two kinds of work, for a neighbour may take the processors or the memory away.
    """
    start = [sys.executable, "-I", "-c", IMPORTS]
    computing_s = _time(lambda: zlib.compress(DATA))
    starting_s = _time(lambda: subprocess.run(start, check=True))
    return max(1.0, computing_s / COMPUTING_S, starting_s / STARTING_S)


def processor_slowness() -> float:
    """Return how many times more of a processor's time the same work takes at this moment; never less than 1.

    For what a test counts in processor time: others who share the processors change it little.
    """
    return max(1.0, _time(lambda: zlib.compress(DATA), time.process_time) / COMPUTING_S)


def _time(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    taken_s = []
    for _ in range(TIMES):
        begun_s = clock()
        work()
        taken_s.append(clock() - begun_s)
    return statistics.median(taken_s)
