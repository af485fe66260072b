"""The tensors of a folder as a GGUF file names and lays them out, one after another: tensors.py the other way round."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from studio.models.config_shapes import TOWER
from studio.models.gguf.families import NAMES, GgufFamily
from studio.models.gguf.family_changes import DONE, PARTED, RESHAPED, Shape
from studio.models.gguf.header import refuse

if TYPE_CHECKING:
    import torch

LAYER = re.compile(r"^model\.layers\.(\d+)\.(.+)$")
EXPERT = re.compile(r"\.experts\.(\d+)\.")
COMPOSITE = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""How the text side of a model that sees is named, and what it is called alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileTensor:
    """One tensor of a file to be, and what it is made of."""

    name: str
    """llama.cpp's."""
    inner: str
    """The same inside a layer."""
    sources: tuple[str, ...]
    """Names in the folder: one, or one an expert."""
    shape: Shape
    part: str = ""
    """Which part of its source it is: `0` or `1`, "" for all of it."""


def list_stored(
    family: GgufFamily, shapes: Mapping[str, Shape], config: Mapping[str, Any], file: str
) -> tuple[FileTensor, ...]:
    """Return the tensors of the file that holds a folder's weights of `shapes` by name, in the order of the layers.

    What reads pictures is left out. Raises StudioError for a weight that the family's file has no place for.
    """
    places = _invert(family)
    tied = bool(config.get("tie_word_embeddings"))
    grouped: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for name in shapes:
        plain = name_plainly(name)
        if plain is None or (tied and plain == "lm_head.weight"):
            continue
        match = LAYER.match(plain)
        inside = match[2] if match else plain
        expert = EXPERT.search(f".{inside}")
        pattern = EXPERT.sub(".experts.{}.", f".{inside}")[1:] if expert else inside
        stem, _, kind = pattern.rpartition(".")
        found = places.get(pattern) or [
            (f"{inner}.{kind}", part) for inner, part in places.get(stem, ()) if stem
        ]
        if not found:
            raise refuse("no_place", file, tensor=plain)
        for inner, part in found:
            key = (f"blk.{match[1]}.{inner}" if match else inner, inner, part)
            grouped.setdefault(key, []).append((int(expert[1]) if expert else 0, name))
    stored = []
    for (name, inner, part), members in grouped.items():
        sources = tuple(source for _, source in sorted(members))
        whole = shapes[sources[0]]
        whole = (len(sources), *whole) if "{}" in _find_pattern(family, inner) else whole
        stored.append(
            FileTensor(
                name=name, inner=inner, sources=sources, part=part,
                shape=_shape_stored(family, inner, whole, part, config),
            )
        )  # fmt: skip
    return tuple(sorted(stored, key=_order))


def name_plainly(name: str) -> str | None:
    """Return a weight's name as a model that only reads has it; None for what reads pictures or sound."""
    if TOWER.search(name):
        return None
    for front, plain in COMPOSITE:
        if name.startswith(front):
            return plain + name[len(front) :]
    return name


def build_stored(
    family: GgufFamily,
    stored: FileTensor,
    config: Mapping[str, Any],
    read: Callable[[str], torch.Tensor],
) -> torch.Tensor:
    """Return a tensor of the file from the folder's weights that `read` gives by name.

    In fp32 where it is changed, as it is stored where it is not: a table of words takes gigabytes.
    """
    import torch

    change = family.changes.get(stored.inner)
    weights = [read(source) for source in stored.sources]
    if stored.part or change is not None:
        weights = [one.float() for one in weights]
    if "{}" in _find_pattern(family, stored.inner):
        weight = torch.stack(weights)
    else:
        weight = weights[0]
    if stored.part:
        whole = (NAMES | dict(family.names))[stored.inner].partition("#")[0]
        weight = PARTED[family.joins[whole]](weight, config)[int(stored.part)]
    weight = DONE[change](weight, config) if change is not None else weight
    return weight.reshape(stored.shape).contiguous()


def _invert(family: GgufFamily) -> dict[str, list[tuple[str, str]]]:
    """Return transformers' name inside a layer -> the names in a file that it goes to, with the part of it."""
    found: dict[str, list[tuple[str, str]]] = {}
    own = dict(family.names)
    usual = {inner: there for inner, there in NAMES.items() if inner not in own}
    for inner, there in (usual | own).items():
        whole, _, part = there.partition("#")
        if not part:  # of two names for one weight the last is the family's own
            found[whole] = []
        found.setdefault(whole, []).append((inner, part))
    return found


def _find_pattern(family: GgufFamily, inner: str) -> str:
    named = NAMES | dict(family.names)
    return named.get(inner) or named.get(inner.rpartition(".")[0], "")


def _shape_stored(
    family: GgufFamily, inner: str, whole: Shape, part: str, config: Mapping[str, Any]
) -> Shape:
    """Return the shape that a weight has in the file."""
    import torch

    change = family.changes.get(inner)
    if not part and change not in RESHAPED:
        return whole
    empty = torch.empty(whole, device="meta")
    if part:
        joined = (NAMES | dict(family.names))[inner].partition("#")[0]
        empty = PARTED[family.joins[joined]](empty, config)[int(part)]
    return tuple(DONE[change](empty, config).shape) if change in DONE else tuple(empty.shape)


def _order(stored: FileTensor) -> tuple[int, int]:
    match = re.match(r"blk\.(\d+)\.", stored.name)
    return (1, int(match[1])) if match else (0 if stored.inner.startswith("token") else 2, 0)
