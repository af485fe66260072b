"""The keys of a GGUF header that belong to its architecture, asked for without its name in front."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from studio.core.errors import StudioError
from studio.models.gguf.decode import read_plain
from studio.models.gguf.header import GgufHeader, GgufTensor, refuse


class GgufKeys:
    """`keys["block_count"]` is the file's `llama.block_count`."""

    def __init__(self, header: GgufHeader) -> None:
        self.header = header

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """The file's tensors by llama.cpp's names."""
        return self.header.tensors

    @property
    def layers(self) -> int:
        """Blocks of the model, those not counted that only predict further tokens."""
        return int(self["block_count"]) - int(self.get("nextn_predict_layers", 0))

    def __contains__(self, name: str) -> bool:
        return f"{self.header.architecture}.{name}" in self.header.metadata

    def __getitem__(self, name: str) -> Any:
        """Return a key's value. Raises StudioError where the file lacks it."""
        if name not in self:
            raise self.refuse("key_missing", key=f"{self.header.architecture}.{name}")
        return shorten(self.header.metadata[f"{self.header.architecture}.{name}"])

    def get(self, name: str, default: Any = None) -> Any:
        """Return a key's value, `default` where the file lacks it."""
        return shorten(self.header.metadata.get(f"{self.header.architecture}.{name}", default))

    def read_one(self, name: str) -> int:
        """Return a number that all layers share, where a file may keep one a layer. Raises StudioError."""
        value = self[name]
        values = set(value) if isinstance(value, list) else {value}
        if len(values) != 1:
            raise self.refuse("layers_differ", key=f"{self.header.architecture}.{name}")
        return int(values.pop())

    def has(self, inner: str) -> bool:
        """Return whether any layer has a tensor `inner`, such as `attn_q.bias`."""
        return any(name.startswith("blk.") and name.endswith(f".{inner}") for name in self.tensors)

    def count(self, inner: str) -> int:
        """Return in how many of the model's layers there is a tensor `inner`."""
        return sum(f"blk.{number}.{inner}" in self.tensors for number in range(self.layers))

    def read_values(self, name: str) -> list[float]:
        """Return the numbers of a short tensor of plain numbers."""
        return read_plain(self.tensors[name])

    def refuse(self, part: str, /, **values: object) -> StudioError:
        """Return the StudioError that the texts gguf.PART say of this file."""
        return refuse(part, self.header.files[0].name, **values)


def shorten(value: Any) -> Any:
    """Return a number of 32 bits as the shortest decimal that is the same one: 1e-06, not 9.999999974752427e-07."""
    if not isinstance(value, float):
        return value
    kept = struct.pack("<f", value)
    shorter = (float(f"{value:.{digits}g}") for digits in range(6, 10))
    return next((one for one in shorter if struct.pack("<f", one) == kept), value)
