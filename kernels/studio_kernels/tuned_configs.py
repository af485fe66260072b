"""Tile sizes and warps that were measured to beat an op's own rule on a GPU: those shipped, and those of a user's file.

Each op's file has a rule by width, measured on an H200; what stands here only overrules it. Nothing is measured while
a model trains: `launch.py bench --tune` measures one GPU and writes the file that FINETUNE_STUDIO_TUNED names. A file
of another GPU, of another Triton or of other kernels is not used, nor is a pair of sizes outside `candidates`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from types import MappingProxyType

import torch

from studio_kernels import fingerprint
from studio_kernels._triton import triton

VARIABLE = "FINETUNE_STUDIO_TUNED"
"""The environment variable with the path of the user's file; read once a process."""
Options = dict[str, int]
Entries = Mapping[str, Mapping[int, Options]]
"""Op -> bucket -> sizes and warps that take the place of the rule's."""

SHIPPED: Mapping[int, Entries] = MappingProxyType({75: {}, 80: {}, 86: {}, 89: {}, 90: {}, 120: {}})
"""By architecture (10 x major + minor capability). Empty: the rules were measured on sm_90, and entries are measured,
not guessed; what `bench --tune --json` finds on a card of another class belongs here."""

SIZES: Mapping[str, Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {
        "rms_norm": {"ROWS": (1, 2, 4, 8, 16, 32), "num_warps": (2, 4, 8, 16)},
        "glu": {"COLUMNS": (256, 512, 1024, 2048, 4096), "num_warps": (2, 4, 8)},
        "rope": {"num_warps": (1, 2, 4, 8)},
        "dropout": {"ROWS": (4, 8, 16), "num_warps": (2, 4, 8)},
        "nf4": {"num_warps": (2, 4, 8, 16)},
        "adamw": {"ELEMENTS": (512, 1024, 2048, 4096), "num_warps": (2, 4, 8)},
        "linear_cross_entropy": {"COLUMNS": (512, 1024, 2048, 4096), "num_warps": (2, 4, 8, 16)},
    }
)
"""Op -> what may be overruled and by what. Masks make every one of these right; they differ in speed alone."""
LEAST, MOST = 8, 32
"""Elements of a tile that a thread may hold: fewer are short loads, more leave the registers."""


def bucket_of(width: int) -> int:
    """`width` rounded up to a power of two: widths of one bucket share an entry."""
    return 1 << (width - 1).bit_length()


def candidates(op: str, bucket: int) -> tuple[dict[str, int], ...]:
    """All that an entry of `op` may hold for rows of up to `bucket` elements; nothing for other ops."""
    sizes = SIZES.get(op, {})
    found = (dict(zip(sizes, chosen, strict=True)) for chosen in product(*sizes.values()) if chosen)
    return tuple(options for options in found if _fits(options, bucket))


def _fits(options: Options, bucket: int) -> bool:
    columns = options.get("COLUMNS", options.get("ELEMENTS", bucket if "ROWS" in options else 0))
    if not columns:
        return True  # the rule's tile with other warps
    if columns > bucket:
        return False
    return LEAST <= options.get("ROWS", 1) * columns / (32 * options["num_warps"]) <= MOST


def choose(op: str, width: int, rule: dict[str, int], device: torch.device) -> dict[str, int]:
    """`rule`, the sizes and warps that the op's own file gives for `width`, with what is known to be faster over it.

    Ops whose tiles do not depend on rows give the width of what their tile lies in: head_dim (rope), a span's columns
    (dropout), a block's largest size (adamw).
    """
    return rule | _find(op, bucket_of(width), device) if device.type == "cuda" else rule


@cache
def _find(op: str, bucket: int, device: torch.device) -> Options:
    own = read(os.environ.get(VARIABLE, ""), describe(device)).get(op, {}).get(bucket)
    if own is not None:
        return own
    capability = None if torch.version.hip else torch.cuda.get_device_capability(device)
    return shipped_for(capability).get(op, {}).get(bucket, {})


def forget() -> None:
    """Let the user's file be read anew: for the program that writes it."""
    _find.cache_clear()


def shipped_for(capability: tuple[int, int] | None) -> Entries:
    """The shipped entries of the nearest class that is not above `capability`; none below 7.5 and for None (AMD)."""
    number = 10 * capability[0] + capability[1] if capability else 0
    below = [known for known in SHIPPED if known <= number]
    return SHIPPED[max(below)] if below else {}


@cache
def describe(device: torch.device) -> Mapping[str, str]:
    """What must be the same where a file was measured and where it is used; the driver need not."""
    return {
        "gpu": torch.cuda.get_device_name(device),
        "triton": getattr(triton, "__version__", ""),
        "kernels": fingerprint(),
    }


def read(path: str, here: Mapping[str, str]) -> Entries:
    """The entries of the file at `path`; none where it is missing or damaged, or not of the machine in `here`.

    One entry that is not among `candidates` makes the whole file foreign.
    """
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
        if {name: held[name] for name in here} != dict(here):
            return {}
        return {
            op: {int(bucket): _known(op, int(bucket), options) for bucket, options in entries.items()}
            for op, entries in held["entries"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # the rules serve: a run must not end for the sake of a few per cent


def _known(op: str, bucket: int, options: object) -> Options:
    """The candidate that equals `options`: its own numbers are whole, those of a file may be 4.0 or true."""
    for candidate in candidates(op, bucket):
        if candidate == options:
            return candidate
    raise ValueError(f"{options} is no candidate of {op} for rows of up to {bucket} elements")


def spell(entries: Entries, here: Mapping[str, str]) -> str:
    """The text of a file that `read` takes on a machine as `here` describes it."""
    return json.dumps({**here, "entries": entries}, indent=1) + "\n"
