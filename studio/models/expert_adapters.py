"""Adapters on the experts of a mixture: one of low rank for each matrix of a stack, in peft's own form.

peft adapts a parameter of three dimensions by its `target_parameters`: A (E R, in) and B (out, R E) stand for E
adapters of rank R, and are saved so. A stack in 4 bits is no parameter; here it stands in for one while peft looks, and
its wrapper then adds the adapter to each expert's product, where peft would add B A to all weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from transformers.quantizers.quantizers_utils import get_module_from_name

from studio.models.decoder.structure import CHOSEN_COUNTS, first_int, share_rank
from studio.models.nf4_experts import STACKS, Nf4Stack, is_experts, list_stacks

TAIL_PARTS = 3
"""Of a parameter's name as peft is given it: `mlp.experts.down_proj`."""


def list_expert_weights(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every stack of experts' matrices, in 4 bits or not, by its full name."""
    found = {}
    for name, module in model.named_modules():
        if is_experts(module) and module.has_gate:
            stacks = ((leaf, getattr(module, leaf, None)) for leaf in STACKS)
            found |= {f"{name}.{leaf}": tuple(stack.shape) for leaf, stack in stacks if stack is not None}
    return found


def name_targets(names: Sequence[str], others: Sequence[str] = ()) -> list[str]:
    """Return what peft is told to adapt the parameters `names`: their common ends, unless `others` end so, too."""
    ends = sorted({".".join(name.split(".")[-TAIL_PARTS:]) for name in names})
    unclear = any(other.endswith(f".{end}") for other in others for end in ends)
    return sorted(names) if unclear else ends


def read_rank(rank: int, model: nn.Module) -> int:
    """Return the rank of each expert's adapter in `model`; see share_rank()."""
    return share_rank(rank, first_int(model.config.get_text_config().to_dict(), *CHOSEN_COUNTS))


@contextmanager
def stacks_as_parameters(model: nn.Module) -> Iterator[None]:
    """Let peft see every 4-bit stack of `model` as a parameter of its shape inside, and adapt it as one."""
    stacks = [(*get_module_from_name(model, name), stack) for name, stack in list_stacks(model)]
    for holder, leaf, stack in stacks:
        delattr(holder, leaf)
        place = torch.empty((), dtype=stack.dtype, device=stack.packed.device).expand(stack.shape)
        holder.register_parameter(leaf, nn.Parameter(place, requires_grad=False))
    try:
        yield
    finally:
        for holder, leaf, stack in stacks:
            delattr(holder, leaf)
            holder.add_module(leaf, stack)
        holders = {id(holder) for holder, _, _ in stacks}
        for module in model.modules():
            if isinstance(module, ParamWrapper) and id(module.get_base_layer()) in holders:
                module.__class__ = StackWrapper


class StackWrapper(ParamWrapper):
    """peft's wrapper of a parameter, around a stack in 4 bits."""

    @contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        stack: Nf4Stack = getattr(self.get_base_layer(), self.parameter_name)
        before = stack.adapters
        stack.adapters = tuple(
            (*split_adapter(self, name), self.scaling[name])
            for name in active_adapters
            if name in self.lora_A
        )
        try:
            yield
        finally:
            stack.adapters = before


def split_adapter(wrapper: ParamWrapper, name: str) -> tuple[Tensor, Tensor]:
    """Return A (E, R, in) and B (E, out, R) of one of a wrapper's adapters."""
    a, b = wrapper.lora_A[name].weight, wrapper.lora_B[name].weight
    return split_a(a, wrapper.num_experts), split_b(b, wrapper.num_experts)


def split_a(a: Tensor, experts: int) -> Tensor:
    """Return A (E R, in) as peft holds it by expert, (E, R, in)."""
    return a.unflatten(0, (experts, -1))


def split_b(b: Tensor, experts: int) -> Tensor:
    """Return B (out, R E) likewise, (E, out, R): its expert is the faster index."""
    return b.unflatten(1, (-1, experts)).permute(2, 0, 1)
