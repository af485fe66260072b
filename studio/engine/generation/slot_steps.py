"""Steps in which each of some slots grows by a token, recorded as CUDA graphs: the device finds the next token alone.

A step of an 8-billion model is some 500 launches and 4 ms of reading weights, which Python cannot launch in that time.
Tokens, lengths, pages, seeds and temperatures lie in buffers of the device, where the recorded step reads them and
leaves the next one's; so one is under way while what the last one drew is read. Numbers of slots and of pages are
rounded up to sizes, and each size is recorded when it is met for the second time. Slots without a sequence have the
length 0: they read and keep nothing. Nothing here waits for the device but Drawn.read().
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from studio_kernels.dispatch import ERRORS
from torch import Tensor

from studio.engine.oom_fallback import is_out_of_memory
from studio.models.decoder.cached_rows import PageArena, SlotRows
from studio.models.decoder.host_to_device import Staging, count_bytes
from studio.models.decoder.live_decoder import LiveDecoder

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
MOST_SLOTS = SIZES[-1]
LEAST_PAGES = 8
"""Of a slot's row of the block table."""
NEEDED = ("decode_attention", "write_pages", "token_sampler")
"""The ops that read on the device what a step hangs on."""


@dataclass(frozen=True, slots=True)
class GrowingSlot:
    """A sequence that is to grow: its last token, of which no key is kept yet, and where the others lie."""

    token: int
    length: int
    """Tokens, the last one included."""
    pages: Sequence[int]
    temperature: float
    seed: int


@dataclass(slots=True)
class _Size:
    """One number of slots and of pages, with the buffers of its step."""

    tokens: Tensor
    """(S,) int64 the last token of each slot; afterwards the one that was drawn."""
    seeds: Tensor
    """(S,) int64"""
    lengths: Tensor
    """(S,) int32"""
    table: Tensor
    """(S, pages) int32"""
    temperatures: Tensor
    """(S,) fp32"""
    held: Tensor
    """What all of these lie in."""
    graph: torch.cuda.CUDAGraph | None = None
    rows: SlotRows | None = None
    """What the recorded step reads beside: rotary tables are made anew for longer sequences, and these must stay."""
    results: tuple[Tensor, ...] = ()
    """Logits (S, V) fp32, drawn tokens (S,) int64 and their log-probabilities (S,) fp32 of the step."""


@dataclass(slots=True)
class Drawn:
    """What a step drew, on its way to the host."""

    count: int
    tokens: Tensor
    scores: Tensor
    arrived: torch.cuda.Event | None

    def read(self) -> list[tuple[int, float]]:
        """Wait for each slot's token and its log-probability."""
        if self.arrived is not None:
            self.arrived.synchronize()
        tokens, scores = self.tokens[: self.count].tolist(), self.scores[: self.count].tolist()
        return list(zip(tokens, scores, strict=True))


@dataclass(slots=True)
class SlotSteps:
    """Steps of `decoder` over `arena`. Whoever uses it says by load() who grows, and by launch() that all do."""

    decoder: LiveDecoder
    arena: PageArena
    _sizes: dict[tuple[int, int], _Size] = field(default_factory=dict)
    _now: _Size | None = None
    _count: int = 0
    _pool: tuple | None = None
    _records: bool = True
    """Whether steps are recorded; not once a recording has failed."""
    _staging: Staging | None = None

    @staticmethod
    def suits(decoder: LiveDecoder) -> bool:
        """Return whether steps need nothing but the device: its kernels read tables and lengths there."""
        names = decoder.kernels.implementations
        if decoder.routed and names["grouped_matmul"] != "triton":
            return False
        return decoder.device.type == "cuda" and all(names[op] == "triton" for op in NEEDED)

    def load(self, slots: Sequence[GrowingSlot]) -> None:
        """Let these grow from here on, in the order of `slots`, at most MOST_SLOTS. Raises torch.OutOfMemoryError."""
        count = next(size for size in SIZES if size >= len(slots))
        most = max(LEAST_PAGES, *(len(slot.pages) for slot in slots))
        width = 1 << (most - 1).bit_length()
        table = np.zeros((count, width), dtype=np.int32)
        for row, slot in enumerate(slots):
            table[row, : len(slot.pages)] = slot.pages
        spare = count - len(slots)
        arrays = (
            np.array([slot.token for slot in slots] + [0] * spare, dtype=np.int64),
            np.array([slot.seed for slot in slots] + [0] * spare, dtype=np.int64),
            np.array([slot.length for slot in slots] + [0] * spare, dtype=np.int32),
            table.reshape(-1),
            np.array([slot.temperature for slot in slots] + [0.0] * spare, dtype=np.float32),
        )
        if self._staging is None:
            self._staging = Staging(self.decoder.device)
        size = self._sizes.get((count, width))
        if size is None:
            held = torch.zeros(count_bytes(arrays), dtype=torch.uint8, device=self.decoder.device)
            tokens, seeds, lengths, places, temperatures = self._staging.send(arrays, held)
            size = _Size(tokens, seeds, lengths, places.view(count, width), temperatures, held)
            self._sizes[count, width] = size
        else:
            self._staging.send(arrays, size.held)
        self._now, self._count = size, len(slots)

    def launch(self) -> Drawn:
        """Let every slot grow by a token. Raises torch.OutOfMemoryError, and what a kernel that fails raises."""
        self._step()
        _, tokens, scores = self._now.results
        if self.decoder.device.type != "cuda":
            return Drawn(self._count, tokens.clone(), scores.clone(), None)
        found = [torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in (tokens, scores)]
        for host, one in zip(found, (tokens, scores), strict=True):
            host.copy_(one, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Drawn(self._count, *found, arrived)

    def logits(self) -> Tensor:
        """Return the logits (slots, V) fp32 behind each slot's last token; the caller draws, and loads anew."""
        self._step()
        return self._now.results[0][: self._count].clone()

    def _step(self) -> None:
        size = self._now
        if size.graph is not None:
            size.graph.replay()
            return
        size.results = self._compute(size)
        if self._records and self.decoder.device.type == "cuda":
            self._record(size)

    @torch.inference_mode()
    def _compute(self, size: _Size) -> tuple[Tensor, ...]:
        decoder = self.decoder
        size.rows = decoder.lay_slots(self.arena, size.table, size.lengths)
        logits = decoder.logits(decoder.forward(size.tokens, size.rows))
        positions = size.lengths.long()
        tokens, scores = decoder.kernels.token_sampler.forward(
            logits, size.temperatures, size.seeds, positions
        )
        size.tokens.copy_(tokens)
        size.lengths.add_(size.lengths > 0)
        return logits, tokens, scores

    def _record(self, size: _Size) -> None:
        """Record the step of `size`, which has just been launched: kernels are loaded, libraries have chosen."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph, before = torch.cuda.CUDAGraph(), size.results
        try:
            # Other threads of the window may ask the driver for something meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = self._compute(size)
        except ERRORS as error:
            # It is launched each time: slower, and just as right.
            self._records = False
            if not is_out_of_memory(error):
                torch.cuda.synchronize()
            return
        for now, seen in zip(results, before, strict=True):
            now.copy_(seen)
        size.graph, size.results = graph, results
