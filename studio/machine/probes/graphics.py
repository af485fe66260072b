"""The graphics cards: NVIDIA by NVML, nvidia-smi or CUDA itself, AMD and Intel by what the system tells."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from studio.core.facts import Gpu
from studio.installer.torch_build import INTEL_DEVICES
from studio.machine.nvml import Driver, read_driver
from studio.machine.probes.call_timeout import limit
from studio.machine.probes.child import ask_program, run_child
from studio.machine.probes.probe_context import ProbeContext, read_words
from studio.machine.repairs import WSL_LIBRARIES

NVML_S = 5.0
SMI_S = 10.0
CUDA_S = 10.0
QUERY = "index,uuid,name,memory.total,compute_cap,display_active"
SMI_FOLDERS = (r"C:\Windows\System32", r"C:\Program Files\NVIDIA Corporation\NVSMI", WSL_LIBRARIES)
LIBRARY_FOLDERS = (WSL_LIBRARIES, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
KFD = Path("/dev/kfd")
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")
CARDS = Path("/sys/class/drm")
ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
AMD, INTEL = "0x1002", "0x8086"


def look(here: ProbeContext) -> dict[str, Any]:
    """Return gpus, and version, CUDA and errors of NVIDIA's driver. Takes 5 to 20 s where a driver hangs."""
    driver = find_driver(here)
    module = read_module_version()
    others = read_windows_cards() if here.system == "Windows" else read_linux_cards(here.system)
    error = driver.error
    if not error and any(gpu.vendor == "amd" for gpu in others) and KFD.exists():
        error = "" if os.access(KFD, os.R_OK | os.W_OK) else f"Permission denied: {KFD}"
    return {
        "gpus": (*driver.gpus, *others),
        "driver": driver.version or ("" if driver.error else module),
        "driver_cuda": driver.cuda,
        "driver_error": error,
        "driver_module": module if module and driver.version and module != driver.version else "",
    }


# NVIDIA --------------------------------------------------------------------------------------------------------------


def find_driver(here: ProbeContext) -> Driver:
    """Return what the first source that knows the driver tells: NVML, nvidia-smi, the CUDA driver itself."""
    answer = limit(lambda: read_driver(here.effective), NVML_S)
    if answer is None:  # whoever asks next would wait, too
        return Driver(error=f"no answer within {NVML_S:g} s")
    answers = [answer]
    for ask in (ask_smi, ask_cuda):
        if answers[-1].version and not answers[-1].error:
            return answers[-1]
        answers.append(ask(here))
    if answers[-1].cuda > (0, 0):
        return answers[-1]
    errors = [each.error for each in answers if each.error]
    return Driver(version=answers[1].version, cuda=answers[1].cuda, error=errors[0] if errors else "")


def ask_smi(here: ProbeContext) -> Driver:
    """Return what nvidia-smi tells; an exit code of 0 without a row of a card is no answer."""
    program = shutil.which("nvidia-smi", path=here.read("PATH")) or next(
        (str(path) for folder in SMI_FOLDERS if (path := Path(folder, _smi_name())).is_file()), ""
    )
    if not program:
        return Driver()
    head = ask_program([program], timeout_s=SMI_S, environment=here.effective)
    if head.timed_out:
        return Driver(error=f"no answer within {SMI_S:g} s")
    version = re.search(r"Driver Version:\s*(\d+(?:\.\d+)+)", head.said)
    # Drivers of branch 610 and newer say `CUDA UMD Version`.
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+)\.(\d+)", head.said)
    if version is None:
        words = (head.said.strip() or head.error).splitlines()
        return Driver(error=f"nvidia-smi: {words[-1].strip()}" if words else "nvidia-smi: no answer")
    command = [program, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    rows = ask_program(command, timeout_s=SMI_S, environment=here.effective).said.splitlines()
    cards = [card for row in rows if (card := _read_row(row))]
    if not cards:
        return Driver(version=version.group(1), error="nvidia-smi: no graphics card")
    return Driver(
        gpus=choose_visible(cards, here.effective.get("CUDA_VISIBLE_DEVICES")),
        cuda=(int(cuda.group(1)), int(cuda.group(2))) if cuda else (0, 0),
        version=version.group(1),
    )


def choose_visible(cards: list[tuple[str, str, Gpu]], wanted: str | None) -> tuple[Gpu, ...]:
    """Return those of (index, uuid, Gpu) that CUDA will see; it stops at the first entry that it cannot read."""
    if wanted is None:
        return tuple(gpu for _, _, gpu in cards)
    chosen = []
    for name in (part.strip() for part in wanted.split(",")):
        match = next((gpu for i, uuid, gpu in cards if name == i or (name and uuid.startswith(name))), None)
        if match is None:
            break
        chosen.append(match)
    return tuple(chosen)


def ask_cuda(here: ProbeContext) -> Driver:
    """Return what the CUDA driver tells, asked in a child process; an empty Driver where there is none."""
    if not has_cuda_library(here):
        return Driver()
    answer = run_child("studio.machine.probes.cuda_driver", timeout_s=CUDA_S, environment=here.effective)
    version = int(answer.facts.get("version", 0))
    gpus = tuple(
        Gpu(name=gpu["name"], vram_bytes=gpu["vram_bytes"], capability=tuple(gpu["capability"]))
        for gpu in answer.facts.get("gpus", ())
    )
    return Driver(gpus=gpus, cuda=(version // 1000, version % 1000 // 10), error=answer.error)


def has_cuda_library(here: ProbeContext) -> bool:
    """Return whether a CUDA driver's library lies where a child process of ours would find it."""
    name = "nvcuda.dll" if here.system == "Windows" else "libcuda.so.1"
    folders = (*here.effective.get("LD_LIBRARY_PATH", "").split(os.pathsep), *LIBRARY_FOLDERS)
    if any(folder and Path(folder, name).exists() for folder in folders):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def read_module_version() -> str:
    """Return the version of NVIDIA's loaded kernel module on Linux, "" without one."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", " ".join(read_words(KERNEL_DRIVER)))
    return found.group(1) if found else ""


def _smi_name() -> str:
    return "nvidia-smi.exe" if os.name == "nt" else "nvidia-smi"


def _read_row(row: str) -> tuple[str, str, Gpu] | None:
    parts = [part.strip() for part in row.split(",")]
    if len(parts) != len(QUERY.split(",")) or not parts[0].isdigit():
        return None
    index, uuid, name, mebibytes, capability, display = parts
    major, _, minor = capability.partition(".")
    known = major.isdigit() and minor.isdigit()
    return (
        index,
        uuid,
        Gpu(
            name=name,
            vram_bytes=int(mebibytes) * 2**20 if mebibytes.isdigit() else 0,
            capability=(int(major), int(minor)) if known else (0, 0),
            display={"Enabled": True, "Disabled": False}.get(display),
        ),
    )


# AMD, Intel, Apple ---------------------------------------------------------------------------------------------------


def read_linux_cards(system: str) -> tuple[Gpu, ...]:
    """Return the cards of other makers: AMD's in the order of its runtime, then Intel's; Apple's on a Mac."""
    if system == "Darwin":
        chip = os.uname().machine == "arm64"
        return (Gpu(name="Apple", vram_bytes=0, capability=(0, 0), vendor="apple"),) if chip else ()
    return (*(read_topology() or read_amd_cards()), *read_intel_cards())


def read_topology() -> tuple[Gpu, ...]:
    """Return AMD's GPUs as its compute driver lists them, with the name of the chip."""
    found = []
    for node in sorted(TOPOLOGY.glob("*"), key=lambda path: (len(path.name), path.name)):
        words = read_words(node / "properties")
        properties = dict(zip(words[::2], words[1::2], strict=False))
        chip = name_chip(int(properties.get("gfx_target_version", "0")))
        if not chip:
            continue  # a processor
        name = " ".join(read_words(node / "name"))
        found.append(
            Gpu(
                name=name or chip,
                vram_bytes=_bank_bytes(node),
                capability=(0, 0),
                vendor="amd",
                architecture=chip,
            )
        )
    return tuple(found)


def name_chip(version: int) -> str:
    """Return AMD's name of a chip from the compute driver's number: 90402 is gfx942, 90010 gfx90a; "" for 0."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def read_amd_cards() -> tuple[Gpu, ...]:
    """Return AMD's cards where its compute driver is missing: what they are is not known then."""
    found = []
    for card in _cards(AMD):
        size = read_words(card / "mem_info_vram_total")
        size_bytes = int(size[0]) if size and size[0].isdigit() else 0
        found.append(Gpu(name="AMD Radeon", vram_bytes=size_bytes, capability=(0, 0), vendor="amd"))
    return tuple(found)


def read_intel_cards() -> tuple[Gpu, ...]:
    """Return Intel's cards that PyTorch has a build for."""
    return tuple(
        Gpu(name="Intel Arc", vram_bytes=0, capability=(0, 0), vendor="intel")
        for card in _cards(INTEL)
        if "".join(read_words(card / "device"))[2:4].lower() in INTEL_DEVICES
    )


def read_windows_cards() -> tuple[Gpu, ...]:
    """Return AMD's and Intel's cards from the registry."""
    import winreg

    found = []
    for index in range(16):
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, f"{ADAPTERS}\\{index:04d}") as key:
                name = str(winreg.QueryValueEx(key, "DriverDesc")[0])
                size_bytes = _registry_number(winreg, key, "HardwareInformation.qwMemorySize")
        except OSError:
            continue
        lowered = name.lower()
        vendor = "amd" if "radeon" in lowered else "intel" if "intel" in lowered and "arc" in lowered else ""
        if vendor:
            found.append(Gpu(name=name, vram_bytes=size_bytes, capability=(0, 0), vendor=vendor))
    return tuple(found)


def _registry_number(winreg: Any, key: Any, name: str) -> int:
    try:
        value = winreg.QueryValueEx(key, name)[0]
    except OSError:
        return 0
    return int.from_bytes(value, sys.byteorder) if isinstance(value, bytes) else int(value)


def _cards(vendor: str) -> list[Path]:
    devices = sorted(CARDS.glob("card*/device"))
    return [device for device in devices if "".join(read_words(device / "vendor")) == vendor]


def _bank_bytes(node: Path) -> int:
    """Return the memory of the card itself: heaps 1 and 2, visible to the processor or not."""
    total = 0
    for bank in node.glob("mem_banks/*/properties"):
        words = read_words(bank)
        properties = dict(zip(words[::2], words[1::2], strict=False))
        if properties.get("heap_type") in ("1", "2"):
            total += int(properties.get("size_in_bytes", "0"))
    return total
