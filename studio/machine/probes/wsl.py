"""What only a Linux inside WSL has: the way to the GPU, and whose driver answers it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from studio.core.facts import GuestFacts
from studio.machine.probes.child import ask_program
from studio.machine.probes.probe_context import ProbeContext, read_words

KERNEL = Path("/proc/version")
DXG = Path("/dev/dxg")
INTEROP = Path("/proc/sys/fs/binfmt_misc")
DPKG = Path("/var/lib/dpkg/info")
LOADER_CACHE = ("/sbin/ldconfig", "-p")
LOADER_S = 3.0
WINDOWS_RAM_VARIABLE = "FINETUNE_STUDIO_WINDOWS_RAM"
"""Set by the bridge from Windows, which alone knows it: bytes."""


def look(here: ProbeContext) -> dict[str, Any]:
    """Return the fact `guest`; nothing outside WSL."""
    words = read_words(KERNEL)
    if "microsoft" not in " ".join(words).lower():
        return {}
    kernel = words[2] if len(words) > 2 else ""
    facts = GuestFacts(
        # WSL 1 has no kernel of its own and shows `4.4.0-19041-Microsoft`.
        version=1 if kernel.endswith("-Microsoft") else 2,
        distribution=here.read("WSL_DISTRO_NAME") or read_distribution(),
        kernel=kernel,
        dxg=DXG.exists(),
        libcuda=find_libcuda(here),
        linux_driver=any(DPKG.glob("nvidia-driver-*.list")) or any(DPKG.glob("libnvidia-compute-*.list")),
        interop=any(INTEROP.glob("WSLInterop*")),
        windows_ram_bytes=int(number) if (number := here.read(WINDOWS_RAM_VARIABLE)).isdigit() else 0,
    )
    return {"guest": facts}


def find_libcuda(here: ProbeContext) -> str:
    """Return the libcuda.so.1 that a process would load: from LD_LIBRARY_PATH, else the loader's cache; "" for none."""
    for folder in here.read("LD_LIBRARY_PATH").split(os.pathsep):
        if folder and Path(folder, "libcuda.so.1").exists():
            return os.path.join(folder, "libcuda.so.1")
    cache = ask_program(LOADER_CACHE, timeout_s=LOADER_S, environment=here.effective).said
    found = re.search(r"libcuda\.so\.1 .*x86-64.*=> (\S+)", cache) or re.search(
        r"libcuda\.so\.1 .*=> (\S+)", cache
    )
    return found.group(1) if found else ""


def read_distribution() -> str:
    """Return the name that /etc/os-release gives, such as `Ubuntu 24.04.1 LTS`; "" without one."""
    found = re.search(r'PRETTY_NAME="?([^"=]+)"?', " ".join(read_words(Path("/etc/os-release"))))
    return found.group(1).strip() if found else ""
