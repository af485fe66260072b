"""What the layers of a model see while it reads real text: random states saturate trained attention, text does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from studio.models.decoder.own_inputs import by_name
from studio.models.decoder.spec import DecoderSpec
from studio.models.decoder.stream_form import lay_side_by_side

TEXTS = (
    "The old lighthouse keeper counted 1,482 steps every evening, and on 3 March 1997 he wrote: “Nothing but fog; "
    "two ships passed, one of them without lights.” Why nobody answered him is still argued about today. ",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if len(ordered) % 2:\n"
    '        return ordered[middle]\n    return 0.5 * (ordered[middle - 1] + ordered[middle])  # {"even": true}\n',
    "Die Züge fahren heute später. ¿Cuánto cuesta el billete, 12,50 € o más? 今天的天气很好，我们去公园散步吧。"
    " Привет, как дела? La réponse est: x² + 3x − 4 = 0, donc x = 1 ou x = −4. これは三つ目の文です。 ",
)
"""Prose, code and other languages; numbers and marks in each."""
LAYER_INPUT, LENT = "per_layer_input", "shared_kv_states"
"""What layers call their own input, and the keys and values that others have made."""
UNUSED = ("hidden_states", "past_key_values", "use_cache")
LENGTHS = (57, 23, 40)
"""Tokens of the documents in our stream; the model's own code reads as many rows of the longest length and one more."""


def sample_ids(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of TEXTS, without any control tokens."""
    return [tokenizer(words, add_special_tokens=False)["input_ids"] for words in TEXTS]


def make_ids(texts: Sequence[Sequence[int]] | None, vocabulary: int, tokens: int) -> Tensor:
    """Return (documents, tokens) int64 ids of `texts`, repeated where they are short; without texts drawn ones."""
    generator = torch.Generator().manual_seed(0)
    if texts is None or not all(texts):
        return torch.randint(0, vocabulary, (len(LENGTHS), tokens), generator=generator)
    rows = [torch.tensor(ids).repeat(-(-tokens // len(ids)))[:tokens] for ids in texts]
    return torch.stack(rows).remainder(vocabulary)


@dataclass(slots=True)
class LayerReading:
    """One forward pass of a model over (D, S) ids: what its parts were given."""

    ids: Tensor
    rotary: nn.Module | None
    inputs: list[Tensor] = field(default_factory=list)
    """(D, S, H) of each layer, (D, S, n H) where there are several streams, and at last that of the last norm."""
    options: list[dict[str, Any]] = field(default_factory=list)
    """What each layer was given besides."""
    calls: list[tuple[tuple, dict, tuple[Tensor, Tensor]]] = field(default_factory=list)
    """Arguments and results of the rotary module."""
    logits: Tensor | None = None
    """(D, S, V)"""


class Stream:
    """A Reading as documents of `lengths`, one behind the other: what follows in a row, a causal layer never sees."""

    def __init__(self, reading: LayerReading, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self.ids, self.inputs, self.logits = reading.ids, reading.inputs, reading.logits
        self.options = reading.options
        self._reading = reading

    def cut(self, rows: Tensor) -> Tensor:
        """Return (T, ...) of (D, S, ...)."""
        return torch.cat([row[:length] for row, length in zip(rows, self.lengths, strict=True)])

    def spread(self, stream: Tensor) -> Tensor:
        """Return (D, S, ...) of (T, ...), zeros behind each document."""
        rows = stream.new_zeros(*self.ids.shape, *stream.shape[1:])
        for row, document in zip(rows, stream.split(self.lengths), strict=True):
            row[: len(document)] = document
        return rows

    def options_at(self, positions: Tensor | None, dtype: torch.dtype) -> list[dict[str, Any]]:
        """Return what each layer is given, in `dtype`, where the rows stand at `positions` (D, S); None: as they do."""
        reading, found = self._reading, []
        tables = [_call_again(reading.rotary, call, positions, dtype) for call in reading.calls]
        for options in reading.options:
            given = {name: _cast(value, dtype) for name, value in options.items()}
            for call, table in zip(reading.calls, tables, strict=True):
                if _is_same(_first(options.get("position_embeddings")), _first(call[2])):
                    given["position_embeddings"] = table
            if positions is not None and given.get("position_ids") is not None:
                given["position_ids"] = positions
            found.append(given)
        return found


def find_window(streams: Sequence[Stream | None], config: Any, number: int) -> int:
    """Return the window that a layer's own mask shows in the longest of `streams`, or where no text exceeds it, that
    `config` names; 0 for none.
    """
    there = [stream for stream in streams if stream is not None]
    for stream in there:
        mask = stream.options[number].get("attention_mask")
        if isinstance(mask, Tensor) and mask.dim() == 4:
            row = mask[0, 0, -1]
            seen = int((row if row.dtype == torch.bool else row == 0).sum())
            if seen < row.numel():
                return seen
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds and "sliding" not in kinds[number]:
        return 0
    tokens = 0 if streams[0] is None else streams[0].ids.shape[1]
    # A window that a text would have exceeded and that its mask does not show is not there.
    return 0 if not window or window < tokens else window


def _is_same(table: Any, other: Tensor) -> bool:
    """Return whether a layer's `table` is `other`: of layers that borrow keys Gemma 4 cuts it, here to all its rows."""
    return table is other or (isinstance(table, Tensor) and torch.equal(table, other))


def _first(table: Any) -> Any:
    """Return the cosines of a rotary module's result, or all of it where that is one tensor (DeepSeek-V2)."""
    return table[0] if isinstance(table, tuple) else table


def _call_again(
    rotary: nn.Module, call: tuple[tuple, dict, Any], positions: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin in `dtype` of what the rotary module was asked for, at other positions where given."""

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            return value.to(dtype)
        if positions is None:
            return value
        # Qwen3.5 asks for those in a picture, too.
        return positions.expand(*value.shape[:-2], *positions.shape)

    arguments, options, _ = call
    with torch.no_grad():
        return rotary(*map(change, arguments), **{name: change(value) for name, value in options.items()})


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Mapping):  # keys and values for other layers: a layer adds to a container of its own
        return {name: tuple(_cast(one, dtype) for one in found) for name, found in value.items()}
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@torch.no_grad()
def read(model: nn.Module, spec: DecoderSpec, ids: Tensor, autocast: torch.dtype | None) -> LayerReading:
    """Return what the parts of `model` are given while it reads `ids` (D, S), each row a document of its own."""
    reading = LayerReading(ids, spec.rotary)
    with (
        _watched(spec, reading),
        torch.autocast(ids.device.type, dtype=autocast, enabled=autocast is not None),
    ):
        reading.logits = model(input_ids=ids, use_cache=False).logits
    return reading


@contextmanager
def _watched(spec: DecoderSpec, reading: LayerReading) -> Iterator[None]:
    """Write down inside what the layers, the last norm and the rotary module are given."""

    def note_layer(module: nn.Module, arguments: tuple, options: dict) -> None:
        given = by_name(module, arguments, options)
        reading.inputs.append(lay_side_by_side(given["hidden_states"]))
        reading.options.append({name: value for name, value in given.items() if name not in UNUSED})

    def note_norm(module: nn.Module, arguments: tuple) -> None:
        reading.inputs.append(arguments[0])

    def note_rotary(module: nn.Module, arguments: tuple, options: dict, result: Any) -> None:
        reading.calls.append((arguments, options, result))

    hooks = [
        *(layer.module.register_forward_pre_hook(note_layer, with_kwargs=True) for layer in spec.layers),
        spec.norm.module.register_forward_pre_hook(note_norm),
    ]
    if spec.rotary is not None:
        hooks.append(spec.rotary.register_forward_hook(note_rotary, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
