"""What layers keep, waiting for the backward pass in the machine's own memory, copied beside the arithmetic.

The copy out follows each layer's forward pass on a stream of its own; the copy back for a layer starts while the
layer above it is computed. Inputs alone (8 KB a token at 8 billion parameters) need 3 GB/s on a desktop card, 15 GB/s
on an H200; with the attention's results three times as much, and less the longer the rows. PCIe moves 12 to 55.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT_BYTES = 256


class Offload:
    """Keeps named tensors of some layers, each in a pinned block of host memory that grows as needed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._blocks: dict[int, _Block] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        # Also when nobody says so: memory that is given back while it is registered cannot be registered again.
        weakref.finalize(self, _give_back, self._blocks, self._stream)
        self._parts: dict[int, dict[str, Tensor]] = {}
        self._leaving: deque[tuple[dict[str, Tensor], torch.cuda.Event]] = deque()
        self._waiting: dict[int, tuple[dict[str, Tensor], torch.cuda.Event | None]] = {}

    def put(self, place: int, tensors: Mapping[str, Tensor]) -> None:
        """Begin to copy `tensors` out; their memory on the device may be given up at once."""
        parts = self._parts[place] = self._reserve(place, tensors)
        if self._stream is None:
            for name, tensor in tensors.items():
                parts[name].copy_(tensor)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for name, tensor in tensors.items():
                parts[name].copy_(tensor, non_blocking=True)
            event = self._stream.record_event()
        # Held until the GPU has copied them, in its own order: by record_stream their memory would be free once Python
        # sees that, which runs layers ahead, so that every layer would take new memory.
        self._leaving.append((dict(tensors), event))
        self._let_go(keep=1)

    def settle(self) -> None:
        """Let what comes next have the memory of all that is on its way out."""
        self._let_go(keep=0)

    def _let_go(self, keep: int) -> None:
        while len(self._leaving) > keep:
            _, event = self._leaving.popleft()
            event.wait(torch.cuda.current_stream(self.device))

    def fetch(self, place: int) -> None:
        """Begin to copy a layer's tensors back."""
        if place in self._waiting or place < 0:
            return
        parts = self._parts.pop(place)
        if self._stream is None:
            self._waiting[place] = {name: part.clone() for name, part in parts.items()}, None
            return
        found = {
            name: torch.empty(part.shape, dtype=part.dtype, device=self.device)
            for name, part in parts.items()
        }
        # The memory may just have been given up by work that is still to run on the current stream.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for name, tensor in found.items():
                tensor.copy_(parts[name], non_blocking=True)
            event = self._stream.record_event()
        self._waiting[place] = found, event

    def take(self, place: int) -> dict[str, Tensor]:
        """Return a layer's tensors, on the device."""
        self.fetch(place)
        found, event = self._waiting.pop(place)
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            event.wait(current)
            for tensor in found.values():
                tensor.record_stream(current)
        return found

    def drop(self) -> None:
        """Forget what a micro-step left that did not come to its end."""
        self.settle()
        self._parts.clear()
        self._waiting.clear()

    def release(self) -> None:
        """Give the host memory back; what waits in it is lost."""
        self.drop()
        _give_back(self._blocks, self._stream)

    def _reserve(self, place: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return where the tensors of a place go."""
        sizes = {name: -(-one.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for name, one in tensors.items()}
        needed, block = sum(sizes.values()), self._blocks.get(place)
        if block is None or block.memory.numel() < needed:
            if block is not None:
                _give_back({place: self._blocks.pop(place)}, self._stream)
            memory = torch.empty(needed, dtype=torch.uint8)
            block = self._blocks[place] = _Block(memory, self._stream is not None and _register(memory))
        start, parts = 0, {}
        for name, tensor in tensors.items():
            parts[name] = block.memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            start += sizes[name]
        return parts


@dataclass(frozen=True, slots=True)
class _Block:
    memory: Tensor
    pinned: bool


def _give_back(blocks: dict[int, _Block], stream: torch.cuda.Stream | None) -> None:
    """Let go of host memory once no copy is under way."""
    if stream is not None and blocks:
        stream.synchronize()
        for block in blocks.values():
            if block.pinned:
                torch.cuda.cudart().cudaHostUnregister(block.memory.data_ptr())
    blocks.clear()


def _register(block: Tensor) -> bool:
    """Let the GPU copy from and to host memory by itself; return whether the system allowed it.

    By hand, as torch's own allocator of such memory rounds up to a power of two, which may double it. Where the system
    does not allow that much (Windows and WSL have limits), the block stays ordinary memory: copies are slower, no more.
    """
    if not int(torch.cuda.cudart().cudaHostRegister(block.data_ptr(), block.nbytes, 0)):
        return True
    with suppress(
        RuntimeError
    ):  # the driver tells its last error to whoever asks next: nobody is to take it for theirs
        torch.zeros((), device="cuda").add_(1)
    return False
