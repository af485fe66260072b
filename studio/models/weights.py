"""Reads the tensors of a model's files onto a graphics card by threads of their own, ahead of who asks for them.

transformers takes tensors out of a mapped file one after another: 2 to 3 GB/s, page by page. Here READERS threads copy
from the file into pinned memory and from there to the card, while libraries are imported and data is prepared.
"""

from __future__ import annotations

import math
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch

from studio.core.facts import ModelFacts
from studio.models.catalog import StoredTensor, list_weights, read_header

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
READERS = 4
BUFFER_BYTES = 32 * 2**20
"""Pinned, two for each reader: one is filled while the other goes to the card. Between two of them a reader asks for
Python's lock, which a thread that imports libraries hands over after 5 ms."""
WHOLE_SHARE = 0.5
"""Of the card's free memory: a model whose files take no more is read to its end, whoever takes it and when."""
AHEAD_BYTES = 2**30
AHEAD_SHARE = 0.125
"""Of the card's free memory, for a larger one: 4-bit weights are made of 16-bit ones, all of which may not fit."""


@dataclass(slots=True)
class Entry:
    """One tensor of a file: `waiting`, `reading`, then `read` (or `failed`) until it is `taken`."""

    name: str
    path: Path
    stored: StoredTensor
    state: str = "waiting"
    tensor: torch.Tensor | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Deferred:
    """Stands for a tensor in the state dict that transformers is given; `deferred[...]` is the tensor itself."""

    weights: Weights
    name: str

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        """Return the whole tensor on the device."""
        return self.weights.take(self.name)


class Weights:
    """The tensors of one model on their way to `device`; made by start_reading, ended by close()."""

    def __init__(self, entries: list[Entry], device: torch.device, ahead_bytes: int) -> None:
        """Start the readers: they hold at most `ahead_bytes` that nobody has taken yet, and one tensor each."""
        self.device = device
        self._entries = {entry.name: entry for entry in entries}
        self._order = iter(sorted(entries, key=lambda entry: _natural(entry.name)))
        self._ahead_bytes, self._held_bytes = ahead_bytes, 0
        self._change = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"weights-{number}", daemon=True)
            for number in range(READERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def held_bytes(self) -> int:
        """Return how much of the device the tensors take that are being read, or were and wait to be taken."""
        return self._held_bytes

    def state_dict(self) -> dict[str, Any]:
        """Return what PreTrainedModel.from_pretrained takes as `state_dict`: each tensor comes when it is asked for."""
        return {name: Deferred(self, name) for name in self._entries}

    def take(self, name: str) -> torch.Tensor:
        """Return a tensor and let go of it. One that no reader has begun is read here: who asks in another order than
        the readers' never waits for their turn. Raises OSError, or what CUDA raises.
        """
        entry = self._entries[name]
        with self._change:
            if entry.state in ("waiting", "taken"):
                entry.state, mine = "taken", True
            else:
                mine = False
                self._change.wait_for(lambda: entry.state != "reading")
                tensor, error = entry.tensor, entry.error
                entry.state, entry.tensor = "taken", None
                self._held_bytes -= entry.stored.size_bytes
                self._change.notify_all()
        if mine:
            return Copier(self.device).copy(entry.path, entry.stored)
        if error is not None:
            raise error
        return tensor

    def close(self) -> None:
        """End the readers and let go of what nobody took."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()
        untaken = [entry for entry in self._entries.values() if entry.tensor is not None]
        for entry in untaken:
            entry.tensor = None
        self._held_bytes = 0
        if untaken and self.device.type == "cuda":
            torch.cuda.empty_cache()  # of a run that was refused before it loaded anything

    def _next(self) -> Entry | None:
        """Return the next tensor to be read once there is room for it; None at the end."""
        with self._change:
            self._change.wait_for(lambda: self._closed or self._held_bytes < self._ahead_bytes)
            if self._closed:
                return None
            entry = next((one for one in self._order if one.state == "waiting"), None)
            if entry is not None:
                entry.state = "reading"
                self._held_bytes += entry.stored.size_bytes
            return entry

    def _work(self) -> None:
        copier = None
        while (entry := self._next()) is not None:
            try:
                copier = copier or Copier(self.device)
                entry.tensor = copier.copy(entry.path, entry.stored)
            except (OSError, RuntimeError) as error:  # told to who asks for this tensor
                entry.error = error
            with self._change:
                entry.state = "failed" if entry.error else "read"
                self._change.notify_all()


@dataclass(slots=True)
class Copier:
    """Copies one tensor after another from files to `device`, for one thread."""

    device: torch.device
    _buffers: list[torch.Tensor] = field(default_factory=list)
    _sent: list[Any] = field(default_factory=list)
    _stream: Any = None

    def copy(self, path: Path, stored: StoredTensor) -> torch.Tensor:
        """Return the tensor `stored` of the file `path`; it is whole when this returns. Raises OSError."""
        tensor = torch.empty(stored.shape, dtype=DTYPES[stored.dtype], device=self.device)
        if not stored.size_bytes:
            return tensor
        flat = tensor.view(-1).view(torch.uint8)  # (bytes,)
        with path.open("rb", buffering=0) as file:
            file.seek(stored.start_bytes)
            if self.device.type == "cpu":
                _fill(file, flat)
            else:
                self._send(file, flat)
        return tensor

    def _send(self, file: Any, flat: torch.Tensor) -> None:
        if not self._buffers:
            self._buffers = [torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._stream = torch.cuda.Stream(self.device)
            self._sent = [torch.cuda.Event() for _ in range(2)]
        # The allocator may hand out memory that work queued on the default stream still uses.
        self._stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(self._stream):
            for number, start in enumerate(range(0, len(flat), BUFFER_BYTES)):
                part = flat[start : start + BUFFER_BYTES]
                buffer = self._buffers[number % 2][: len(part)]
                self._sent[number % 2].synchronize()
                _fill(file, buffer)
                part.copy_(buffer, non_blocking=True)
                self._sent[number % 2].record(self._stream)
        self._stream.synchronize()


def read_ahead(facts: ModelFacts, device: str, share: float = 1.0) -> Weights | None:
    """Begin to read the weights of `facts.folder` to a graphics card; None where transformers is to read them itself.

    That is: on a processor, where its mapped files need no memory of their own, and for what is stored quantised.
    `share`: what the run may take of the card's free memory. Raises StudioError for a damaged file.
    """
    if not device.startswith("cuda") or facts.quantization != "none" or not facts.folder:
        return None
    return start_reading(facts.folder, device, share)


def start_reading(folder: str | Path, device: str, share: float = 1.0) -> Weights | None:
    """Begin to read the safetensors of `folder` to `device`; None where list_entries has none.

    Raises StudioError for a damaged file.
    """
    entries = list_entries(Path(folder))
    if not entries:
        return None
    place, ahead_bytes = torch.device(device), AHEAD_BYTES
    if place.type == "cuda":
        size_bytes = sum(one.stored.size_bytes for one in entries)
        ahead_bytes = count_ahead(size_bytes, int(share * torch.cuda.mem_get_info(place)[0]))
    return Weights(entries, place, ahead_bytes)


def count_ahead(size_bytes: int, free_bytes: int) -> int:
    """Return how many bytes of a model's `size_bytes` may lie unused on a card that has `free_bytes`."""
    if size_bytes <= WHOLE_SHARE * free_bytes:
        return size_bytes
    return min(AHEAD_BYTES, int(AHEAD_SHARE * free_bytes))


def list_entries(folder: Path) -> list[Entry]:
    """Return the tensors in the safetensors of `folder`; none where one has a dtype that is not in DTYPES.

    Raises StudioError for a damaged file.
    """
    entries: dict[str, Entry] = {}
    for path in list_weights(folder):
        for name, stored in read_header(path).items():
            dtype = DTYPES.get(stored.dtype)
            if dtype is None or math.prod(stored.shape) * dtype.itemsize != stored.size_bytes:
                return []
            entries[name] = Entry(name, path, stored)
    return list(entries.values())


def _fill(file: Any, flat: torch.Tensor) -> None:
    """Read bytes from `file` until `flat` (bytes, on the processor) is full."""
    view = memoryview(flat.numpy())
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise OSError(f"{file.name} is shorter than its header says")
        done += count


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Order names as transformers asks for them: layer 2 before layer 10."""
    parts = re.split(r"\.", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
