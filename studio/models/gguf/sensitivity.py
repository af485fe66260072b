"""Which form each tensor of a GGUF file has, by what it loses: measured tensor by tensor, chosen for a size or a loss.

    every tensor alone in each form: KL of the next tokens on some of the run's own rows
    from Q8_0 everywhere, the step down that loses least for each byte that it saves, until the file fits

Losses of single tensors add up well down to the size of Q4_K_M; below it their sum misleads (measured on the demo: at
10 % less than Q4_K everywhere the choice is worse than that), so nothing smaller than Q4_K is chosen from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from studio.models.gguf.block_types import BlockType
from studio.models.gguf.file_tensors import FileTensor
from studio.models.gguf.quantize import quantize
from studio.models.gguf.tensor_types import BY_NAME, choose_types, get_mix
from studio.models.gguf.write import FilePlan

if TYPE_CHECKING:
    import torch

STEPS = ("Q8_0", "Q6_K", "Q5_K", "Q4_K")
"""From the most bits to the fewest."""
SHORT_STEPS = ("Q8_0", "Q5_1", "Q5_0")
"""Of rows that are no whole blocks of 256."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place on the curve: what a file takes, and what it is expected to lose."""

    size_bytes: int
    kl: float
    """Nats a token, as the sum of the tensors' own losses."""


@dataclass(frozen=True, slots=True)
class ChosenTypes:
    """What was chosen, and the way there, from Q8_0 down."""

    plan: FilePlan
    point: Point
    curve: tuple[Point, ...]


class TooSmall(Exception):
    """No file is so small, or loses so little; `size_bytes` is the smallest, or the largest that there is."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


def list_steps(tensor: FileTensor) -> tuple[str, ...]:
    """Return the forms that a tensor can have, the largest first; () where it keeps the one that it has."""
    columns = tensor.shape[-1]
    if columns % 256 == 0:
        return STEPS
    return SHORT_STEPS if columns % 32 == 0 else ()


def measure_losses(
    model: Any,
    plan: FilePlan,
    rows: Sequence[Sequence[int]],
    importance: Mapping[str, torch.Tensor],
    report: Callable[[int, int, Mapping[str, Mapping[str, float]]], None] = lambda done, total, losses: None,
    known: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, dict[str, float]]:
    """Return the mean KL by tensor and form, of tensors that are one weight of the model.

    model: in fp32, unchanged afterwards. importance: as for write_file(). report: told (tensors done, in all, what was
    found so far), may raise. known: what was found before.
    """
    import torch

    from studio.models.next_tokens import NextTokens

    weights = dict(model.named_parameters())
    measured = [
        one
        for one in _list_movable(plan)
        if len(one.sources) == 1 and one.sources[0] in weights and not one.part
    ]

    before = NextTokens(model, rows)
    names = {one.name for one in measured}
    losses = {name: dict(found) for name, found in known.items() if name in names}
    for tensor in measured:
        if tensor.name in losses:
            continue
        weight = weights[tensor.sources[0]]
        kept, forms = weight.detach().clone(), {}
        try:
            for form in list_steps(tensor):
                with torch.no_grad():
                    weight.copy_(_round_trip(kept, form, importance.get(tensor.name)))
                forms[form] = before.measure()
        finally:
            with torch.no_grad():
                weight.copy_(kept)
        losses[tensor.name] = forms
        report(len(losses), len(measured), losses)
    return losses


def choose(
    plan: FilePlan, losses: Mapping[str, Mapping[str, float]], *, size_bytes: int = 0, kl: float = math.inf
) -> ChosenTypes:
    """Return the plan with the types that lose least in `size_bytes`, or the smallest one that loses at most `kl`.

    Tensors that were not measured have six bits. Raises TooSmall.
    """
    movable = {one.name: one for one in _list_movable(plan)}
    types = dict(plan.types)
    for name, tensor in movable.items():
        steps = list_steps(tensor)
        types[name] = BY_NAME[steps[0] if name in losses else steps[1]]
    at = dict.fromkeys(losses, 0)
    plan = replace(plan, types=types)
    size, lost = plan.size_bytes, sum(one[list_steps(movable[name])[0]] for name, one in losses.items())
    curve = [Point(size, lost)]
    if lost > kl:
        raise TooSmall(size)

    def change(name: str, step: int) -> tuple[int, float]:
        """Return bytes saved and loss added by taking a tensor from its step to another."""
        tensor, steps = movable[name], list_steps(movable[name])
        saved = _count(tensor, steps[at[name]]) - _count(tensor, steps[step])
        return saved, losses[name][steps[step]] - losses[name][steps[at[name]]]

    while size > size_bytes:
        ways = [
            (max(added, 0.0) / saved, name, step, saved, added)
            for name in losses
            for step in range(at[name] + 1, len(list_steps(movable[name])))
            for saved, added in (change(name, step),)
            if lost + added <= kl and saved > 0
        ]
        if not ways:
            break
        _, name, step, saved, added = min(ways)
        at[name], size, lost = step, size - saved, lost + added
        curve.append(Point(size, lost))
    if size_bytes and size > size_bytes:
        raise TooSmall(size)
    while size_bytes:  # the last step may have saved more than was asked for: what fits is given back
        ways = [
            (-added / -saved, name, step, saved, added)
            for name in losses
            for step in range(at[name])
            for saved, added in (change(name, step),)
            if size - saved <= size_bytes and added < 0 > saved
        ]
        if not ways:
            break
        _, name, step, saved, added = max(ways)
        at[name], size, lost = step, size - saved, lost + added
    types |= {name: BY_NAME[list_steps(movable[name])[step]] for name, step in at.items()}
    return ChosenTypes(replace(plan, types=types), Point(size, lost), tuple(curve))


def _list_movable(plan: FilePlan) -> list[FileTensor]:
    """Return the tensors whose form can be chosen: those that a usual mix packs."""
    tied = not any(one.name == "output.weight" for one in plan.tensors)
    packed = choose_types(get_mix("Q8_0"), plan.tensors, tied=tied)
    return [one for one in plan.tensors if packed[one.name].name == "Q8_0" and list_steps(one)]


def _count(tensor: FileTensor, form: str) -> int:
    kind: BlockType = BY_NAME[form]
    size_bytes = math.prod(tensor.shape) // kind.values * kind.size_bytes
    return size_bytes + -size_bytes % 32


def _round_trip(weight: torch.Tensor, form: str, importance: torch.Tensor | None) -> torch.Tensor:
    """Return what a weight (rows, columns) is when it was packed and opened again.

    Rows are packed one by one, so it does not matter in which order a file has them.
    """
    import torch

    from studio.core.packages import import_package

    quants = import_package("gguf.quants", "gguf")
    rows = weight.reshape(-1, weight.shape[-1])
    packed = quantize(rows, form, importance.to(weight.device) if importance is not None else None)
    opened = quants.dequantize(packed.cpu().numpy(), quants.GGMLQuantizationType[form])
    return torch.from_numpy(opened).to(weight.device).reshape(weight.shape)
