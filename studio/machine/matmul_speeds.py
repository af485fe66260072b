"""How fast cards and processors multiply matrices, and what each way of computing makes of it: assets/speeds.json."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from studio.core.facts import Gpu, MachineFacts
from studio.core.json_file import read_json

TABLES = Path(__file__).resolve().parents[2] / "assets" / "speeds.json"


@cache
def read_speeds() -> Mapping[str, Any]:
    """Return the figures with their evidence."""
    return read_json(TABLES)


def find_card(gpu: Gpu) -> float | None:
    """Return what a card of that name multiplies in 16 bits, operations a second; None for an unknown name."""
    # `RTX 4070 Ti` is no `RTX 4070`, and an `A100` no `A10`.
    held = [
        row
        for row in read_speeds()["cards"]
        if re.search(rf"(?<![A-Za-z0-9]){re.escape(row['name'])}(?![A-Za-z0-9])", gpu.name, re.IGNORECASE)
    ]
    if not held:
        return None
    rate = max(held, key=lambda row: len(row["name"]))["tflops"]["is"] * 1e12
    return rate * read_speeds()["laptop_share"]["is"] if "laptop" in gpu.name.lower() else rate


def rate_card(gpu: Gpu) -> float:
    """Return what `gpu` multiplies in 16 bits, operations a second: by its name, else by generation and memory."""
    known = find_card(gpu)
    if known is not None:
        return known
    # Of another maker's card nothing is known but its memory: as a middling one of Ampere.
    capability = gpu.capability if gpu.vendor == "nvidia" else (8, 6)
    rows = read_speeds()["unknown"]
    row = _last_from(rows, capability) or rows[0]
    return row["tflops_a_gib"]["is"] * 1e12 * max(1.0, gpu.vram_bytes / 2**30)


def share_of_wide(gpu: Gpu) -> float:
    """Return fp32 arithmetic's share of the 16-bit rate."""
    return _last_from(read_speeds()["wide_share"], gpu.capability)["is"]


def rate_processor(machine: MachineFacts) -> float:
    """Return what the processor multiplies in fp32, operations a second: as measured once, else by its cores."""
    return machine.processor_rate or machine.cores * read_speeds()["core_gflops"]["is"] * 1e9


def _last_from(rows: Any, capability: tuple[int, int]) -> Any:
    """Return the last row that begins at or below `capability`; None below the first."""
    return next((row for row in reversed(rows) if tuple(row["from"]) <= tuple(capability)), None)
