"""Micro-steps recorded once as a CUDA graph and played again: small models no longer wait for Python's launches.

A 0.6-billion model on 1,024 tokens needs some 4 ms of arithmetic, and its 1,300 launches take Python 20 ms and more. A
graph is recorded for each number of rows (padded to a multiple of STEP_TOKENS) and of picks; everything else that
changes from batch to batch lies in buffers that stay where they are: tokens, document starts, positions, picks,
targets, the scale and the dropout's seed.
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

STEP_TOKENS = 256
STEP_DOCUMENTS = 16
MOST_GRAPHS = 12
IGNORED = -100
"""A target without a loss; pads the picks."""


@dataclass(slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    """int64: token ids (T,), picks (N,), targets (N,), seed (1,)"""
    places: Tensor
    """int32: starts (D + 1,) and positions (T,)"""
    scale: Tensor
    loss: Tensor
    held: tuple[object, ...]
    """What the graph reads and writes besides: its memory must not go to others."""


class GraphedDecoder:
    """Adds gradients like its decoder, by graphs; bound to the decoder's policy and kernels as they are now."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._graphs: OrderedDict[tuple, _Recorded] = OrderedDict()
        self._pool = None

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
        """Add the gradients of `scale` times the summed loss; returns the sum, a () tensor that is used again."""
        rows = -(-len(token_ids) // STEP_TOKENS) * STEP_TOKENS
        count = rows if len(picks) > 0.75 * rows else -(-max(1, len(picks)) // STEP_TOKENS) * STEP_TOKENS
        # Padding goes to the last document: what comes after a token does not change it.
        padded = [*lengths[:-1], lengths[-1] + rows - len(token_ids)]
        uniform = len(set(padded)) == 1
        documents = len(padded) if uniform else -(-len(padded) // STEP_DOCUMENTS) * STEP_DOCUMENTS
        longest = padded[0] if uniform else 1 << (max(padded) - 1).bit_length()
        key = (rows, count, documents, longest, uniform)
        inputs = np.zeros(rows + 2 * count + 1, dtype=np.int64)
        inputs[: len(token_ids)] = token_ids
        inputs[rows : rows + count] = (
            rows - 1
        )  # a document's last token has no next one: never a pick of its own
        inputs[rows : rows + len(picks)] = picks
        inputs[rows + count : rows + 2 * count] = IGNORED
        inputs[rows + count : rows + count + len(picks)] = targets
        inputs[-1] = seed
        places = np.full(documents + 1 + rows, rows, dtype=np.int32)
        places[: len(padded) + 1] = np.cumsum([0, *padded])
        places[documents + 1 :] = np.concatenate([np.arange(length, dtype=np.int32) for length in padded])
        recorded = self._graphs.get(key)
        if recorded is None:
            recorded = self._record(key, inputs, places, scale)
        self._graphs.move_to_end(key)
        recorded.inputs.copy_(torch.from_numpy(inputs).pin_memory(), non_blocking=True)
        recorded.places.copy_(torch.from_numpy(places).pin_memory(), non_blocking=True)
        recorded.scale.copy_(scale)
        recorded.graph.replay()
        return recorded.loss

    def _record(self, key: tuple, inputs: np.ndarray, places: np.ndarray, scale: Tensor) -> _Recorded:
        rows, count, documents, longest, uniform = key
        decoder, device = self.decoder, self.decoder.device
        if len(self._graphs) >= MOST_GRAPHS:
            self._graphs.popitem(last=False)
        held = torch.from_numpy(inputs).to(device)
        held_places = torch.from_numpy(places).to(device)
        held_scale = scale.clone()
        starts, positions = held_places[: documents + 1], held_places[documents + 1 :].clone()
        known = Documents(
            lengths=(longest,) * documents,
            starts=starts,
            positions=positions,
            uniform=longest if uniform else None,
            longest=longest,
        )
        ids, picks = held[:rows], held[rows : rows + count]
        targets, seed = held[rows + count : rows + 2 * count], held[-1]
        dropped = any(group.dropout for layer in decoder.layers for group in layer.groups)
        state = decoder.store.gradients.clone()

        def step() -> Tensor:
            positions.copy_(held_places[documents + 1 :])
            decoder.forget_opened()
            decoder.note_change()  # every layer takes its adapters over: that is recorded, too
            frame = decoder.make_rows(known, seed if dropped else None)
            return decoder.add_gradients(ids, frame, picks, targets, held_scale)

        # Once outside: kernels compile, libraries choose their ways and tables are made.
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            step()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = step()
        decoder.store.gradients.copy_(state)
        recorded = _Recorded(graph, held, held_places, held_scale, loss, (known, decoder.make_rows(known)))
        self._graphs[key] = recorded
        return recorded
