"""A model that computes in fp32 while its weights stay in their files: a layer's are read when it begins, and dropped.

What has no memory of its own is a placeholder: one zero, seen as the whole shape. In memory is one layer, or a table of
words; the arithmetic is that of the model with all its weights in fp32, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft.tuners.lora.layer import ParamWrapper
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
from studio.models.converted_weights import ConvertedWeights
from studio.models.load import choose_attention, find_class, leave_one_core, set_evaluation, set_origin
from studio.models.rope_scaling import scale_config
from studio.models.row_turns import HELD, RowTurns
from studio.models.tokenizer import last_line

Read = Callable[[str], torch.Tensor]
"""Gives a weight by its name in the model, of any floating dtype."""
T = TypeVar("T")
ZERO_BYTES = 4
"""What a placeholder takes."""


def draw_streamed(folder: Path, attention: str = "sdpa", rope: str = "") -> Any | None:
    """Return the model of `folder` in evaluation mode with placeholders for its weights; see stream().

    rope: how positions are stretched (rope_scaling.py). None for a model whose weights are not made of the folder's
    tensors alone (converted_weights.py): it has to be loaded as a whole. Raises StudioError for files that cannot be
    read.
    """
    leave_one_core()
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        if rope:
            scale_config(config, rope)
        cls = find_class(config)
        if cls is None:
            return None
        config._attn_implementation = attention = choose_attention(config, cls, attention)
        with torch.device("meta"):
            shapes = {name: one.shape for name, one in cls(config).named_parameters()}
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
    try:
        ConvertedWeights(model, folder)
    except (KeyError, ValueError, RuntimeError, NotImplementedError):
        return None  # transformers makes its weights of something else, or in a way that shapes alone do not tell
    return model if placed and not (stored or report["missing_keys"]) else None


def read_folder(model: nn.Module, folder: Path) -> Read:
    """Return what gives the weights of a drawn `model` by name from the files of `folder`, mapped.

    A file is open as long as one of its weights lives.
    """
    return ConvertedWeights(model, folder).read


def read_tensors(folder: Path) -> Read:
    """Return what gives the tensors of `folder` by their own names, likewise."""
    places = {name: path for path in list_weights(folder) for name in read_header(path)}

    def give(name: str) -> torch.Tensor:
        with safe_open(places[name], framework="pt") as file:
            return file.get_tensor(name)

    return give


def stream(model: nn.Module, read: Read, go_on: Callable[[], None] = lambda: None) -> None:
    """Let a drawn model compute with what `read` gives for its parameters' names, from now on.

    go_on: called before each part of the model; may raise.
    """
    names = {id(one): name for name, one in model.named_parameters()}
    held = HeldPart(go_on)
    for unit, parameters in _list_units(model):
        _Part(unit, [(one, names[id(one)]) for one in parameters], read).attach(held)
    setattr(model, HELD, held)


class HeldPart:
    """Which part of a streamed model has its weights in memory, and the rows that go through it together."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on, self._turns = go_on, RowTurns()
        self._together = False
        self._part: _Part | None = None
        self._depth = 0

    def compute(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each call, which goes through the model once, gives. Raises what a call raises."""
        self._together = True
        try:
            return self._turns.compute(calls)
        finally:
            self._together, self._depth = False, 0
            self._drop()

    def enter(self, part: _Part) -> None:
        """Fill a part that begins to compute, unless another row left it full."""
        if self._depth:  # what a part calls outside of itself has its weights beside it
            part.fill()
        else:
            if self._together:
                self._turns.pass_on()
            if self._part is not part:
                self._drop()
                self._go_on()
                part.fill()
                self._part = part
        self._depth += 1

    def leave(self, part: _Part) -> None:
        """Empty a part that has computed, or could not begin, unless the next row may want it."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            part.drop()
        elif not self._together:
            self._drop()

    def _drop(self) -> None:
        if self._part is not None:
            self._part.drop()
            self._part = None


class _Part:
    """Parameters that are in memory while one module computes."""

    def __init__(self, unit: nn.Module, parameters: list[tuple[nn.Parameter, str]], read: Read) -> None:
        self._unit, self._parameters, self._read = unit, parameters, read
        self._table = type(unit) is nn.Embedding  # of a table a few rows are read: they are widened, not all
        self._empty = [one.data for one, _ in parameters]

    def attach(self, held: HeldPart) -> None:
        """Let `held` hear when the module begins and ends."""

        def widen(module: nn.Module, given: Any, found: Any) -> Any:
            held.leave(self)
            return found.float() if self._table and isinstance(found, torch.Tensor) else None

        self._unit.register_forward_pre_hook(lambda module, given: held.enter(self))
        self._unit.register_forward_hook(widen, always_call=True)

    def fill(self) -> None:
        """Read the weights."""
        with torch.inference_mode(False), torch.no_grad():
            for one, name in self._parameters:
                one.data = self._read(name) if self._table else self._read(name).float()

    def drop(self) -> None:
        """Let the weights go."""
        with torch.inference_mode(False), torch.no_grad():
            for (one, _), placeholder in zip(self._parameters, self._empty, strict=True):
                one.data = placeholder


def _list_units(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Yield what is in memory one at a time, with its weights: layers, and outside of them what has weights itself.

    The latter with all inside of it that is no layer: it may use the weights of a part without calling that.
    """
    stacks = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
    layers = max(stacks, key=len, default=())
    inside = {id(part) for layer in layers for part in layer.modules()}
    taken = {id(one) for layer in layers for one in layer.parameters()}
    for layer in layers:
        if own := list(layer.parameters()):
            yield layer, own
    for module in model.modules():
        if id(module) in inside or next(module.parameters(recurse=False), None) is None:
            continue
        yield module, [one for one in module.parameters() if id(one) not in taken]
        inside |= {id(part) for part in module.modules()}


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
        while isinstance(layer, ParamWrapper) and layer.parameter_name != leaf:
            layer = layer.base_layer  # each adapts one parameter of the experts inside
        if not isinstance(layer, BaseTunerLayer):
            return read(name)
        own = dict(layer.get_base_layer().named_parameters(recurse=False))
        own = {leaf: own[leaf]} if isinstance(layer, ParamWrapper) else own
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


def read_nf4(model: nn.Module, read: Read, base: Path | None = None) -> Read:
    """Return what gives the weights of a drawn `model` as NF4 stores and opens them (load.quantization_config).

    base: the file of a run's `mixed` base (mixed_base.py), whose nibbles and 16-bit matrices go before.
    """
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    kept = get_keys_to_not_convert(model)
    packed = {
        f"{name}.weight"
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and should_convert_module(name, kept)
    }

    chosen = read_header(base) if base is not None else {}

    def give(name: str) -> torch.Tensor:
        if name in packed and name in chosen:  # in 16 bits
            return _read_tensor(base, name).float()
        weight = read(name).float()
        if name not in packed:
            return weight
        nibbles, state = quantize_4bit(weight.contiguous(), compress_statistics=True, quant_type="nf4")
        if (fitted := name.removesuffix(".weight") + ".packed") in chosen:
            nibbles.view(torch.uint8).view(-1).copy_(_read_tensor(base, fitted))
        return dequantize_4bit(nibbles, state)

    return give


def _read_tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
