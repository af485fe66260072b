"""Samples the GPU's driver while a run trains and logs what it reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from studio.core.events import GpuSampled, RunEvent
from studio.host.nvml import sample_gpu

INTERVAL_S = 2.0


@contextmanager
def watch_gpu(device: str, emit: Callable[[RunEvent], None]) -> Iterator[None]:
    """Emit GpuSampled every INTERVAL_S while the block runs; nothing on a CPU or without a driver's report."""
    if not device.startswith("cuda"):
        yield
        return
    index = int(device.partition(":")[2] or 0)
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(INTERVAL_S):
            values = sample_gpu(index)
            if values is None:
                return
            utilisation, memory_bytes, temperature_c, power_w = values
            emit(
                GpuSampled(
                    utilisation=utilisation,
                    memory_bytes=memory_bytes,
                    temperature_c=temperature_c,
                    power_w=power_w,
                )
            )

    thread = threading.Thread(target=sample, name="gpu-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
