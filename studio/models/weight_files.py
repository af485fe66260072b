"""Safetensors files written weight by weight, with transformers' names: in memory is one weight at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

SHARD_BYTES = 5 * 10**9
"""Of one file, unless a weight alone is larger."""
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
ALIGNMENT_BYTES = 8


def write_weights(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    weights: Iterable[torch.Tensor],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write `weights`, of these names and `shapes` in their order, all of `dtype`, and an index of several files.

    Raises OSError, and ValueError for a weight of another shape or dtype.
    """
    shards = _part(shapes, dtype, shard_bytes)
    waiting, places, total_bytes = iter(weights), {}, 0
    for number, shard in enumerate(shards, 1):
        file = (
            "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        )
        places |= dict.fromkeys(shard, file)
        with (folder / file).open("wb") as out:
            out.write(_pack_header(shard, dtype))
            for name, shape in shard.items():
                weight = next(waiting)
                if tuple(weight.shape) != tuple(shape) or weight.dtype != dtype:
                    raise ValueError(f"{name} is {tuple(weight.shape)} {weight.dtype}")
                out.write(memoryview(weight.contiguous().view(-1).view(torch.uint8).numpy()))
                total_bytes += weight.nbytes
    if len(shards) > 1:
        count = sum(map(math.prod, shapes.values()))
        index = {"metadata": {"total_parameters": count, "total_size": total_bytes}, "weight_map": places}
        words = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / "model.safetensors.index.json").write_text(words, encoding="utf-8")


def _part(
    shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, shard_bytes: int
) -> list[dict[str, tuple[int, ...]]]:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    held_bytes = 0
    for name, shape in shapes.items():
        size_bytes = math.prod(shape) * dtype.itemsize
        if shards[-1] and held_bytes + size_bytes > shard_bytes:
            shards.append({})
            held_bytes = 0
        shards[-1][name] = shape
        held_bytes += size_bytes
    return shards


def _pack_header(shard: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shard.items():
        end = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        start = end
    words = json.dumps(header, separators=(",", ":")).encode()
    words += b" " * (-len(words) % ALIGNMENT_BYTES)
    return len(words).to_bytes(8, "little") + words
