"""Asks NVIDIA's driver through NVML: which GPUs there are, and what one of them does just now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from studio.core.facts import Gpu


def read_gpus() -> tuple[tuple[Gpu, ...], tuple[int, int]]:
    """Return the visible NVIDIA GPUs and the newest CUDA that their driver supports; nothing without driver or NVML."""
    nvml = open_nvml()
    if nvml is None:
        return (), (0, 0)
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus = []
        for handle in visible_handles(nvml, os.environ):
            name = nvml.nvmlDeviceGetName(handle)
            gpus.append(
                Gpu(
                    name=name.decode() if isinstance(name, bytes) else name,
                    vram_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
                    capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
                )
            )
    except nvml.NVMLError:
        return (), (0, 0)
    return tuple(gpus), (version // 1000, version % 1000 // 10)


def sample_gpu(index: int) -> tuple[float, int, float, float] | None:
    """Return (utilisation 0..1, memory in use in bytes, temperature in degrees Celsius, power in watts) of one GPU.

    `index` as in MachineFacts.gpus. None where the driver does not tell. Takes about 1 ms once NVML is open, and
    NVML stays open because opening it takes 20 to 100 ms.
    """
    nvml = open_nvml()
    if nvml is None:
        return None
    try:
        handle = visible_handles(nvml, os.environ)[index]
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except (nvml.NVMLError, IndexError):
        return None

    def ask(question: Callable[[], float]) -> float:
        try:
            return float(question())
        except nvml.NVMLError:  # laptops and shared cards do not tell everything
            return 0.0

    return (
        ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        memory_bytes,
        ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    )


def open_nvml() -> Any:
    """Return the module pynvml (of nvidia-ml-py) with NVML open, or None without the module, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def visible_handles(nvml: Any, environment: Mapping[str, str]) -> list[Any]:
    """Return NVML's handles of the GPUs that CUDA will see; CUDA stops at the first entry that it cannot read."""
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for name in wanted.split(","):
        try:
            if name.strip().isdigit():
                handles.append(nvml.nvmlDeviceGetHandleByIndex(int(name)))
            else:
                handles.append(nvml.nvmlDeviceGetHandleByUUID(name.strip()))
        except nvml.NVMLError:
            break
    return handles
