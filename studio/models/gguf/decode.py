"""Numbers out of a GGUF file's blocks, a part of a tensor at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from studio.core.packages import import_package
from studio.models.gguf.header import GgufTensor

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
PART_VALUES = 2**21
"""Numbers that a processor decodes at once: 8 MiB in fp32, and that again a few times while a form is opened."""
STORED = {"F32": "float32", "F64": "float32", "F16": "float16", "BF16": "bfloat16"}
"""PyTorch's dtype for a form of plain numbers; what is packed in blocks is opened to bfloat16."""


def read_plain(tensor: GgufTensor) -> list[float]:
    """Return the numbers of a tensor in fp32, such as a model's rotary factors. Raises ValueError for other forms."""
    if tensor.block_type.name != "F32":
        raise ValueError(f"{tensor.block_type.name} where fp32 is expected")
    with tensor.file.open("rb") as file:
        file.seek(tensor.start_bytes)
        return list(struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(tensor.size_bytes)))


def decode(tensor: GgufTensor, dtype: torch.dtype, *, wide: bool = False) -> torch.Tensor:
    """Return the numbers of `tensor` in `dtype`, its shape as PyTorch has it; `wide`: these numbers in fp32.

    Beyond the result it needs about PART_VALUES numbers in fp32 four times for each processor. Raises StudioError
    without the package gguf (MIT), which knows the blocks.
    """
    import torch

    held = torch.float32 if wide else dtype
    result = torch.empty((math.prod(tensor.shape[:-1]), tensor.shape[-1]), dtype=held)

    def put(start: int, part: torch.Tensor) -> None:
        result[start : start + len(part)] = part.to(dtype)

    decode_parts(tensor, put)
    return result.reshape(tensor.shape)


def decode_parts(tensor: GgufTensor, work: Callable[[int, torch.Tensor], T]) -> list[T]:
    """Return work(first row, numbers) of each part of `tensor`, several at once, in their order.

    Numbers are rows (rows, columns), about PART_VALUES: in fp32, or as they are stored. Raises OSError.
    """
    from studio.models.processor_parts import compute_parts

    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    row_bytes = columns // tensor.block_type.values * tensor.block_type.size_bytes
    step = max(1, PART_VALUES // columns)

    def open_part(start: int) -> T:
        count = min(step, rows - start)
        block = bytearray(count * row_bytes)
        with tensor.file.open("rb") as file:
            file.seek(tensor.start_bytes + start * row_bytes)
            if file.readinto(block) != len(block):
                raise OSError(f"{tensor.file.name} ends early")
        return work(start, _open_rows(tensor, block, count, columns))

    if rows <= step:
        return [open_part(0)] if rows else []
    return compute_parts(open_part, range(0, rows, step))


def _open_rows(tensor: GgufTensor, block: bytearray, rows: int, columns: int) -> torch.Tensor:
    """Return `rows` rows of numbers out of their bytes."""
    import torch

    name = tensor.block_type.name
    if tensor.block_type.plain:
        dtype = torch.float64 if name == "F64" else getattr(torch, STORED[name])
        return torch.frombuffer(block, dtype=dtype).reshape(rows, columns)
    quants = import_package("gguf.quants", "gguf")
    import numpy as np

    packed = np.frombuffer(block, dtype=np.uint8).reshape(rows, -1)
    return torch.from_numpy(quants.dequantize(packed, quants.GGMLQuantizationType(tensor.block_type.number)))
