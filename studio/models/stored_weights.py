"""Published folders whose weights are stored in 8 or 4 bits that nothing trains on: opened to bfloat16 folders.

Two forms, as their publishers write them:
- fp8 (DeepSeek, Qwen, Mistral): float8 with scales, one a block of 128 x 128, a row or a tensor; w = q * scale.
- mxfp4 (gpt-oss; OCP Microscaling Formats 1.0): blocks of 32 4-bit floats (E2M1) with one power of two each,
  w = value(q) * 2 ** (scale - 127); a byte holds two, the lower half first. Stored (experts, outputs, inputs / 32, 16),
  where transformers has (experts, inputs, outputs).
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.models.opened_folder import SAMPLE_BYTES, SAMPLES, Report, WeightShards, name_opened, write_opened

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, Any]
"""A folder's weights as their headers have them: by name something with `dtype` and `shape`."""

FLOAT8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("_scale_inv", "_scale")
"""What a float8 weight's name goes on with for the name of its scales."""
OF_ACTIVATIONS = (".activation_scale", ".input_scale", ".k_scale", ".v_scale")
"""Scales of what is multiplied with the weights: of no use for open ones."""
BLOCKS, BLOCK_SCALES = "_blocks", "_scales"
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Of the 16 numbers of E2M1, by their bits."""
PART_BYTES = 2**26
"""Packed bytes opened at once."""
OPENED = ("fp8", "mxfp4")
"""Methods (quant_method of a config) that are opened."""
KEPT = (".json", ".jinja", ".model", ".txt", ".md")
"""Endings of the files beside the weights that go with them."""


def list_opened_shapes(
    tensors: Tensors, name: str, block: Sequence[int] | None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the opened weights of a folder `name`; `block` as read_block gives it.

    Raises StudioError where a weight lacks its scales, or has others: what it is then worth nobody knows.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for key, tensor in tensors.items():
        if key.endswith(BLOCKS) and key.removesuffix(BLOCKS) + BLOCK_SCALES in tensors:
            *lead, rows, groups, half = tensor.shape
            shapes[key.removesuffix(BLOCKS)] = (*lead, groups * half * 2, rows)
        elif tensor.dtype in FLOAT8:
            scale = find_scale(key, tensors)
            if scale is None or find_sizes(tensor.shape, tensors[scale].shape, block) is None:
                values = {"name": name, "tensor": key}
                raise StudioError(*(text(f"stored.no_scale{end}", **values) for end in ("", ".why", ".fix")))
            shapes[key] = tensor.shape
        elif not _is_scale(key, tensors):
            shapes[key] = tensor.shape
    return shapes


def find_scale(key: str, tensors: Tensors) -> str | None:
    """Return the name of a float8 weight's scales, None where there are none."""
    return next((key + ending for ending in SCALES if key + ending in tensors), None)


def read_block(folder: Path) -> tuple[int, int] | None:
    """Return the rows and columns that a float8 scale is for, as the config says; None where it has no blocks."""
    config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    block = config.get("quantization_config", {}).get("weight_block_size")
    fits = (
        isinstance(block, list) and len(block) == 2 and all(isinstance(one, int) and one > 0 for one in block)
    )
    return (block[0], block[1]) if fits else None


def find_opened(folder: Path, paths: tuple[Path, ...]) -> Path:
    """Return where the model in `folder`, its shards `paths`, lies when it is open."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in paths:
        facts = path.stat()
        digest.update(_sample(path, facts.st_size, facts.st_mtime_ns))
    # A folder of the hub's cache is named for its commit; the one above its snapshots for the model.
    named = folder.parents[1] if folder.parent.name == "snapshots" else folder
    return name_opened(named.name, digest.hexdigest())


@lru_cache(512)
def _sample(path: Path, size_bytes: int, changed_ns: int) -> bytes:
    """Return the digest of samples of a shard, read once: a model's facts are asked for again and again."""
    digest = hashlib.sha256(str(size_bytes).encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(size_bytes * number // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()


def open_stored(
    folder: Path,
    paths: tuple[Path, ...],
    tensors: Tensors,
    name: str,
    report: Report = lambda done_bytes, total_bytes: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Path | None:
    """Write the opened folder of the model in `folder` and return it; None when `should_stop` said so.

    Raises StudioError when the disk is full or the place cannot be written.
    """
    shapes = list_opened_shapes(tensors, name, read_block(folder))
    needed_bytes = 2 * sum(map(math.prod, shapes.values()))

    def write(staged: Path) -> bool:
        for file in folder.iterdir():
            if file.suffix in KEPT and file.name != "model.safetensors.index.json" and file.is_file():
                shutil.copyfile(file, staged / file.name)
        _write_config(folder, staged)
        shards = WeightShards(staged)
        for key, weight in open_tensors(paths, tensors, read_block(folder)):
            if should_stop():
                return False
            shards.add(key, weight)
            report(shards.done_bytes, needed_bytes)
        shards.finish()
        return True

    return write_opened(find_opened(folder, paths), name, needed_bytes, write)


def open_tensors(
    paths: tuple[Path, ...], tensors: Tensors, block: Sequence[int] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, weight) of all weights, those that were packed in bfloat16; a scale may lie in another shard.

    `block`: the rows and columns that a float8 scale is for, as the config says.
    """
    from safetensors import safe_open

    files = {path: safe_open(path, "pt") for path in paths}
    places = {key: file for file in files.values() for key in file.keys()}
    for key, file in places.items():
        if key.endswith(BLOCKS) and (whole := key.removesuffix(BLOCKS)) + BLOCK_SCALES in places:
            scales = places[whole + BLOCK_SCALES].get_tensor(whole + BLOCK_SCALES)
            yield whole, open_mxfp4(file.get_tensor(key), scales)
        elif tensors[key].dtype in FLOAT8:
            scale = find_scale(key, places) or ""
            yield key, open_float8(file.get_tensor(key), places[scale].get_tensor(scale), block)
        elif not _is_scale(key, tensors):
            yield key, file.get_tensor(key)


def find_sizes(
    shape: Sequence[int], scale: Sequence[int], block: Sequence[int] | None
) -> tuple[int, int] | None:
    """Return the rows and columns that one scale is for, None where scales of that shape do not fit the weight.

    Scales are one for all, one a `block`, one a row, or one for each matrix of a stack; a row's may lack its last axis.
    """
    if math.prod(scale) == 1:
        return tuple(shape[-2:]) if len(shape) > 1 else (1, shape[0])
    rows, columns = shape[-2:]
    given = (*scale, 1) if len(scale) == len(shape) - 1 else tuple(scale)
    for size in filter(None, (block, (1, columns), (rows, columns))):
        if given == (*shape[:-2], -(-rows // size[0]), -(-columns // size[1])):
            return size[0], size[1]
    return None


def open_float8(
    weight: torch.Tensor, scale: torch.Tensor, block: Sequence[int] | None = None
) -> torch.Tensor:
    """Return (..., rows, columns) float8 times its scales in bfloat16; the last block of an axis may be smaller.

    Raises ValueError where the scales do not fit the weight: list_opened_shapes refuses such a model beforehand.
    """
    import torch

    result = torch.empty(weight.shape, dtype=torch.bfloat16)
    if scale.numel() == 1:
        return result.copy_(weight.float() * scale.float().reshape(()))
    sizes = find_sizes(weight.shape, scale.shape, block)
    if sizes is None:
        raise ValueError(f"scales {tuple(scale.shape)} of a weight {tuple(weight.shape)}")
    rows, columns = weight.shape[-2:]
    counts = -(-rows // sizes[0]), -(-columns // sizes[1])
    flat, scales = weight.reshape(-1, rows, columns), scale.float().reshape(-1, *counts)
    opened = result.view(-1, rows, columns)
    step = max(1, PART_BYTES // columns // sizes[0]) * sizes[0]
    for number in range(flat.shape[0]):
        across = scales[number].repeat_interleave(sizes[1], 1)[:, :columns]
        for start in range(0, rows, step):
            part = slice(start, start + step)
            spread = across[start // sizes[0] : -(-(start + step) // sizes[0])].repeat_interleave(sizes[0], 0)
            packed = flat[number, part].float()
            opened[number, part] = packed * spread[: packed.shape[0]]
    return result


def open_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return (experts, inputs, outputs) bfloat16 of blocks (experts, outputs, groups, 16) and scales (..., groups)."""
    import torch

    experts, outputs, groups, half = blocks.shape
    values = torch.tensor(FP4_VALUES, dtype=torch.bfloat16)
    result = torch.empty((experts, groups * half * 2, outputs), dtype=torch.bfloat16)
    step = max(1, PART_BYTES // (groups * half))
    for expert in range(experts):
        for start in range(0, outputs, step):
            part = blocks[expert, start : start + step]
            pairs = torch.stack((values[(part & 15).long()], values[(part >> 4).long()]), dim=-1)
            power = scales[expert, start : start + step].int() - 127
            opened = torch.ldexp(pairs.reshape(*part.shape[:2], -1).float(), power.unsqueeze(-1))
            result[expert, :, start : start + step] = opened.reshape(part.shape[0], -1).T
    return result


def _is_scale(key: str, tensors: Tensors) -> bool:
    """Return whether a tensor only says how another one, or what is multiplied with it, is scaled."""
    if key.endswith(OF_ACTIVATIONS):
        return True
    if key.endswith(BLOCK_SCALES):
        return key.removesuffix(BLOCK_SCALES) + BLOCKS in tensors
    return any(
        key.endswith(ending) and getattr(tensors.get(key.removesuffix(ending)), "dtype", "") in FLOAT8
        for ending in SCALES
    )


def _write_config(folder: Path, staged: Path) -> None:
    """Write the config of what is open now."""
    config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for part in parts:
        part.pop("quantization_config", None)
        if "torch_dtype" in part or "dtype" in part:
            part["dtype"] = "bfloat16"
            part.pop("torch_dtype", None)
    config["dtype"] = "bfloat16"
    (staged / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
