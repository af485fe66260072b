"""The tensors of a GGUF file as transformers names and lays them out, one after another."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from studio.models.gguf.decode import STORED, decode
from studio.models.gguf.families import FACTORS, NAMES, GgufFamily
from studio.models.gguf.family_changes import JOINED, RESHAPED, Shape
from studio.models.gguf.header import GgufTensor
from studio.models.gguf.keys import GgufKeys

if TYPE_CHECKING:
    import torch

LAYER = re.compile(r"blk\.(\d+)\.(.+)$")
EXACT = ("exp_probs_b.bias",)
"""What stays in fp32: a router's corrections decide between close scores, and transformers keeps them so."""
LAYER_NUMBER = re.compile(r"^model\.layers\.\d+\.")


def name_tensors(family: GgufFamily, keys: GgufKeys) -> dict[str, tuple[str, str]]:
    """Return llama.cpp's name -> (name inside a layer or of a whole model, transformers' name) of what the model has.

    A name with `{}` in it is that of one tensor an expert; `NAME#1` is the second part of NAME. Raises StudioError for
    a tensor that is not known.
    """
    known = NAMES | dict(family.names)
    found: dict[str, tuple[str, str]] = {}
    for name in keys.tensors:
        if name in FACTORS:
            continue
        match = LAYER.match(name)
        if match and int(match[1]) >= keys.layers:
            continue  # predicts further tokens: transformers has no such part
        inner = match[2] if match else name
        stem, _, kind = inner.rpartition(".")
        there = known.get(inner) or (f"{known[stem]}.{kind}" if stem in known else "")
        if not there:
            raise keys.refuse("tensor", tensor=name)
        found[name] = inner, f"model.layers.{match[1]}.{there}" if match else there
    return found


def list_shapes(family: GgufFamily, keys: GgufKeys) -> dict[str, Shape]:
    """Return the shape of every weight by transformers' name. Raises StudioError for a tensor that is not known."""
    shapes: dict[str, Shape] = {}
    first: dict[str, tuple[str, Shape]] = {}
    for name, (inner, there) in name_tensors(family, keys).items():
        reshape = RESHAPED.get(family.changes.get(inner), _keep)
        shape, (whole, _, part) = reshape(keys.tensors[name].shape), there.partition("#")
        if "{}" in there:
            shapes |= {there.format(number): shape[1:] for number in range(shape[0])}
        elif not part:
            shapes[whole] = shape
        elif whole in first:
            parts = dict([first[whole], (part, shape)])
            join = family.joins[LAYER_NUMBER.sub("", whole)]
            shapes[whole] = JOINED[join](parts.get("0", ()), parts.get("1", ()))
        else:
            first[whole] = part, shape
    return shapes


def _keep(shape: Shape) -> Shape:
    return shape


def choose_dtype(tensors: Mapping[str, GgufTensor]) -> str:
    """Return the name of the dtype of the opened weights: that of the matrices, bfloat16 for packed ones."""
    forms = {tensor.block_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
    kept = {STORED.get(form, "bfloat16") for form in forms}
    return kept.pop() if len(kept) == 1 else "bfloat16"


def open_tensors(
    family: GgufFamily,
    keys: GgufKeys,
    config: Mapping[str, Any],
    only: Collection[str] | None = None,
    *,
    wide: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (transformers' name, weight) of all weights; in memory is one tensor of the file, or the two that make one.

    only: names in the file of the tensors that are wanted, whole weights; None: all. wide: matrices' numbers in fp32,
    so that who widens them does not hold them twice.

    Vectors are changed in fp32 before they are rounded: a norm that is stored plus one has its digits there.
    """
    import torch

    dtype = getattr(torch, choose_dtype(keys.tensors))
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, (inner, there) in name_tensors(family, keys).items():
        if only is not None and name not in only:
            continue
        stored = keys.tensors[name]
        vector = len(stored.shape) == 1
        tensor = decode(stored, torch.float32 if vector else dtype, wide=wide)
        change = family.changes.get(inner)
        if change is not None:
            tensor = change(tensor, config)
        if vector or not wide:
            tensor = tensor.to(torch.float32 if inner in EXACT else dtype)
        whole, _, part = there.partition("#")
        if "{}" in there:
            yield from ((there.format(number), expert) for number, expert in enumerate(tensor))
        elif part:
            waiting = parts.setdefault(whole, {})
            waiting[part] = tensor
            if len(waiting) == 2:
                join = family.joins[LAYER_NUMBER.sub("", whole)]
                yield whole, join(waiting["0"], waiting["1"]).contiguous()
                del parts[whole]
        else:
            yield whole, tensor.contiguous()
    for whole in parts:
        raise keys.refuse("tensor", tensor=whole)
