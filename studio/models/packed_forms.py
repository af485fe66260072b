"""Folders of fewer bits for servers and for Macs: FP8 and 4-bit integers as compressed-tensors has them, MLX's 4 bits.

    fp8     w = s_o q          q fp8 (e4m3), a scale for each output (Micikevicius et al. 2022, 2209.05433)
    w4a16   w = s_og q         q -8 to 7, a scale for each output and group of inputs
    mlx     w = s_og q + b_og  q 0 to 15, groups of 64

Scales of integers are searched: of several that fit, the one whose rounding costs least where the model's own inputs
count (importance), as the GGUF types are (models/gguf/quantize.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.json_file import read_json
from studio.models.gguf.write import open_folder
from studio.models.opened_folder import WeightShards

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

FP8_MOST = 448.0
"""The largest number of e4m3."""
GROUPS = (128, 64, 32)
GROUPS_A_ROW = 8
"""At least so many, where they are not smaller than 32: the demo's rows of 256 lose 0.032 nats in two of 128."""
MLX_GROUP = 64
TRIALS = range(-9, 11)
PART_VALUES = 2**23
"""Numbers packed at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedForm:
    """One way to store the matrices of a model."""

    name: str
    bits: float
    """A weight, with its scales."""
    pack: Callable[[torch.Tensor, torch.Tensor | None, int], Tensors]
    """Of a matrix (out, in) fp32, importance (in,) and inputs a group: tensors by what their names end with."""
    unpack: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    """The matrix again, fp32."""
    describe: Callable[[int], dict[str, Any]]
    """What config.json says, of groups of so many."""
    groups: tuple[int, ...] = (1,)
    """Sizes of groups that are tried, the largest first."""
    ends: bool = False
    """Whether embedding and head are packed, too."""


def choose_group(form: PackedForm, columns: set[int]) -> int:
    """Return the largest group that all rows are whole ones of, short rows several; 0 where there is none."""
    whole = [size for size in form.groups if all(one % size == 0 for one in columns)]
    several = [size for size in whole if size * GROUPS_A_ROW <= min(columns)]
    return (several or whole[-1:] or [0])[0]


def write_packed(
    source: Path,
    target: Path,
    form: PackedForm,
    names: Mapping[str, int],
    importance: Mapping[str, torch.Tensor],
    go_on: Callable[[], None] = lambda: None,
) -> None:
    """Write the weights of the folder `source` into `target`: matrices `names` (inputs of each) packed, others as is.

    importance: (in,) by the matrix's name; go_on: called before each weight, may raise. config.json is written, too;
    all else is the caller's. Raises OSError, and ValueError where no group divides all rows.
    """
    group = choose_group(form, set(names.values()))
    if not group:
        raise ValueError(f"rows of {sorted(set(names.values()))} are no whole groups")
    shards = WeightShards(target)
    with ExitStack() as stack:
        read = open_folder(source, stack)
        for name in _list_names(source):
            go_on()
            weight = read(name)
            if name not in names:
                shards.add(name, weight.contiguous())
                continue
            stem = name.removesuffix("weight")
            for end, one in _pack_parts(form, weight, importance.get(name), group).items():
                shards.add(stem + end, one)
    shards.finish()
    config = read_json(source / "config.json") | form.describe(group)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_packed(
    folder: Path, form: PackedForm, names: Mapping[str, int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a packed folder, matrices in fp32 as their numbers stand for."""
    with ExitStack() as stack:
        stored, give = _list_names(folder), open_packed(folder, form, names, open_folder(folder, stack))
        yield from ((name, give(name)) for name in names)
        packed = {name.removesuffix("weight")[:-1] for name in names}
        for name in stored:
            if name.rpartition(".")[0] not in packed or name.endswith(".bias"):
                yield name, give(name)


def open_packed(
    folder: Path, form: PackedForm, names: Collection[str], read: Callable[[str], torch.Tensor]
) -> Callable[[str], torch.Tensor]:
    """Return what gives a weight of a packed folder by its name, matrices in fp32; `read` gives its stored tensors."""
    parts: dict[str, list[str]] = {name.removesuffix("weight"): [] for name in names}
    for one in _list_names(folder):
        stem, dot, end = one.rpartition(".")
        if stem + dot in parts and end != "bias":
            parts[stem + dot].append(one)

    def give(name: str) -> torch.Tensor:
        stem = name.removesuffix("weight")
        if name not in names:
            return read(name)
        return form.unpack({one.removeprefix(stem): read(one) for one in parts[stem]})

    return give


def _list_names(folder: Path) -> list[str]:
    from studio.models.catalog import list_weights, read_header

    return [name for path in list_weights(folder) for name in read_header(path)]


def _pack_parts(
    form: PackedForm, weight: torch.Tensor, importance: torch.Tensor | None, group: int
) -> Tensors:
    import torch

    step = max(1, PART_VALUES // weight.shape[-1])
    parts = [
        form.pack(weight[start : start + step].float(), importance, group)
        for start in range(0, len(weight), step)
    ]
    whole = {end: torch.cat([part[end] for part in parts]) for end in parts[0]}
    if "weight_shape" in whole:
        whole["weight_shape"] = torch.tensor(weight.shape, dtype=torch.int64)
    return whole


def _weigh(x: torch.Tensor, importance: torch.Tensor | None, group: int) -> torch.Tensor:
    """Return how much an error of each number counts, (out, groups, group); as Q4_K has it."""
    parts = x.reshape(len(x), -1, group)
    if importance is None:
        return parts.square().mean(-1, keepdim=True).sqrt() + parts.abs()
    spread = 2 * x.square().mean(-1)[:, None, None]
    return importance.to(x.device).reshape(1, -1, group) * (spread + parts.square()).sqrt()


def _pack_fp8(x: torch.Tensor, importance: torch.Tensor | None, group: int) -> Tensors:
    import torch

    scale = (x.abs().amax(-1, keepdim=True) / FP8_MOST).clamp(min=1e-12).to(torch.bfloat16)
    q = (x / scale.float()).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale}


def _unpack_fp8(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return parts["weight"].float() * parts["weight_scale"].float()


def _search_scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the scale above 0 of each part (..., n) -> (..., 1) by which q from -8 to 7 loses least."""
    import torch

    top = x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    best, scale = torch.full_like(top, -1.0), top / 7
    for trial in TRIALS:
        q = torch.round(x * ((7.5 + 0.1 * trial) / top)).clamp(-8, 7)
        xq, qq = (w * x * q).sum(-1, keepdim=True), (w * q * q).sum(-1, keepdim=True)
        gain = torch.where(qq > 0, xq.square() / qq.clamp(min=1e-30), torch.zeros_like(qq))
        better = (gain > best) & (xq > 0)
        best = torch.where(better, gain, best)
        scale = torch.where(better, xq / qq.clamp(min=1e-30), scale)
    return scale


def _join_nibbles(q: torch.Tensor) -> torch.Tensor:
    """Return numbers 0 to 15 (out, in) as words (out, in / 8) int32, the lowest nibble first."""
    import torch

    eight = q.to(torch.int64).reshape(len(q), -1, 8)
    shifts = torch.arange(0, 32, 4, device=q.device)
    words = (eight << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _part_nibbles(words: torch.Tensor) -> torch.Tensor:
    import torch

    shifts = torch.arange(0, 32, 4)
    return ((words.to(torch.int64).unsqueeze(-1) >> shifts) & 15).reshape(len(words), -1)


def _pack_w4a16(x: torch.Tensor, importance: torch.Tensor | None, group: int) -> Tensors:
    import torch

    parts = x.reshape(len(x), -1, group)
    scale = _search_scale(parts, _weigh(x, importance, group)).to(torch.bfloat16)
    q = torch.round(parts / scale.float()).clamp(-8, 7).reshape(x.shape) + 8
    shape = torch.tensor(x.shape, dtype=torch.int64)
    return {
        "weight_packed": _join_nibbles(q),
        "weight_scale": scale[..., 0].contiguous(),
        "weight_shape": shape,
    }


def _unpack_w4a16(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    q = _part_nibbles(parts["weight_packed"]).float() - 8
    scale = parts["weight_scale"].float()
    return (q.reshape(*scale.shape, -1) * scale[..., None]).reshape(q.shape)


def _pack_mlx(x: torch.Tensor, importance: torch.Tensor | None, group: int) -> Tensors:
    import torch

    from studio.models.gguf.quantize import search_scale_and_min

    parts = x.reshape(len(x), -1, group)
    scale, least = search_scale_and_min(parts, _weigh(x, importance, group), 15)
    scale, bias = scale.clamp(min=1e-8).to(torch.bfloat16), (-least).to(torch.bfloat16)
    q = torch.round((parts - bias.float()[..., None]) / scale.float()[..., None]).clamp(0, 15)
    words = _join_nibbles(q.reshape(x.shape))
    return {"weight": words.view(torch.uint32), "scales": scale, "biases": bias}


def _unpack_mlx(parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    import torch

    q = _part_nibbles(parts["weight"].view(torch.int32)).float()
    scale, bias = parts["scales"].float(), parts["biases"].float()
    return (q.reshape(*scale.shape, -1) * scale[..., None] + bias[..., None]).reshape(q.shape)


def _describe_compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False} | weights}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": group | {"input_activations": inputs}},
        }
    }


FP8 = PackedForm(
    name="fp8", bits=8.1, pack=_pack_fp8, unpack=_unpack_fp8,
    describe=lambda group: _describe_compressed(
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel"},
        {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
    ),
)  # fmt: skip
W4A16 = PackedForm(
    name="w4a16", bits=4.2, pack=_pack_w4a16, unpack=_unpack_w4a16, groups=GROUPS,
    describe=lambda group: _describe_compressed(
        "pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}, None
    ),
)  # fmt: skip
MLX = PackedForm(
    name="mlx", bits=4.5, pack=_pack_mlx, unpack=_unpack_mlx, groups=(MLX_GROUP, 32), ends=True,
    describe=lambda group: dict.fromkeys(
        ("quantization", "quantization_config"), {"group_size": group, "bits": 4, "mode": "affine"}
    ),
)  # fmt: skip
FORMS = (FP8, W4A16, MLX)
