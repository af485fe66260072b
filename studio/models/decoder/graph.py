"""Micro-steps recorded once as a CUDA graph and played again: small models no longer wait for Python's launches.

A 0.6-billion model on 1,024 tokens needs some 4 ms of arithmetic, and its 1,300 launches take Python 20 ms and more. A
graph is recorded for each number of rows (padded to a multiple of STEP_TOKENS) and of picks, when that comes for the
second time: the first micro-step of a shape is launched, on the same padded rows. Everything else that changes from
batch to batch lies in buffers that stay where they are: tokens, document starts, positions, picks, targets, the scale
and the dropout's seed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from studio_kernels.attention import Documents
from torch import Tensor

from studio.models.decoder.decoder import Decoder
from studio.models.decoder.layer import Rows
from studio.models.decoder.staging import Staging, count_bytes, split_rows

STEP_TOKENS = 256
STEP_DOCUMENTS = 16
MOST_GRAPHS = 32
"""Rows of real lengths come in some 20 shapes; a graph of a 0.6-billion model takes a few MB beside what all share."""
IGNORED = -100
"""A target without a loss; pads the picks."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A micro-step whose inputs lie on the device, where they may be exchanged."""

    decoder: Decoder
    inputs: Tensor
    """Bytes: token ids (T,), picks (N,), targets (N,), seed (1,) in int64, starts (D + 1,), positions (T,) in int32."""
    ids: Tensor
    rows: Rows
    picks: Tensor
    targets: Tensor
    scale: Tensor

    def launch(self) -> Tensor:
        """Take the step; returns the summed loss."""
        self.decoder.forget_opened()
        self.decoder.note_change()  # every layer takes its adapters over: that is recorded, too
        return self.decoder.add_gradients(self.ids, self.rows, self.picks, self.targets, self.scale)


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    prepared: _Prepared
    """What the graph reads: its memory must not go to others."""
    loss: Tensor


class GraphedDecoder:
    """Adds gradients like its decoder, by graphs; bound to the decoder's policy and kernels as they are now."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._graphs: OrderedDict[tuple, _Recorded] = OrderedDict()
        self._met: set[tuple] = set()
        self._pool = None
        self._staging = Staging(decoder.device)

    def add_gradients(
        self,
        token_ids: np.ndarray,
        lengths: Sequence[int],
        picks: np.ndarray,
        targets: np.ndarray,
        *,
        scale: Tensor,
        seed: int = 0,
    ) -> Tensor:
        """Add the gradients of `scale` times the summed loss; returns the sum, a () tensor that may be used again."""
        rows = -(-len(token_ids) // STEP_TOKENS) * STEP_TOKENS
        count = rows if len(picks) > 0.75 * rows else -(-max(1, len(picks)) // STEP_TOKENS) * STEP_TOKENS
        # Padding goes to the last document: what comes after a token does not change it.
        padded = [*lengths[:-1], lengths[-1] + rows - len(token_ids)]
        uniform = len(set(padded)) == 1
        documents = len(padded) if uniform else -(-len(padded) // STEP_DOCUMENTS) * STEP_DOCUMENTS
        longest = padded[0] if uniform else 1 << (max(padded) - 1).bit_length()
        key = (rows, count, documents, longest, uniform)
        starts, positions = split_rows(padded, documents)
        arrays = (
            _fill(token_ids, rows, 0),
            _fill(picks, count, rows - 1),  # a document's last token has no next one: never a pick of its own
            _fill(targets, count, IGNORED),
            np.array([seed], dtype=np.int64),
            starts,
            positions,
        )
        recorded = self._graphs.get(key)
        if recorded is None and key not in self._met:
            self._met.add(key)  # a shape that never comes again is not worth a recording
            return self._prepare(key, arrays, scale).launch()
        if recorded is None:
            recorded = self._record(key, arrays, scale)
        self._graphs.move_to_end(key)
        self._staging.send(arrays, recorded.prepared.inputs)
        recorded.prepared.scale.copy_(scale)
        recorded.graph.replay()
        return recorded.loss

    def _prepare(self, key: tuple, arrays: tuple[np.ndarray, ...], scale: Tensor) -> _Prepared:
        _, _, documents, longest, uniform = key
        held = torch.empty(count_bytes(arrays), dtype=torch.uint8, device=self.decoder.device)
        ids, picks, targets, seed, starts, positions = self._staging.send(arrays, held)
        known = Documents(
            lengths=(longest,) * documents,
            starts=starts,
            positions=positions,
            uniform=longest if uniform else None,
            longest=longest,
        )
        dropped = any(group.dropout for layer in self.decoder.layers for group in layer.groups)
        rows = self.decoder.make_rows(known, seed[0] if dropped else None)
        return _Prepared(self.decoder, held, ids, rows, picks, targets, scale.clone())

    def _record(self, key: tuple, arrays: tuple[np.ndarray, ...], scale: Tensor) -> _Recorded:
        decoder = self.decoder
        if len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        # What the launched step of this shape has left lying would stand beside the graph's own memory.
        torch.cuda.empty_cache()
        prepared = self._prepare(key, arrays, scale)
        state = decoder.store.gradients.clone()
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # The shape was launched before: kernels are loaded, libraries have chosen their ways.
        with torch.cuda.graph(graph, pool=self._pool):
            loss = prepared.launch()
        decoder.store.gradients.copy_(state)
        recorded = _Recorded(graph, prepared, loss)
        self._graphs[key] = recorded
        return recorded


def _fill(values: np.ndarray, count: int, rest: int) -> np.ndarray:
    """Return `values`, then `rest`, (count,) int64 together."""
    filled = np.full(count, rest, dtype=np.int64)
    filled[: len(values)] = values
    return filled
