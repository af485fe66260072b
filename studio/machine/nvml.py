"""Asks NVIDIA's driver through NVML: which GPUs there are, and what one of them does just now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from studio.core.facts import Gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """NVIDIA's driver as one source describes it."""

    gpus: tuple[Gpu, ...] = ()
    """Those that CUDA will see, in its order."""
    cuda: tuple[int, int] = (0, 0)
    """Newest CUDA that it supports."""
    version: str = ""
    error: str = ""
    """Why it could not be asked, in its own words; "" when it could, and where there is no driver."""


def read_driver(environment: Mapping[str, str] = os.environ) -> Driver:
    """Return what NVML tells; an empty Driver without driver or NVML. Can hang where a driver does."""
    try:
        import pynvml as nvml
    except ImportError:
        return Driver()
    try:
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        name = _words(nvml.nvmlSystemGetDriverVersion())
        gpus = tuple(_describe(nvml, handle) for handle in visible_handles(nvml, environment))
    except (
        AttributeError
    ) as error:  # another package of that name, or one from before 2020: nvidia-smi is asked then
        return Driver(error=str(error))
    except nvml.NVMLError as error:
        absent = getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", 12)
        return Driver() if absent else Driver(error=str(error))
    return Driver(gpus=gpus, cuda=(version // 1000, version % 1000 // 10), version=name)


def _describe(nvml: Any, handle: Any) -> Gpu:
    try:
        display = bool(nvml.nvmlDeviceGetDisplayActive(handle))
    except nvml.NVMLError:  # not told inside WSL and on shared cards
        display = None
    return Gpu(
        name=_words(nvml.nvmlDeviceGetName(handle)),
        vram_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        display=display,
    )


def _words(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


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


def list_free_bytes() -> tuple[int, ...]:
    """Return what each NVIDIA card that CUDA will see has free just now, in its order; () where nothing tells."""
    nvml = open_nvml()
    if nvml is None:
        return ()
    try:
        seen = [nvml.nvmlDeviceGetMemoryInfo(handle) for handle in visible_handles(nvml, os.environ)]
    except nvml.NVMLError:
        return ()
    return tuple(max(0, int(memory.total) - int(memory.used)) for memory in seen)


def list_cards() -> tuple[tuple[str, Gpu], ...]:
    """Return (UUID, Gpu) of every NVIDIA card of this machine, also of those that CUDA_VISIBLE_DEVICES hides."""
    nvml = open_nvml()
    if nvml is None:
        return ()
    try:
        handles = visible_handles(nvml, {})
        return tuple((_words(nvml.nvmlDeviceGetUUID(handle)), _describe(nvml, handle)) for handle in handles)
    except nvml.NVMLError:
        return ()


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
