"""Micro-steps recorded once as CUDA graphs and played again: small models no longer wait for Python's launches.

A 0.6-billion model on 1,024 tokens needs some 4 ms of arithmetic, and its 1,300 launches take Python 20 ms and more.
Two graphs are recorded for each of a few numbers of rows, the layers' forward pass and their backward pass; a stream
of documents is filled up to the next of these, by documents of which nothing is learned. Between the two the loss head
is launched as it is: its rows, the tokens that are learned, are another number each time, and its launches are few and
hidden behind the forward pass. What changes from batch to batch lies in buffers that stay where they are: tokens,
document starts, positions, the dropout's seed, and the gradient that comes out of the head; where documents share what
they begin with, also which row stands where (beginnings.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from studio_kernels.attention import Documents
from torch import Tensor

from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.beginnings import Beginnings, as_shared, begin_apart
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.host_to_device import Staging, count_bytes, split_rows
from studio.models.decoder.layer import SavedLayer
from studio.models.decoder.row_judge import RowJudge

PICK_STEP = 128
"""The head's rows are filled up to a multiple of this."""
IGNORED = -100
"""A target without a loss; fills up the picks."""
MOST_SIZES = 24
SIZE_STEP_TOKENS = 64
RECORDING_STEPS = 6
"""A recording takes about as long as so many micro-steps that are played: it is worth what it saves in filling up."""
MOST_FILLED_SHARE = 0.05
"""What filling up may take of all rows, whatever the recordings cost."""
EARLY_STEPS = 48
"""Micro-steps within which all is recorded; what was not met by then is filled up to what was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """The shapes of the micro-steps of a run, as they are recorded."""

    sizes: tuple[int, ...]
    """Numbers of rows, ascending."""
    documents: int
    """The most documents of a micro-step."""
    longest: int
    """Tokens of the longest document."""
    uniform: bool = False
    """Whether all documents are as long as the longest: then nothing is filled up."""
    spare: tuple[int, ...] = ()
    """Of each size: by how many places its documents written out have more than its rows; empty: nothing is shared."""
    rounds: int = 0
    """In how many documents beside its first a shared row stands at most."""

    def places(self, size: int) -> int:
        """Return how many places a stream of `size` rows is written out to."""
        return size + self.spare[self.sizes.index(size)] if self.spare else size


def choose_sizes(counts: Sequence[int], steps: int = 0) -> tuple[int, ...]:
    """Return the sizes that micro-steps of these `counts` of rows are filled up to.

    The last is the largest count; the others are those that leave least to fill up (found exactly, by dynamic
    programming over the counts), as many as pay for their recording in a run of `steps` micro-steps.
    """
    values, times = np.unique(
        -(-np.asarray(counts) // SIZE_STEP_TOKENS) * SIZE_STEP_TOKENS, return_counts=True
    )
    number, total = len(values), int((values * times).sum())
    before, rows = (np.concatenate([[0], np.cumsum(one)]) for one in (times, values * times))
    # filled[i, j]: what filling up the counts i..j - 1 to the last of them takes
    ends = np.concatenate([[0], values])
    filled = ends[None, :] * (before[None, :] - before[:, None]) - (rows[None, :] - rows[:, None])
    filled = np.where(np.arange(number + 1)[:, None] < np.arange(number + 1)[None, :], filled, np.inf)
    scale = max(1.0, (steps or len(counts)) / len(counts))
    recording = RECORDING_STEPS * total / len(counts)
    best = np.full(number + 1, np.inf)
    best[0] = 0.0
    paths, chosen, cheapest = [], (), np.inf
    for size in range(1, min(MOST_SIZES, number) + 1):
        costs = best[:, None] + filled
        paths.append(costs.argmin(0))
        best = costs.min(0)
        cost = scale * best[-1] + size * recording
        if cost < cheapest or best[-1] > MOST_FILLED_SHARE * total:
            cheapest, place, chosen = cost, number, ()
            for path in reversed(paths):
                chosen = (int(ends[place]), *chosen)
                place = path[place]
    return chosen


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A micro-step's inputs on the device, where they may be exchanged."""

    decoder: Decoder
    inputs: Tensor
    """Bytes: token ids (T,), seed (1,) in int64, starts (D + 1,), positions (E,) in int32, E = T where nothing is
    shared; else the rows' own positions (T,) in int32, and Beginnings.arrays, too."""
    ids: Tensor
    rows: BatchLayout
    dx: Tensor
    """(T, H + tail): where the head leaves the gradient of the last layer's result."""

    def forward(self) -> tuple[Tensor, list[SavedLayer]]:
        """Return the last layer's result (T, H), and what the layers keep."""
        self.decoder.forget_opened()
        self.decoder.store.version += 1  # every layer takes its adapters over: that is recorded, too
        return self.decoder.forward_layers(self.ids, self.rows)

    def backward(self, kept: list[SavedLayer]) -> None:
        """Add the gradients of layers and embedding."""
        self.decoder.backward_layers(self.dx, kept, self.rows, self.ids)


@dataclass(frozen=True, slots=True)
class _Recorded:
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    prepared: _Prepared
    """What the graphs read: its memory must not go to others."""
    x: Tensor
    """(T, H) what the forward pass leaves to the head."""


class GraphedDecoder:
    """Adds gradients like its decoder, by graphs; bound to the decoder's policy and kernels as they are now."""

    def __init__(self, decoder: Decoder, shapes: Shapes) -> None:
        self.decoder = decoder
        self.shapes = shapes
        self._recorded: dict[int, _Recorded] = {}
        self._steps = 0
        self._pool = None
        self._staging = Staging(decoder.device)
        self._dx = decoder.layers[-1].outer.widen_gradient(shapes.sizes[-1])

    @property
    def recorded(self) -> tuple[int, ...]:
        """The sizes that are recorded so far."""
        return tuple(sorted(self._recorded))

    def fit(self, lengths: Sequence[int], begun: Beginnings | None = None) -> int:
        """Return to which size documents of these lengths are filled up, 0 where they are better launched.

        The smallest that is recorded or may still be; at first one that is not yet, so that none is left for later.
        `begun`: where they share beginnings, what rows the stream has of them.
        """
        shapes, written = self.shapes, sum(lengths)
        tokens = written if begun is None else len(begun.own)
        rounds = 0 if begun is None else len(begun.again)
        if len(lengths) > shapes.documents or max(lengths) > shapes.longest or rounds > shapes.rounds:
            return 0
        if shapes.uniform:
            even = min(lengths) == shapes.longest and tokens in shapes.sizes
            return tokens if even and (tokens in self._recorded or self._steps < EARLY_STEPS) else 0
        # One place at least is left over: see beginnings.py.
        fitting = [
            size
            for size in shapes.sizes
            if size >= tokens and (not shapes.spare or shapes.places(size) - size > written - tokens)
        ]
        new = [size for size in fitting if size not in self._recorded]
        if self._steps >= EARLY_STEPS:
            return min((size for size in fitting if size in self._recorded), default=0)
        if new and self._steps >= EARLY_STEPS // 2:
            return new[0]
        return fitting[0] if fitting else 0

    def add_gradients(
        self,
        token_ids: np.ndarray,
        lengths: Sequence[int],
        picks: np.ndarray,
        targets: np.ndarray,
        *,
        size: int,
        scale: Tensor,
        judge: RowJudge | None = None,
        seed: int = 0,
        begun: Beginnings | None = None,
    ) -> Tensor:
        """Add gradients, and return the losses (N,), as Decoder.add_gradients() does.

        `size`: as fit() says. The first micro-step of a size is launched, and then recorded for the next ones.
        """
        self._steps += 1
        places, longest = self.shapes.places(size), self.shapes.longest
        filling = places - sum(lengths)
        padded = [
            *lengths,
            *([longest] * (filling // longest)),
            *([filling % longest] if filling % longest else []),
        ]
        documents = len(padded) if self.shapes.uniform else self.shapes.documents + -(-places // longest)
        starts, positions = split_rows(padded, documents)
        arrays = (_fill(token_ids, size, 0), np.array([seed], dtype=np.int64), starts, positions)
        if self.shapes.spare:
            whole = (begun or begin_apart(len(token_ids))).fill(size, places, self.shapes.rounds)
            arrays += (positions[whole.own], *whole.arrays)
        count, most = len(picks), -(-max(1, len(picks)) // PICK_STEP) * PICK_STEP
        # A document's last token has no next one: it is never a pick of its own.
        picked, words = self._staging.send((_fill(picks, most, size - 1), _fill(targets, most, IGNORED)))
        if scale.ndim:
            scale = F.pad(scale, (0, most - count), value=1.0)
        head = picked, words, scale, judge and _Padded(judge, count, most)
        recorded = self._recorded.get(size)
        if recorded is None:
            prepared = self._prepare(size, documents, arrays)
            x, kept = prepared.forward()
            losses, _ = self.decoder.apply_head(x, *head, out=prepared.dx)
            prepared.backward(kept)
            del x, kept
            self._recorded[size] = self._record(prepared)
            return losses[:count]
        self._staging.send(arrays, recorded.prepared.inputs)
        recorded.forward.replay()
        losses, _ = self.decoder.apply_head(recorded.x, *head, out=recorded.prepared.dx)
        recorded.backward.replay()
        return losses[:count]

    def _prepare(self, size: int, documents: int, arrays: tuple[np.ndarray, ...]) -> _Prepared:
        held = torch.empty(count_bytes(arrays), dtype=torch.uint8, device=self.decoder.device)
        ids, seed, starts, positions, *more = self._staging.send(arrays, held)
        longest = self.shapes.longest
        known = Documents(
            lengths=(longest,) * documents,
            starts=starts,
            positions=positions,
            uniform=longest if self.shapes.uniform else None,
            longest=longest,
            shared=as_shared(*more[1:]) if more else None,
        )
        dropped = any(group.dropout for layer in self.decoder.layers for group in layer.groups)
        rows = self.decoder.make_rows(known, seed[0] if dropped else None)
        if more:  # gathered from what the buffers hold now, they would stay those of this batch
            rows = replace(rows, positions=more[0])
        return _Prepared(self.decoder, held, ids, rows, self._dx[:size])

    def _record(self, prepared: _Prepared) -> _Recorded:
        # What the launched step of this size has left lying would stand beside the graphs' own memory.
        torch.cuda.empty_cache()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # The size was launched before: kernels are loaded, libraries have chosen their ways.
        with torch.cuda.graph(forward, pool=self._pool):
            x, kept = prepared.forward()
        with torch.cuda.graph(backward, pool=self._pool):
            prepared.backward(kept)
        return _Recorded(forward, backward, prepared, x)


class _Padded:
    """Asks a judge about the first `count` of a recorded size's `most` rows; the others count 0."""

    def __init__(self, judge: RowJudge, count: int, most: int) -> None:
        self._judge, self._count, self._most = judge, count, most
        self.wants_entropy = judge.wants_entropy

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        count = self._count
        found = self._judge(losses[:count], None if entropies is None else entropies[:count])
        return F.pad(found, (0, self._most - count))


def _fill(values: np.ndarray, count: int, rest: int) -> np.ndarray:
    """Return `values`, then `rest`, (count,) int64 together."""
    filled = np.full(count, rest, dtype=np.int64)
    filled[: len(values)] = values
    return filled
