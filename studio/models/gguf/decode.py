"""Numbers out of a GGUF file's blocks, a part of a tensor at a time."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from studio.core.packages import import_package
from studio.models.gguf.header import GgufTensor

if TYPE_CHECKING:
    import torch

PART_VALUES = 2**24
"""Numbers decoded at once: 64 MiB in fp32, and some of that again while a form of few bits is opened."""
STORED = {"F32": "float32", "F64": "float32", "F16": "float16", "BF16": "bfloat16"}
"""PyTorch's dtype for a form of plain numbers; what is packed in blocks is opened to bfloat16."""


def read_plain(tensor: GgufTensor) -> list[float]:
    """Return the numbers of a tensor in fp32, such as a model's rotary factors. Raises ValueError for other forms."""
    if tensor.block_type.name != "F32":
        raise ValueError(f"{tensor.block_type.name} where fp32 is expected")
    with tensor.file.open("rb") as file:
        file.seek(tensor.start_bytes)
        return list(struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(tensor.size_bytes)))


def decode(tensor: GgufTensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers of `tensor` in `dtype`, its shape as PyTorch has it.

    Beyond the result it needs about PART_VALUES numbers in fp32 four times. Raises StudioError without the package
    gguf (MIT), which knows the blocks.
    """
    import torch

    rows, columns, start = math.prod(tensor.shape[:-1]), tensor.shape[-1], 0
    result = torch.empty((rows, columns), dtype=dtype)
    for part in decode_parts(tensor):
        result[start : start + len(part)] = part
        start += len(part)
    return result.reshape(tensor.shape)


def decode_parts(tensor: GgufTensor) -> Iterator[torch.Tensor]:
    """Yield the numbers of `tensor` as rows (rows, columns), about PART_VALUES at once: fp32, or as they are stored."""
    rows, columns = math.prod(tensor.shape[:-1]), tensor.shape[-1]
    row_bytes = columns // tensor.block_type.values * tensor.block_type.size_bytes
    step = max(1, PART_VALUES // columns)
    with tensor.file.open("rb") as file:
        file.seek(tensor.start_bytes)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            block = bytearray(count * row_bytes)
            if file.readinto(block) != len(block):
                raise OSError(f"{tensor.file.name} ends early")
            yield _open_rows(tensor, block, count, columns)


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
