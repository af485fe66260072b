"""Published folders whose weights are stored in 8 or 4 bits that nothing trains on: opened to bfloat16 folders.

Two forms, as their publishers write them:
- fp8 (DeepSeek, Qwen, Mistral): float8 with scales, one a block of 128 x 128, a row or a tensor; w = q * scale.
- integers with scales for groups of inputs (GPTQ, AWQ, compressed-tensors): stored_integers.py.
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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.models.opened_folder import SAMPLE_BYTES, SAMPLES, Report, WeightShards, name_opened, write_opened
from studio.models.stored_integers import Awq, CompressedIntegers, Get, Gptq, Tensors

if TYPE_CHECKING:
    import torch

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
OPENED = ("fp8", "mxfp4", "gptq", "awq", "compressed-tensors")
"""Methods (quant_method of a config) that are opened."""
VERSIONS = {
    "gptq": {f"{bits} bits, {version}, int32" for bits in (2, 3, 4, 8) for version in ("gptq", "gptq_v2")},
    "awq": {"4 bits, gemm"},
    "compressed-tensors": {"pack-quantized", "int-quantized", "float-quantized"},
}
"""What of a method is opened, where it has several forms."""
KEPT = (".json", ".jinja", ".model", ".txt", ".md")
"""Endings of the files beside the weights that go with them."""


class StoredForm(Protocol):
    """One form of stored weights."""

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """Return whether a tensor only says how a weight of this form, or what is multiplied with it, is scaled."""

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """Return the name of the weight that the tensor `key` holds the numbers of, None where it is of no such."""

    def shape(self, key: str, tensors: Tensors) -> tuple[int, ...] | None:
        """Return the opened weight's shape; None where the other tensors do not fit `key`."""

    def open(self, key: str, get: Get) -> torch.Tensor:
        """Return the weight in bfloat16."""


@dataclass(frozen=True, slots=True)
class Float8:
    """`NAME` in float8 with `NAME_scale_inv` or `NAME_scale`: one for all, one a `block`, or one a row."""

    block: tuple[int, int] | None = None

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """See StoredForm."""
        return key.endswith(OF_ACTIVATIONS) or any(
            key.endswith(ending) and getattr(tensors.get(key.removesuffix(ending)), "dtype", "") in FLOAT8
            for ending in SCALES
        )

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """See StoredForm."""
        return key if tensors[key].dtype in FLOAT8 else None

    def shape(self, key: str, tensors: Tensors) -> tuple[int, ...] | None:
        """See StoredForm."""
        scale = find_scale(key, tensors)
        fits = scale is not None and find_sizes(tensors[key].shape, tensors[scale].shape, self.block)
        return tensors[key].shape if fits else None

    def open(self, key: str, get: Get) -> torch.Tensor:
        """See StoredForm."""
        scale = next(found for ending in SCALES if (found := get(key + ending)) is not None)
        return open_float8(get(key), scale, self.block)


@dataclass(frozen=True, slots=True)
class MxFp4:
    """`NAME_blocks` with `NAME_scales`."""

    def is_part(self, key: str, tensors: Tensors) -> bool:
        """See StoredForm."""
        return key.endswith(BLOCK_SCALES) and key.removesuffix(BLOCK_SCALES) + BLOCKS in tensors

    def find_weight(self, key: str, tensors: Tensors) -> str | None:
        """See StoredForm."""
        whole = key.removesuffix(BLOCKS)
        return whole if whole != key and whole + BLOCK_SCALES in tensors else None

    def shape(self, key: str, tensors: Tensors) -> tuple[int, ...] | None:
        """See StoredForm."""
        *lead, rows, groups, half = tensors[key].shape
        return (*lead, groups * half * 2, rows)

    def open(self, key: str, get: Get) -> torch.Tensor:
        """See StoredForm."""
        return open_mxfp4(get(key), get(key.removesuffix(BLOCKS) + BLOCK_SCALES))


def name_form(settings: Mapping[str, Any]) -> str:
    """Return what a config's quantisation is called: one of OPENED where read_forms() knows it."""
    method = str(settings.get("quant_method", "unknown"))
    version = {
        "compressed-tensors": str(settings.get("format")),
        "gptq": f"{settings.get('bits')} bits, {settings.get('checkpoint_format') or 'gptq'}, "
        f"{settings.get('pack_dtype') or 'int32'}",
        "awq": f"{settings.get('bits', 4)} bits, {str(settings.get('version', 'gemm')).lower()}",
    }.get(method)
    known = version is None or version in VERSIONS[method]
    return method if known and _agree_on_bits(settings) else f"{method} ({version})"


def read_forms(config: Mapping[str, Any]) -> tuple[StoredForm, ...]:
    """Return the forms in which weights of a folder with this config may be stored."""
    settings = config.get("quantization_config", {})
    if settings.get("quant_method") == "gptq":
        return (Gptq(settings["bits"], 0 if settings.get("checkpoint_format") == "gptq_v2" else 1),)
    if settings.get("quant_method") == "awq":
        return (Awq(),)
    block = settings.get("weight_block_size")
    fits = (
        isinstance(block, list) and len(block) == 2 and all(isinstance(one, int) and one > 0 for one in block)
    )
    return (
        Float8((block[0], block[1]) if fits else None),
        MxFp4(),
        CompressedIntegers(next(iter(_list_bits(settings)), 4)),
    )


def _list_bits(settings: Mapping[str, Any]) -> set[int]:
    """Return the bits of the weights of all groups of compressed-tensors."""
    groups = settings.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    return {
        one["num_bits"] for one in weights if isinstance(one, dict) and isinstance(one.get("num_bits"), int)
    }


def _agree_on_bits(settings: Mapping[str, Any]) -> bool:
    return len(_list_bits(settings)) < 2


def list_opened_shapes(
    tensors: Tensors, name: str, forms: Sequence[StoredForm]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the opened weights of a folder `name`.

    Raises StudioError where a weight lacks its scales, or has others: what it is then worth nobody knows.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for key, weight, form in _list_weights(tensors, forms):
        shape = tensors[key].shape if form is None else form.shape(key, tensors)
        if shape is None:
            values = {"name": name, "tensor": key}
            raise StudioError(*(text(f"stored.no_scale{end}", **values) for end in ("", ".why", ".fix")))
        shapes[weight] = shape
    return shapes


def _list_weights(
    tensors: Tensors, forms: Sequence[StoredForm]
) -> Iterator[tuple[str, str, StoredForm | None]]:
    """Yield (tensor, weight, its form or None) of all weights; what only says how they are opened is left out."""
    found = {
        key: (weight, form)
        for form in forms
        for key in tensors
        if (weight := form.find_weight(key, tensors)) is not None
    }
    for key in tensors:
        if key in found:
            yield key, *found[key]
        elif not any(form.is_part(key, tensors) for form in forms):
            yield key, key, None


def find_scale(key: str, tensors: Tensors) -> str | None:
    """Return the name of a float8 weight's scales, None where there are none."""
    return next((key + ending for ending in SCALES if key + ending in tensors), None)


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
    forms = read_forms(parse_json((folder / "config.json").read_text(encoding="utf-8")))
    shapes = list_opened_shapes(tensors, name, forms)
    needed_bytes = 2 * sum(map(math.prod, shapes.values()))

    def write(staged: Path) -> bool:
        for file in folder.iterdir():
            if file.suffix in KEPT and file.name != "model.safetensors.index.json" and file.is_file():
                shutil.copyfile(file, staged / file.name)
        _write_config(folder, staged)
        shards = WeightShards(staged)
        for key, weight in open_tensors(paths, tensors, forms):
            if should_stop():
                return False
            shards.add(key, weight)
            report(shards.done_bytes, needed_bytes)
        shards.finish()
        return True

    return write_opened(find_opened(folder, paths), name, needed_bytes, write)


def open_tensors(
    paths: tuple[Path, ...], tensors: Tensors, forms: Sequence[StoredForm]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, weight) of all weights, those that were packed in bfloat16; parts of one may lie in other shards."""
    from safetensors import safe_open

    files = [safe_open(path, "pt") for path in paths]
    places = {key: file for file in files for key in file.keys()}

    def get(key: str) -> torch.Tensor | None:
        return places[key].get_tensor(key) if key in places else None

    for key, weight, form in _list_weights({key: tensors[key] for key in places}, forms):
        yield weight, get(key) if form is None else form.open(key, get)


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
