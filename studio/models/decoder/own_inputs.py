"""What a model's own code gives a layer's mixer beside the rows: tables, masks, positions.

A mixer is what mixes a layer's tokens: attention of any kind, a state space, a convolution. Of one that the decoder
does not know, the arguments are asked for: the model's own decoder runs with listeners in the place of its layers, and
one layer with a listener in the place of its mixer. Nothing of the model is changed: the listeners stand in shallow
copies, which share all weights.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from studio_kernels.row_chunks import CHUNK
from studio_kernels.varlen import Documents
from torch import Tensor, nn

from studio.models import state_space
from studio.models.decoder.padded_rows import RowBlock, cut_blocks
from studio.models.delta_rule import has_delta_rule
from studio.models.state_space import has_state_space

PROBE_TOKENS = 5
Container = MutableMapping | MutableSequence
Given = dict[str, Any]
"""Arguments by their name."""


class PartListener(nn.Module):
    """Stands in for `part`, whose attributes it shows, and hands over what it is called with."""

    def __init__(self, part: nn.Module, hear: Callable[[Given], Any]) -> None:
        super().__init__()
        self.__dict__["part"], self.__dict__["hear"] = part, hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["part"], name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """See torch.nn.Module: returns the first argument, as a layer that adds nothing does."""
        heard = by_name(self.part, arguments, options)
        self.hear(heard)
        return next(iter(heard.values()))


class Heard(Exception):
    """Ends a call of which nothing more is needed."""


def by_name(module: nn.Module, arguments: tuple, options: Mapping[str, Any]) -> Given:
    """Return what `module` is called with, by the names of its arguments."""
    signature = inspect.signature(type(module).forward)
    bound = signature.bind(module, *arguments, **options).arguments
    found: Given = {}
    for name, value in list(bound.items())[1:]:
        more = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        found |= value if more else {name: value}
    return found


def replace_children(module: nn.Module, **children: nn.Module | None) -> nn.Module:
    """Return a shallow copy of `module` with other children."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = {**module._modules, **children}
    return twin


@torch.no_grad()
def ask_layers(decoder: nn.Module, x: Tensor, position_ids: Tensor | None = None) -> list[Given]:
    """Return what `decoder` gives each of its layers beside the rows, for embeddings like `x` (D, S, H)."""
    layers: Sequence[nn.Module] = list(decoder.layers)
    heard: list[Given] = []

    def hear(given: Given) -> None:
        heard.append(dict(list(given.items())[1:]))
        if len(heard) == len(layers):
            raise Heard

    listeners = nn.ModuleList(PartListener(layer, hear) for layer in layers)
    twin = replace_children(decoder, layers=listeners)
    try:
        type(decoder).forward(twin, inputs_embeds=x, position_ids=position_ids, use_cache=False)
    except Heard:
        pass
    return heard


@dataclass(frozen=True, slots=True)
class Wiring:
    """Where a mixer's arguments come from."""

    rows: str
    """The argument that takes the (normalised) rows."""
    passed: Mapping[str, str]
    """Argument -> that of the layer which is handed on."""
    fixed: Given
    """Arguments that are always the same."""

    def call(self, mixer: Callable, rows: Tensor, given: Given) -> Tensor:
        """Return the result (D, S, H) of `mixer` for `rows` in a layer that is `given` the rest."""
        passed = {name: _lend(given[source]) for name, source in self.passed.items()}
        result = mixer(**{self.rows: rows}, **passed, **self.fixed)
        return result[0] if isinstance(result, tuple) else result


def _lend(value: Any) -> Any:
    """Return `value`, a container as a copy: what a mixer leaves in it for another layer is not kept."""
    return copy.copy(value) if isinstance(value, Container) else value


@torch.no_grad()
def find_wiring(layer: nn.Module, name: str, given: Given, x: Tensor) -> Wiring | None:
    """Return how `layer`, given rows `x` (D, S, H) and the rest, calls its child `name`; None where that is unclear.

    Unclear is an argument that the layer makes itself, and a container in which the mixer misses what another layer
    leaves there: layers are computed again, each by itself.
    """
    heard: list[Given] = []

    def hear(call: Given) -> None:
        heard.append(call)
        raise Heard

    twin = replace_children(layer, **{name: PartListener(getattr(layer, name), hear)})
    try:
        type(layer).forward(twin, x, **given)
    except Heard:
        pass
    if len(heard) != 1:
        return None
    rows, passed, fixed = [], {}, {}
    for argument, value in heard[0].items():
        source = next((key for key, other in given.items() if other is value), None)
        if value is None and argument in given and given[argument] is None:
            # A window's mask is None for as few tokens as these, and with the fused attention for all that fit.
            passed[argument] = argument
        elif value is None or isinstance(value, (bool, int, float, str)):
            fixed[argument] = value
        elif source is not None:
            passed[argument] = source
        elif isinstance(value, Tensor) and value.shape == x.shape:
            rows.append(argument)
        else:
            return None
    if len(rows) != 1:
        return None
    wiring = Wiring(rows[0], passed, fixed)
    if any(isinstance(given[source], Container) for source in passed.values()):
        try:
            wiring.call(getattr(layer, name), x, given)
        except LookupError:
            return None
    return wiring


@dataclass(slots=True)
class OwnInputs:
    """Asks `decoder` what it gives its layers; the answer for the last stream of tokens is kept."""

    decoder: nn.Module
    hidden_size: int
    like: Tensor
    """Rows come to layers in its dtype, on its device: the embedding's weight."""
    _asked: tuple = ()
    _found: list[tuple[RowBlock, list[Given]]] = field(default_factory=list)

    def ask(
        self, documents: Documents, positions: Tensor, dtype: torch.dtype
    ) -> list[tuple[RowBlock, list[Given]]]:
        """Return the blocks of a stream, and what each layer is given with each of them.

        `positions` (T,) int32 are the documents' own, or others, which count on in every document.
        """
        asked = (documents, positions, dtype)
        known = len(self._asked) == len(asked) and all(
            a is b for a, b in zip(self._asked, asked, strict=True)
        )
        if not known:
            self._found = []
            for block in cut_blocks(documents):
                x = torch.empty(1, 1, 1, dtype=dtype, device=positions.device)
                x = x.expand(block.documents, block.length, self.hidden_size)
                own = positions is documents.positions
                given = ask_layers(self.decoder, x, None if own else block.positions(positions))
                self._found.append((block, given))
            self._asked = asked
        return self._found


@dataclass(frozen=True, slots=True)
class Mixer:
    """A mixer that the decoder does not know: the model's own module, and where its arguments come from."""

    module: nn.Module
    name: str
    number: int
    """Of its layer."""
    wiring: Wiring
    inputs: OwnInputs

    @property
    def window(self) -> int:
        """How many tokens it says that a token sees, 0 for all; of what we compute in chunks one, beyond it a state."""
        chunk = CHUNK if has_delta_rule(self.module) else 0
        chunk = chunk or (state_space.CHUNK if has_state_space(self.module) else 0)
        return int(getattr(self.module, "sliding_window", None) or chunk)

    @property
    def trained(self) -> tuple[nn.Parameter, ...]:
        """What is trained inside."""
        return tuple(p for p in self.module.parameters() if p.requires_grad)

    @property
    def unknown(self) -> str | None:
        """Which part keeps it from being trained here, None where none does: only LoRA's two matrices are."""
        for name, part in self.module.named_parameters():
            if part.requires_grad and not (".lora_A." in name or ".lora_B." in name):
                return f"{self.name}.{name}"
        for name, part in self.module.named_modules():
            # A layer is computed again in the backward pass, and would draw other numbers there.
            rates = [value for key, value in vars(part).items() if "dropout" in key and _is_number(value)]
            if (isinstance(part, nn.Dropout) and part.p) or any(rates):
                return f"{self.name}.{name}".rstrip(".") + " dropout"
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def read_mixer(layer: nn.Module, name: str, number: int, inputs: OwnInputs, given: Given) -> Mixer | None:
    """Return the child `name` of a layer as a Mixer, None where it is unclear what it is called with."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, PROBE_TOKENS, inputs.hidden_size, generator=generator)
    x = x.to(inputs.like.device, inputs.like.dtype)
    wiring = find_wiring(layer, name, given, x)
    return None if wiring is None else Mixer(getattr(layer, name), name, number, wiring, inputs)


def probe_layers(inputs: OwnInputs) -> list[Given]:
    """Return what each layer is given with a few tokens, as find_wiring() takes it."""
    like = inputs.like
    x = torch.zeros(1, PROBE_TOKENS, inputs.hidden_size, device=like.device, dtype=like.dtype)
    return ask_layers(inputs.decoder, x)
