"""Which versions of torch, Triton, CUDA, drivers and graphics cards go together: the tables of assets/versions.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from studio.core.facts import Gpu, MachineFacts
from studio.core.json_file import read_json

TABLES = Path(__file__).resolve().parents[2] / "assets" / "versions.json"

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What goes with one release of torch; "" and () where it is not known."""

    torch: str
    triton: str
    """The Triton that its Linux wheel asks for."""
    triton_windows: str = ""
    """The exact triton-windows for it; "" where none is known, or where none is out yet (`unreleased`)."""
    unreleased: bool = False
    pythons: tuple[Pair, Pair] | None = None
    """First and last Python that there are wheels for."""
    cuda_builds: tuple[str, ...] = ()


@cache
def read_tables() -> Mapping[str, Any]:
    """Return assets/versions.json; a figure in it is {"is": value, "evidence": R, P, D or K}."""
    return read_json(TABLES)


def gate(name: str) -> Pair:
    """Return the lowest compute capability that has a feature: bf16, fp8, dots, triton, four_bit, int8."""
    major, minor = read_tables()["gates"][name]["is"]
    return major, minor


def minor_of(version: str) -> Pair | None:
    """Return (major, minor) of a version: (2, 13) for `2.13.0+cu130`; None when it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def find_release(torch: str) -> Release | None:
    """Return the Release that `torch` (`2.13.0+cu130`) belongs to; None for one that the tables do not know."""
    wanted = minor_of(torch)
    for row in read_tables()["releases"]:
        if wanted is not None and minor_of(row["torch"]) == wanted:
            return _read_release(row)
    return None


def installed_triton(machine: MachineFacts) -> str:
    """Return the version of the Triton that is installed, under either name; "" for none."""
    names = ("triton-windows", "triton") if machine.system == "Windows" else ("triton", "triton-windows")
    return next((machine.packages[name] for name in names if machine.packages.get(name)), "")


def pairs(machine: MachineFacts) -> bool | None:
    """Return whether the installed Triton is the one for the installed torch; None when the tables do not know."""
    release = find_release(machine.packages.get("torch", ""))
    triton = minor_of(installed_triton(machine))
    if release is None or triton is None:
        return None
    return triton == minor_of(release.triton)


def pin(machine: MachineFacts) -> str:
    """Return the requirement of the Triton that belongs to this machine's torch, as pip takes it; "" for none."""
    release = find_release(machine.packages.get("torch", ""))
    if release is None:
        return ""
    if machine.system == "Windows":
        return f"triton-windows=={release.triton_windows}" if release.triton_windows else ""
    return f"triton=={release.triton}" if release.triton.count(".") == 2 else f"triton=={release.triton}.*"


def latest_windows_release() -> Release:
    """Return the newest torch for which there is a Triton on Windows."""
    known = [_read_release(row) for row in read_tables()["releases"]]
    return [release for release in known if release.triton_windows][-1]


def driver_floor(cuda: str) -> Pair:
    """Return the CUDA that a driver must support for a build of torch for `cuda`: minor versions are compatible."""
    built = minor_of(cuda) or (0, 0)
    for row in read_tables()["gpu_builds"]:
        needs = tuple(row["driver_cuda"]["is"])
        if needs[0] == built[0]:
            return needs
    return built[0], 0


def driver_release(cuda: str, system: str) -> str:
    """Return the oldest driver for a build of torch for `cuda`, such as `580.65`; "" when unknown."""
    built = minor_of(cuda) or (0, 0)
    rows = [row for row in read_tables()["gpu_builds"] if minor_of(row["build"])[0] == built[0]]
    return rows[0]["driver_windows" if system == "Windows" else "driver_linux"]["is"] if rows else ""


def has_code(machine: MachineFacts, gpu: Gpu) -> bool:
    """Return whether the installed torch holds code for `gpu`: NVIDIA's by torch's own list, else by the tables.

    Torch's own rule: code of the same major capability and of no higher minor one runs, and so does PTX of any lower.
    """
    if gpu.vendor == "amd":
        chips = {name.partition(":")[0] for name in machine.torch_architectures}
        spoofed = "HSA_OVERRIDE_GFX_VERSION" in machine.environment
        return not chips or spoofed or gpu.architecture in chips
    if gpu.vendor != "nvidia":
        return True
    listed = [
        (kind, (int(digits[:-1]), int(digits[-1])))
        for kind, digits in re.findall(r"\b(sm|compute)_(\d\d+)", " ".join(machine.torch_architectures))
    ]
    if listed:
        return any(
            built <= gpu.capability and (kind == "compute" or built[0] == gpu.capability[0])
            for kind, built in listed
        )
    lowest, highest_major = code_range(machine.torch_cuda, machine.packages.get("torch", ""))
    return lowest <= gpu.capability and gpu.capability[0] <= highest_major


def code_range(cuda: str, torch: str) -> tuple[Pair, int]:
    """Return the lowest capability and the highest major one that a build of torch for `cuda` holds code for."""
    built, version = minor_of(cuda) or (0, 0), minor_of(torch)
    best = None
    for row in read_tables()["gpu_builds"]:
        limit = minor_of(row.get("until_torch", ""))
        if limit is not None and (version is None or version > limit):
            continue
        start = minor_of(row["build"])
        # A later build of the same CUDA has what the nearest known one before it has.
        if start[0] == built[0] and (best is None or start <= built and start != minor_of(best["build"])):
            best = row
    if best is None:
        return (0, 0), 99
    return tuple(best["lowest"]["is"]), best["highest_major"]["is"]


def _read_release(row: Mapping[str, Any]) -> Release:
    windows, pythons = row.get("triton_windows"), row.get("pythons")
    return Release(
        torch=row["torch"],
        triton=row["triton"]["is"],
        triton_windows=windows["is"] if windows else "",
        unreleased=windows is not None and not windows["is"],
        pythons=tuple(minor_of(version) for version in pythons["is"]) if pythons else None,
        cuda_builds=tuple(row["cuda_builds"]["is"]) if "cuda_builds" in row else (),
    )
