"""A model that computes in fp32 while its weights stay in their files: a layer's are read when it begins, and dropped.

What has no memory of its own is a placeholder: one zero, seen as the whole shape. In memory is one layer, or a table of
words; the arithmetic is that of the model with all its weights in fp32, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.quantizers.quantizers_utils import should_convert_module
from transformers.utils import logging as transformers_logging

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.models.catalog import list_weights, read_header
from studio.models.load import choose_attention, find_class, set_evaluation, set_origin
from studio.models.rope_scaling import scale_config
from studio.models.tokenizer import last_line

Read = Callable[[str], torch.Tensor]
"""Gives a weight by its name in the model, of any floating dtype."""
ZERO_BYTES = 4
"""What a placeholder takes."""


def draw_streamed(folder: Path, attention: str = "sdpa", rope: str = "") -> Any | None:
    """Return the model of `folder` in evaluation mode with placeholders for its weights; see stream().

    rope: how positions are stretched (rope_scaling.py). None for a model whose weights are not the folder's tensors by
    name, one for one: it has to be loaded as a whole. Raises StudioError for files that cannot be read.
    """
    transformers_logging.disable_progress_bar()
    shapes = {name: one.shape for path in list_weights(folder) for name, one in read_header(path).items()}
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if rope:
            scale_config(config, rope)
        cls = find_class(config)
        if cls is None or not shapes:
            return None
        config._attn_implementation = attention = choose_attention(config, cls, attention)
        model, report = cls.from_pretrained(
            None,
            config=config,
            state_dict={name: torch.zeros(()).expand(shape) for name, shape in shapes.items()},
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        what = text("model.load", name=folder.name)
        raise StudioError(what, literal(last_line(error)), text("model.load.fix")) from error
    set_origin(model, str(folder))
    set_evaluation(model)
    held = dict(model.named_parameters())
    stored = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    placed = all(one.untyped_storage().nbytes() == ZERO_BYTES for one in held.values())
    return (
        model if placed and held.keys() <= shapes.keys() and not (stored or report["missing_keys"]) else None
    )


def read_folder(folder: Path) -> Read:
    """Return what gives the weights of `folder` by name, mapped: a file is open as long as one of its weights lives."""
    places = {name: path for path in list_weights(folder) for name in read_header(path)}

    def give(name: str) -> torch.Tensor:
        with safe_open(places[name], framework="pt") as file:
            return file.get_tensor(name)

    return give


def stream(model: nn.Module, read: Read) -> None:
    """Let a drawn model compute with what `read` gives for its parameters' names, from now on."""
    names = {id(one): name for name, one in model.named_parameters()}
    for unit in _list_units(model):
        parameters = [(one, names[id(one)]) for one in unit.parameters()]
        if parameters:
            _fill_around(unit, parameters, read)


def _fill_around(unit: nn.Module, parameters: list[tuple[nn.Parameter, str]], read: Read) -> None:
    """Fill a unit's parameters while it computes."""
    table = type(unit) is nn.Embedding  # of a table a few rows are read: they are widened, not all
    empty = [one.data for one, _ in parameters]

    def fill(module: nn.Module, given: Any) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for one, name in parameters:
                one.data = read(name) if table else read(name).float()

    def drop(module: nn.Module, given: Any, found: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            for (one, _), placeholder in zip(parameters, empty, strict=True):
                one.data = placeholder
        return found.float() if table and isinstance(found, torch.Tensor) else None

    unit.register_forward_pre_hook(fill)
    unit.register_forward_hook(drop, always_call=True)


def _list_units(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the parts that are in memory one at a time: layers, and outside of them each module with weights."""
    stacks = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
    layers = max(stacks, key=len, default=())
    inside = {id(part) for layer in layers for part in layer.modules()}
    yield from layers
    for module in model.modules():
        if id(module) not in inside and next(module.parameters(recurse=False), None) is not None:
            yield module


def read_merged(model: nn.Module, read: Read) -> Read:
    """Return what gives the weights of a drawn `model`, whose linears have an adapter, with its corrections added.

    By peft's own merge of one linear, in fp32; what no adapter changes is given as it is read. Names are those before
    the adapter came.
    """
    layers = {name: one for name, one in model.named_modules() if isinstance(one, BaseTunerLayer)}

    @torch.no_grad()
    def give(name: str) -> torch.Tensor:
        place, _, leaf = name.rpartition(".")
        layer = layers.get(place)
        if layer is None:
            return read(name)
        base = layer.get_base_layer()
        own = dict(base.named_parameters(recurse=False))
        empty = {each: one.data for each, one in own.items()}
        try:
            for each, one in own.items():
                one.data = read(f"{place}.{each}").to(torch.float32, copy=True)
            layer.merge()
            return own[leaf].data
        finally:
            for each, one in own.items():
                one.data = empty[each]
            layer.merged_adapters.clear()

    return give


def read_nf4(model: nn.Module, read: Read) -> Read:
    """Return what gives the weights of a drawn `model` as NF4 stores and opens them (load.quantization_config)."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    kept = get_keys_to_not_convert(model)
    packed = {
        f"{name}.weight"
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and should_convert_module(name, kept)
    }

    def give(name: str) -> torch.Tensor:
        weight = read(name).float()
        if name not in packed:
            return weight
        return dequantize_4bit(
            *quantize_4bit(weight.contiguous(), compress_statistics=True, quant_type="nf4")
        )

    return give
