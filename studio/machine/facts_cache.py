"""Keeps what the probes found in a JSON file, stamped with everything that it depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_file
from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.facts import Distribution, Gpu, KernelTest, MachineFacts, Tool
from studio.core.json_file import read_json
from studio.machine.probes.packages import find_package
from studio.machine.probes.variables import NETWORK

SHAPES = (MachineFacts, Gpu, Tool, KernelTest, Distribution)
"""What is kept has the shape of these: a studio with other fields finds it out anew."""
DEPENDS_ON = (
    "system",
    "release",
    "python",
    "interpreter",
    "packages",
    "owners",
    "gpus",
    "driver",
    "driver_cuda",
    "driver_error",
    "driver_module",
    "torch_cuda",
    "torch_hip",
    "repairs",
    "dead_overrides",
    "assemblers",
    "shadows",
    "triton_folder",
    "guest",
)
"""Fields of MachineFacts that can change what a probe finds."""
LIBRARIES = ("torch", "triton", "bitsandbytes")


def stamp(facts: MachineFacts) -> str:
    """Return a hash of what the probes' answers depend on."""
    from studio_kernels import fingerprint

    parts = {name: to_json(getattr(facts, name)) for name in DEPENDS_ON}
    shapes = {kind.__name__: [part.name for part in dataclasses.fields(kind)] for kind in SHAPES}
    parts |= {"shapes": shapes, "kernels": fingerprint()}
    parts["environment"] = {k: v for k, v in facts.environment.items() if k.upper() not in NETWORK}
    parts["runtimes"] = to_json(facts.windows.runtimes) if facts.windows else {}
    parts["folders"] = {name: _touched(find_package(name)) for name in LIBRARIES}
    parts["prefix"] = sys.prefix
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_kept(file: Path, key: str) -> dict[str, Any] | None:
    """Return what was kept under `key`; None without it, or when the file cannot be read."""
    try:
        kept = read_json(file, halves=True)
    except StudioError:
        return None
    if not isinstance(kept, dict) or kept.get("key") != key or not isinstance(kept.get("found"), dict):
        return None
    return kept["found"]


def keep_facts(file: Path, key: str, found: dict[str, Any]) -> None:
    """Write `found` under `key`. A disk that refuses is no failure here: the probes run again next time."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, json.dumps({"key": key, "found": found}).encode())


def _touched(folder: Path | None) -> list[int]:
    """Return when files were last put into a package's folder, and the size and time of its first one."""
    if folder is None:
        return []
    try:
        first = (folder / "__init__.py").stat()
        return [folder.stat().st_mtime_ns, first.st_mtime_ns, first.st_size]
    except OSError:
        return []
