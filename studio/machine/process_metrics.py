"""What a process and its machine do just now, as plain numbers: for the verdict on a run that stands still.

`read_vitals(pid, cache, gpu)` takes counters once; `compare(before, after)` makes rates and growth of two. The names
and units are those of stall_diagnosis.py. What a machine does not tell is left out; nothing here raises for that.
"""

from __future__ import annotations

import os
import platform
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from studio.machine.nvml import open_nvml, visible_handles
from studio.machine.probes.call_timeout import limit

LIMIT_S = 3.0
"""A driver that lost its GPU may never answer."""
COMPILERS = frozenset(
    ("ptxas", "ptxas-blackwell", "tcc", "cl", "link", "lld", "ld.lld", "ld", "gcc", "g++", "cc", "c++", "cc1")
    + ("cc1plus", "clang", "clang++", "clang-cl", "nvcc", "cicc", "hipcc", "ninja", "as", "collect2")
)
RATES = {
    "read_bytes": "read_bytes_per_s",
    "written_bytes": "written_bytes_per_s",
    "major_faults": "major_faults_per_s",
    "cpu_s": "cpu_share",
    "pcie_replays": "pcie_replays_per_s",
}
GROWTHS = {"cache_bytes": "cache_growth_bytes", "cache_files": "cache_growth_files"}


def read_vitals(pid: int, cache: Path | None = None, gpu: int | None = None) -> dict[str, float]:
    """Return the counters and levels of process `pid`, its machine, the kernel `cache` and GPU number `gpu`."""
    found = {"time_s": time.monotonic()} | read_process(pid) | read_memory()
    if cache is not None:
        found |= read_cache(cache)
    if gpu is not None:
        found |= limit(lambda: read_gpu(gpu), LIMIT_S) or {}
        found |= limit(lambda: read_shared(pid), LIMIT_S) or {}
        found["spills"] = float(can_spill())
    if pid == os.getpid():
        found |= read_output()
    return found


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the measures: the levels of `after`, and rates and growth since `before`."""
    passed_s = max(1e-3, after["time_s"] - before["time_s"])
    hidden = {"time_s", *RATES, *GROWTHS}
    measures = {name: value for name, value in after.items() if name not in hidden}
    for counter, name in RATES.items():
        if counter in before and counter in after:
            measures[name] = max(0.0, after[counter] - before[counter]) / passed_s
    for level, name in GROWTHS.items():
        if level in before and level in after:
            measures[name] = max(0.0, after[level] - before[level])
    return measures


def read_process(pid: int) -> dict[str, float]:
    """Return what the system says of `pid` and of the processes that it started."""
    import psutil

    found: dict[str, float] = {}
    try:
        process = psutil.Process(pid)
        family = process.children(recursive=True)
        times, memory = process.cpu_times(), process.memory_info()
        found |= {"cpu_s": times.user + times.system, "rss_bytes": memory.rss, "children": len(family)}
        names = [_program(child) for child in family]
        found["compilers"] = sum(name in COMPILERS for name in names)
        found["waits_for_disk"] = float(process.status() == psutil.STATUS_DISK_SLEEP)
        if hasattr(
            memory, "num_page_faults"
        ):  # Windows counts all faults, the others only those that read a disk
            found["major_faults"] = memory.num_page_faults
        moved = process.io_counters()  # macOS has none
        # Linux counts apart what came from a real disk; a Windows folder inside WSL is no disk to it.
        found["read_bytes"] = getattr(moved, "read_chars", moved.read_bytes)
        found["written_bytes"] = getattr(moved, "write_chars", moved.write_bytes)
    except (psutil.Error, AttributeError, OSError):
        return found
    return found | _read_faults(pid)


def read_memory() -> dict[str, float]:
    """Return the machine's RAM and swap."""
    import psutil

    memory = psutil.virtual_memory()
    found = {"ram_available_bytes": float(memory.available), "ram_total_bytes": float(memory.total)}
    try:
        found["swap_used_bytes"] = float(psutil.swap_memory().used)
    except (psutil.Error, OSError):  # a container without /proc/vmstat
        return found
    return found


def read_cache(folder: Path) -> dict[str, float]:
    """Return how many files the kernel cache holds and their bytes."""
    sizes = []
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.path.getsize(os.path.join(root, name)))
            except OSError:
                continue  # a compiler's temporary file is gone already
    return {"cache_files": float(len(sizes)), "cache_bytes": float(sum(sizes))}


def read_gpu(index: int) -> dict[str, float]:
    """Return what NVIDIA's driver says of one GPU; `index` as in MachineFacts.gpus."""
    nvml = open_nvml()
    if nvml is None:
        return {}
    try:
        handle = visible_handles(nvml, os.environ)[index]
    except (nvml.NVMLError, IndexError):
        return {}
    memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    answers = {
        "gpu_utilisation": _ask(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        "vram_used_bytes": memory and memory.used,
        "vram_total_bytes": memory and memory.total,
        "sm_clock_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "sm_clock_limit_mhz": _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "throttle_reasons": reasons and _ask(nvml, lambda: reasons(handle)),
        "power_w": _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "temperature_c": _ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "pcie_replays": _ask(nvml, lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle)),
    }
    return {name: float(value) for name, value in answers.items() if value is not None}


def read_shared(pid: int, pdh: Any = None) -> dict[str, float]:
    """Return how much RAM Windows' driver uses as graphics memory for `pid`; {} elsewhere. `pdh` is for tests."""
    if pdh is None:
        if platform.system() != "Windows":
            return {}
        import ctypes

        pdh = ctypes.WinDLL("pdh")  # type: ignore[attr-defined]
    instances = _read_counters(pdh, r"\GPU Process Memory(*)\Shared Usage")
    own = [value for name, value in instances if name.startswith(f"pid_{pid}_")]
    return {"shared_used_bytes": float(sum(own))} if own else {}


def can_spill() -> bool:
    """Whether the driver may use RAM as VRAM instead of saying that memory is out: on Windows, and so inside WSL."""
    return platform.system() == "Windows" or Path("/dev/dxg").exists()


def read_output(descriptors: tuple[int, ...] = (1, 2)) -> dict[str, float]:
    """Return whether standard output or standard error takes nothing just now; {} where that cannot be asked."""
    if not hasattr(select, "poll"):
        return {}
    poller = select.poll()
    for descriptor in descriptors:
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # closed: a write fails, it does not wait
        poller.register(descriptor, select.POLLOUT)
        if not poller.poll(0):
            return {"output_full": 1.0}
        poller.unregister(descriptor)
    return {"output_full": 0.0}


def _program(process: Any) -> str:
    import psutil

    try:
        return process.name().lower().removesuffix(".exe")
    except psutil.Error:
        return ""


def _read_faults(pid: int) -> dict[str, float]:
    """Return the page faults that read a disk, of Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return {"major_faults": float(fields[9])}
    except (OSError, IndexError, ValueError):
        return {}


def _ask(nvml: Any, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (nvml.NVMLError, AttributeError):  # laptops, shared cards and old drivers do not tell everything
        return None


def _read_counters(pdh: Any, path: str) -> list[tuple[str, int]]:
    """Return (instance, value) of a performance counter of Windows with a `*`; [] when it is not there.

    PdhAddEnglishCounterW takes English names whatever language Windows speaks (Vista and newer).
    """
    import ctypes

    class Item(ctypes.Structure):
        """PDH_FMT_COUNTERVALUE_ITEM_W with a 64-bit value."""

        _fields_ = (
            ("name", ctypes.c_wchar_p),
            ("status", ctypes.c_ulong),
            ("value", ctypes.c_longlong),
        )

    large = 0x00000400
    query, counter = ctypes.c_void_p(), ctypes.c_void_p()
    if pdh.PdhOpenQueryW(None, None, ctypes.byref(query)):
        return []
    try:
        if pdh.PdhAddEnglishCounterW(query, ctypes.c_wchar_p(path), None, ctypes.byref(counter)):
            return []
        if pdh.PdhCollectQueryData(query):
            return []
        size, count = ctypes.c_ulong(0), ctypes.c_ulong(0)
        # The first call only says how much room the items and, behind them, their names take.
        pdh.PdhGetFormattedCounterArrayW(counter, large, ctypes.byref(size), ctypes.byref(count), None)
        if not size.value:
            return []
        buffer = ctypes.create_string_buffer(size.value)
        if pdh.PdhGetFormattedCounterArrayW(counter, large, ctypes.byref(size), ctypes.byref(count), buffer):
            return []
        items = ctypes.cast(buffer, ctypes.POINTER(Item))
        return [(items[place].name or "", items[place].value) for place in range(count.value)]
    finally:
        pdh.PdhCloseQuery(query)
