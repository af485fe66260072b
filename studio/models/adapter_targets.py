"""Which linear maps of a model get an adapter: every one of the language model that can carry it, by exact name.

peft's own "all-linear" sits on towers for pictures, fails on Mamba's output projections and on routers, and gives the
experts of some families a billion parameters while it skips those of others. Experts get one each, of a rank of their
own (expert_adapters.py).
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from studio.core.i18n import Text, text
from studio.models.expert_adapters import list_expert_weights, name_targets
from studio.models.language_model import (
    find_head,
    find_language_model,
    is_composite,
    is_outside,
    list_outside,
)
from studio.models.nf4_experts import list_stacks

ALL = "all-linear"
ROUTER = re.compile(r"(?:^|\.)[^.]*router[^.]*(?:\.|$)")
INDEXER = re.compile(r"(?:^|\.)[^.]*indexer[^.]*(?:\.|$)")
"""What chooses the tokens that sparse attention sees: the choice passes no gradient on."""
CROSS = ("cross_attn", "cross_attention")
"""What families call the part of a layer that reads pictures; without one the whole layer is passed over."""
GATES = ("gate", "wg", "gate_weight", "shared_expert_gate")
"""What families call the linear that chooses among the experts beside it."""
PEFT_REFUSES = frozenset({"out_proj", "conv1d"})
"""Where peft has a list of model types for it (tuners_utils.py, 0.21)."""
PEFT_REFUSED_TYPES = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})
LISTED = 6


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Matrices of the language model that get no adapter, for one reason: `router`, `expert`, `past` ..."""

    why: str
    names: tuple[str, ...]
    """Last names, each once."""
    share: float
    """Of the weights of the language model's matrices between embeddings and head."""

    def describe(self) -> Text:
        """Return it in words."""
        names = ", ".join(self.names[:LISTED]) + (", ..." if len(self.names) > LISTED else "")
        percent = f"{100 * self.share:.0f}" if self.share >= 0.1 else f"{100 * self.share:.2g}"
        return text("run.left_out", names=names, share=percent, reason=text(f"run.left_out.{self.why}"))


@dataclass(frozen=True, slots=True)
class Targets:
    """The linears that get an adapter, by their full names, and what does not."""

    names: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    experts: tuple[str, ...] = ()
    """The stacks of experts' matrices that get one for each, by the ends of their names."""


def find_targets(model: nn.Module, config: LoraConfig) -> Targets:
    """Return what "all-linear" means for `model` (without adapters). `config`: that of the adapter, without targets."""
    outside, ends = list_outside(model), _name_ends(model)
    crossing, shared = _list_crossing(model), list_shared(model)
    names: list[str] = []
    reasons: dict[str, str] = {}  # name of a module or parameter -> why it gets none
    modules = dict(model.named_modules())
    linear: dict[tuple[Any, ...], bool] = {}  # class and shape -> whether it computes what a linear does
    for name, module in modules.items():
        if name in ends or is_outside(name, outside) or not is_adaptable(module):
            continue
        if is_outside(name, crossing):
            reasons[name] = "pictures"
        elif name in shared:
            reasons[name] = "shared"
        elif why := _find_reason(name, modules, model.config.model_type):
            reasons[name] = why
        elif not _is_linear_map(module, linear):
            reasons[name] = "own_forward"
        else:
            names.append(name)
    rewritten = _find_rewritten(model, config, names)
    reasons |= dict.fromkeys(rewritten, "rewritten")
    chosen = tuple(name for name in names if name not in rewritten)
    stacks = list_expert_weights(model)
    mine = [name for name in stacks if not is_outside(name, outside)]
    if config.lora_dropout or config.use_dora:  # which peft cannot do with stacks
        mine = []
    experts = tuple(name_targets(mine, [name for name in stacks if name not in mine]))
    left_out = _sum_up(model, (*chosen, *mine), reasons, (*outside, *ends))
    return Targets(chosen, left_out, experts)


def list_shared(model: nn.Module) -> frozenset[str]:
    """Return the linears whose weight another linear holds, too: Zamba 2's blocks return in several layers.

    An adapter on each is a correction of its own, and merging adds them all to the one weight. Of the blocks' own
    adapters each layer calls one, and holds all.
    """
    holders: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        layer = module.get_base_layer() if isinstance(module, BaseTunerLayer) else module
        if is_adaptable(layer) and not name.endswith(".base_layer"):
            holders.setdefault(id(layer.weight), []).append(name)
    return frozenset(name for names in holders.values() if len(names) > 1 for name in names)


def restrict_targets(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the linears of a language model that peft's rule finds for `names`; `names` where that is all."""
    if not is_composite(model):
        return list(names)
    outside = list_outside(model)
    found = [
        name
        for name, module in model.named_modules()
        if is_adaptable(module)
        and not is_outside(name, outside)
        and any(name == one or name.endswith(f".{one}") for one in names)
    ]
    return found or list(names)


def is_adaptable(module: nn.Module) -> bool:
    """Return whether `module` is a linear that peft knows; bitsandbytes' are subclasses of PyTorch's."""
    return isinstance(module, nn.Linear | Conv1D)


@torch.no_grad()
def _is_linear_map(module: nn.Module, known: dict[tuple[Any, ...], bool]) -> bool:
    """Return whether a family's own subclass of a linear computes what a linear does: some take groups of the input.

    Falcon's does; DeepSeek-V4's grouped one does not, and a router that returns a tuple does not. `known`: what was
    found of its class in that shape. Of a model without weights a copy gets some.
    """
    own = type(module).forward is not nn.Linear.forward and type(module).__module__.startswith(
        "transformers.models"
    )
    if not own or not module.weight.is_floating_point():
        return True
    kind = type(module), module.weight.shape
    if kind not in known:
        known[kind] = _computes_linear(module)
    return known[kind]


def _computes_linear(module: nn.Module) -> bool:
    if module.weight.is_meta:
        module = copy.deepcopy(module).to_empty(device="cpu")
        for parameter in module.parameters():
            parameter.normal_(std=0.02)
    x = torch.ones(1, 1, module.in_features, dtype=module.weight.dtype, device=module.weight.device)
    try:
        found = module(x)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    expected = functional.linear(x, module.weight, module.bias)
    return (
        isinstance(found, torch.Tensor)
        and found.shape == expected.shape
        and torch.allclose(found, expected, rtol=0.01)
    )


def _name_ends(model: nn.Module) -> tuple[str, ...]:
    ends = [part for part in (model.get_input_embeddings(), find_head(model)) if part is not None]
    return tuple(name for name, module in model.named_modules() if any(module is end for end in ends))


def _list_crossing(model: nn.Module) -> tuple[str, ...]:
    """Return the layers of a model that reads pictures which compute nothing when there are none."""
    names = (name.rpartition(".") for name, _ in model.named_modules()) if is_composite(model) else ()
    return tuple(owner for owner, _, leaf in names if leaf in CROSS)


def _find_reason(name: str, modules: Mapping[str, nn.Module], model_type: str) -> str:
    """Return why the linear `name` can have no adapter; "" when it can."""
    owner, _, leaf = name.rpartition(".")
    parent = modules[owner]
    if ROUTER.search(name) or "Router" in type(modules[name]).__name__:
        return "router"
    if INDEXER.search(name):
        return "indexer"
    if leaf in GATES and any(True for inner, _ in parent.named_children() if "experts" in inner):
        return "router"
    if leaf in _read_weights(type(parent)):
        return "past"
    if leaf in PEFT_REFUSES and model_type in PEFT_REFUSED_TYPES:
        return "past"
    return ""


@lru_cache(maxsize=256)
def _read_weights(cls: type) -> frozenset[str]:
    """Return the linears whose weights a class of transformers reads past their forward, where no adapter is heard.

    Mamba's kernels take that of the output projection, Gemma 3n's AltUp those of its coefficients.
    """
    if not cls.__module__.startswith("transformers.models"):
        return frozenset()
    found = re.findall(
        r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|ndim|data\.dtype))", inspect.getsource(cls)
    )
    return frozenset(found)


def _find_rewritten(model: nn.Module, config: LoraConfig, names: Sequence[str]) -> set[str]:
    """Return those of `names` that peft takes for the experts' of files of an older transformers.

    In the families of its conversion table, an adapter on a dense layer's gate_proj would become one of all experts.
    """
    by_leaf: dict[str, list[str]] = {}
    for name in names:
        by_leaf.setdefault(name.rpartition(".")[2], []).append(name)
    found: set[str] = set()
    for group in by_leaf.values():
        trial = copy.copy(config)
        trial.target_modules = set(group)
        try:
            convert_peft_config_for_transformers(trial, model, None)
        except ValueError:  # one half of what is fused
            found |= set(group)
            continue
        found |= set(group) - set(trial.target_modules)
    return found


def _sum_up(
    model: nn.Module, chosen: Sequence[str], reasons: Mapping[str, str], skipped: Sequence[str]
) -> tuple[LeftOut, ...]:
    """Return what of the language model's matrices is left out, the largest share first."""
    taken, total = set(chosen), 0
    sizes: dict[str, int] = {}
    names: dict[str, dict[str, None]] = {}
    modules = dict(model.named_modules())
    inside = {id(parameter) for parameter in find_language_model(model).parameters()}
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        if id(parameter) not in inside or is_outside(owner, tuple(skipped)):
            continue
        shape = getattr(getattr(parameter, "quant_state", None), "shape", parameter.shape)
        if len(shape) < 2 or isinstance(modules[owner], nn.Embedding):
            continue
        total += math.prod(shape)
        if owner in taken or name in taken:
            continue
        why = reasons.get(owner) or ("expert" if len(shape) == 3 and shape[1] > 1 else "no_linear")
        if why == "no_linear" and (ROUTER.search(owner) or owner.rpartition(".")[2] in GATES):
            why = "router"
        sizes[why] = sizes.get(why, 0) + math.prod(shape)
        last = owner.rpartition(".")[2]
        names.setdefault(why, {})[last if leaf == "weight" else f"{last}.{leaf}"] = None
    for name, stack in list_stacks(model):
        if is_outside(name, tuple(skipped)):
            continue
        total += math.prod(stack.shape)
        if name not in taken:
            sizes["expert"] = sizes.get("expert", 0) + math.prod(stack.shape)
            names.setdefault("expert", {})[".".join(name.split(".")[-2:])] = None
    left = [LeftOut(why, tuple(names[why]), size / total) for why, size in sizes.items()]
    return tuple(sorted(left, key=lambda one: -one.share))
