"""What the catalogue's probes share: facts read the way people write versions, and Triton that works left in peace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from studio.core.facts import Gpu, MachineFacts

Values = Mapping[str, object]
Probe = Callable[[MachineFacts], Values | None]
SHADOWED_PACKAGES = ("triton", "triton.py")


def unless_right(probe: Probe) -> Probe:
    """Return `probe` for a failure of Triton: where Triton was proved right it finds nothing, however old the setup."""

    def look(machine: MachineFacts) -> Values | None:
        return None if machine.triton_level == "right" else probe(machine)

    return look


def found(evidence: str) -> Values:
    """Return what a probe returns: the one line that proves it."""
    return {"evidence": " ".join(evidence.split())}


def read_version(words: str) -> tuple[int, ...]:
    """Return the numbers that `words` starts with: "2.14.1+cu130" -> (2, 14, 1); () where there are none."""
    numbers = re.match(r"\D{0,3}(\d+(?:\.\d+)*)", words)
    return tuple(int(part) for part in numbers.group(1).split(".")) if numbers else ()


def older(version: str, floor: tuple[int, ...]) -> bool:
    """Return whether `version` is known and lower than `floor`."""
    numbers = read_version(version)
    return bool(numbers) and numbers < floor


def variable(machine: MachineFacts, *names: str) -> str:
    """Return "NAME=value" of the first of `names` that is set and not empty, matched without case; else ""."""
    known = {name.upper(): (name, value) for name, value in machine.environment.items()}
    for name in names:
        present = known.get(name.upper())
        if present and present[1].strip():
            return "=".join(present)
    return ""


def triton_package(machine: MachineFacts) -> str:
    """Return "triton-windows 3.7.1" for the Triton that is installed; "" without one."""
    for name in ("triton-windows", "triton", "triton-xpu", "pytorch-triton-rocm", "pytorch-triton-xpu"):
        if machine.packages.get(name):
            return f"{name} {machine.packages[name]}"
    return ""


def nvidia(machine: MachineFacts) -> tuple[Gpu, ...]:
    """Return the NVIDIA cards whose compute capability is known."""
    return tuple(gpu for gpu in machine.gpus if gpu.vendor == "nvidia" and gpu.capability > (0, 0))


def describe(gpu: Gpu) -> str:
    """Return "NVIDIA GeForce GTX 1080 (compute capability 6.1)"."""
    chip = gpu.architecture or "compute capability {}.{}".format(*gpu.capability)
    return f"{gpu.name} ({chip})"


def shadowing_folders(machine: MachineFacts) -> Iterable[str]:
    """Yield the search path entries that hold another CUDA's or cuDNN's libraries."""
    for path in machine.shadows:
        if re.split(r"[\\/]", path.rstrip("\\/"))[-1].lower() not in SHADOWED_PACKAGES:
            yield path
