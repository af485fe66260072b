"""The system, its processors and memory, without the module `platform`: it fails on some Pythons' banners."""

from __future__ import annotations

import locale
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from studio.machine.probes.probe_context import ProbeContext, read_words

ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "aarch64": "arm64", "win32": "x86"}
NATIVE_MACHINES = {0x8664: "x86_64", 0xAA64: "arm64", 0x014C: "x86"}
"""What IsWow64Process2 calls the processor."""
GROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 2**60
"""A limit above this is version 1's way to say that there is none."""


def look(here: ProbeContext) -> dict[str, Any]:
    """Return system, release, architectures, Python, processors, memory, limits and locale."""
    import psutil

    memory, limit = psutil.virtual_memory(), read_memory_limit()
    total = min(memory.total, limit) if limit else memory.total
    return {
        "system": here.system,
        "release": read_release(here.system),
        "architecture": read_architecture(here.system),
        "process_architecture": _plain(sysconfig.get_platform().rpartition("-")[2]),
        "python": ".".join(map(str, sys.version_info[:3])),
        "wsl": "microsoft" in " ".join(read_words(Path("/proc/version"))).lower(),
        "cores": count_cores(),
        "ram_bytes": total,
        "ram_available_bytes": min(memory.available, total),
        "ram_limit_bytes": limit,
        "shm_bytes": _shared_memory_bytes(),
        "locale": locale.getlocale()[0] or "",
        "container": is_container(here),
    }


def count_cores() -> int:
    """Return the processors that this process may use: its affinity, and a container's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _own_groups():
        quota = read_words(group / "cpu.max")
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
            cores = min(cores, max(1, -(-int(quota[0]) // int(quota[1]))))
    return cores


def read_memory_limit() -> int:
    """Return a container's limit of memory in bytes, 0 without one."""
    limits = []
    for path in (*(group / "memory.max" for group in _own_groups()), GROUPS / "memory/memory.limit_in_bytes"):
        words = read_words(path)
        if words and words[0].isdigit() and 0 < int(words[0]) < UNLIMITED_BYTES:
            limits.append(int(words[0]))
    return min(limits, default=0)


def read_release(system: str) -> str:
    """Return the system's version, such as `10.0.22631` or `6.1.0-13-amd64`."""
    if system == "Windows":
        version = sys.getwindowsversion()
        return f"{version.major}.{version.minor}.{version.build}"
    return os.uname().release


def read_architecture(system: str) -> str:
    """Return the processor's own architecture, also when this process runs under emulation."""
    if system != "Windows":
        return _plain(os.uname().machine)
    import ctypes

    process, native = ctypes.c_ushort(), ctypes.c_ushort()
    kernel = ctypes.windll.kernel32
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    try:
        handle = ctypes.c_void_p(kernel.GetCurrentProcess())
        found = kernel.IsWow64Process2(handle, ctypes.byref(process), ctypes.byref(native))
    except AttributeError:  # before Windows 10
        found = 0
    if found and native.value in NATIVE_MACHINES:
        return NATIVE_MACHINES[native.value]
    return _plain(os.environ.get("PROCESSOR_ARCHITEW6432") or os.environ.get("PROCESSOR_ARCHITECTURE", ""))


def is_container(here: ProbeContext) -> bool:
    """Return whether this is a container: Docker, Podman, Kubernetes."""
    if here.system != "Linux":
        return False
    marked = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
    groups = " ".join(read_words(Path("/proc/1/cgroup")))
    return (
        marked
        or bool(here.read("container"))
        or any(name in groups for name in ("docker", "kubepods", "containerd"))
    )


def _own_groups() -> list[Path]:
    """Return the control groups of version 2 that bind this process: its own, and the root that a container shows."""
    own = [
        word.partition("::")[2] for word in read_words(Path("/proc/self/cgroup")) if word.startswith("0::")
    ]
    return [GROUPS, *(GROUPS / path.lstrip("/") for path in own if path.strip("/"))]


def _shared_memory_bytes() -> int:
    if not hasattr(os, "statvfs"):
        return 0
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return disk.f_blocks * disk.f_frsize


def _plain(architecture: str) -> str:
    return ARCHITECTURES.get(architecture.lower(), architecture.lower())
