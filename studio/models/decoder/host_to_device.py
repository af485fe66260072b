"""The way of a micro-batch's arrays to the device: page-locked memory that is used again, one copy, no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ALIGNED_BYTES = 64
"""Each array begins at a multiple of this: kernels are compiled for addresses that are multiples of 16."""
SLOTS = 4
"""Copies that may be under way: with all of them in use, Python is so far ahead of the GPU that it can wait."""


@dataclass(slots=True)
class _Slot:
    memory: Tensor
    """(bytes,) uint8, page-locked"""
    copied: torch.cuda.Event
    """Comes when the last copy out of the memory is done."""


class Staging:
    """Sends arrays to one device. Page-locking costs 0.1 ms and more, so that memory is kept, and grows as needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._slots: list[_Slot] = []
        self._turn = 0

    def send(self, arrays: Sequence[np.ndarray], out: Tensor | None = None) -> list[Tensor]:
        """Return `arrays` (1-D) on the device, as parts of `out` (count_bytes(arrays),) uint8 where given.

        On a GPU without `out` they are parts of one new tensor, on a processor the arrays themselves.
        """
        if self.device.type != "cuda":
            sent = [torch.from_numpy(array).to(self.device) for array in arrays]
            return sent if out is None else [a.copy_(b) for a, b in zip(_cut(out, arrays), sent, strict=True)]
        size = count_bytes(arrays)
        if out is None:
            out = torch.empty(size, dtype=torch.uint8, device=self.device)
        slot = self._take(size)
        pack(arrays, slot.memory.numpy())
        out.copy_(slot.memory[:size], non_blocking=True)
        slot.copied.record(torch.cuda.current_stream(self.device))
        return _cut(out, arrays)

    def _take(self, size: int) -> _Slot:
        """Return a slot of at least `size` bytes, out of which nothing is copied any more."""
        if len(self._slots) < SLOTS:
            slot = _Slot(torch.empty(0, dtype=torch.uint8), torch.cuda.Event(blocking=True))
            self._slots.append(slot)
        else:
            slot = self._slots[self._turn]
            self._turn = (self._turn + 1) % SLOTS
            slot.copied.synchronize()
        if len(slot.memory) < size:
            slot.memory = torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True)
        return slot


def count_bytes(arrays: Sequence[np.ndarray]) -> int:
    """Return how many bytes `arrays` take together."""
    return sum(_round(array.nbytes) for array in arrays)


def pack(arrays: Sequence[np.ndarray], memory: np.ndarray) -> None:
    """Write `arrays` one after another into `memory` (bytes,) uint8."""
    place = 0
    for array in arrays:
        memory[place : place + array.nbytes].view(array.dtype)[:] = array
        place += _round(array.nbytes)


def _cut(memory: Tensor, arrays: Sequence[np.ndarray]) -> list[Tensor]:
    """Return the places of `arrays` in what pack() wrote."""
    parts, place = [], 0
    for array in arrays:
        dtype = torch.from_numpy(array[:0]).dtype
        parts.append(memory[place : place + array.nbytes].view(dtype))
        place += _round(array.nbytes)
    return parts


def _round(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


def split_rows(lengths: Sequence[int], documents: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return where documents of these `lengths` start, and T (int32), and each row's place in its document (T,) int32.

    The starts are (D + 1,), or (documents + 1,), filled up with T: documents without rows.
    """
    ends = np.cumsum(lengths, dtype=np.int32)
    starts = np.full(max(documents, len(lengths)) + 1, ends[-1], dtype=np.int32)
    starts[0] = 0
    starts[1 : len(lengths) + 1] = ends
    positions = np.arange(ends[-1], dtype=np.int32)
    positions -= np.repeat(starts[: len(lengths)], lengths)
    return starts, positions
