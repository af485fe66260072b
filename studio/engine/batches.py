"""Which examples make up each optimizer step, how they are cut into micro-steps, and how they become tensors.

All pure functions of seed, step and lengths. B: rows of a micro-batch   S: padded length in tokens
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from studio.data.common_beginnings import count_once
from studio.data.sequence_packing import (
    Example,
    count_documents,
    document_starts,
    join_values,
    measure_lengths,
)
from studio.engine.objectives.objective import Objective, TokenObjective

PAD_MULTIPLE = {"cuda": 64, "cpu": 8}
"""Rows are padded to a multiple of this many tokens. On a GPU few lengths remain, so that kernels and libraries that
prepare themselves for each length do so early; a processor would only compute more."""

MEASURED_STEPS = 1000
"""Of so many steps the sizes are looked at before the first one, in some 30 ms: they stand for all."""
READ_STEPS = 200
"""The same where examples must be read for it."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    """The order of the examples: epochs are permutations drawn from (seed, epoch), steps are slices of them."""

    examples: int
    per_step: int
    """Examples in one optimizer step."""
    seed: int
    _drawn: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The permutation of the epoch asked for last: drawing one of 200,000 examples takes 3 ms."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the examples; the last one may hold fewer."""
        return math.ceil(self.examples / self.per_step)

    def indices(self, step: int) -> list[int]:
        """Return the example numbers of optimizer step `step`, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch not in self._drawn:
            self._drawn.clear()
            self._drawn[epoch] = np.random.default_rng([self.seed, epoch]).permutation(self.examples)
        return self._drawn[epoch][place * self.per_step : (place + 1) * self.per_step].tolist()


@dataclass(frozen=True, slots=True)
class RowSizes:
    """How large the rows of one optimizer step are, the longest first."""

    lengths: tuple[int, ...]
    """Tokens of each row."""
    documents: tuple[int, ...]
    """How many documents each row has."""
    longest: tuple[int, ...]
    """An upper bound for the tokens of each row's longest document."""
    shared: tuple[int, ...] = ()
    """Tokens of each row where its documents have what they share once; empty: nothing is shared."""

    @property
    def once(self) -> tuple[int, ...]:
        """How many tokens of each row are computed."""
        return self.shared or self.lengths


def measure_windows(
    order: StepOrder, examples: Sequence[Example], steps: int, sequences: int = 1
) -> list[RowSizes]:
    """Return the sizes of the rows of each of the first `steps` steps, of MEASURED_STEPS at most.

    `sequences`: so many documents of an example share what they begin with. From 2 on examples are read, of READ_STEPS.
    """
    all_lengths, all_documents = measure_lengths(examples), count_documents(examples)
    windows = []
    if sequences > 1:
        return [
            _read_sizes([examples[i] for i in order.indices(step)], sequences)
            for step in range(min(steps, READ_STEPS))
        ]
    for step in range(min(steps, MEASURED_STEPS)):
        rows = np.asarray(order.indices(step))
        rows = rows[np.argsort(-all_lengths[rows], kind="stable")]
        lengths, documents = all_lengths[rows].tolist(), all_documents[rows].tolist()
        # Of rows with several documents the longest is not known without reading them.
        windows.append(RowSizes(tuple(lengths), tuple(documents), tuple(lengths)))
    return windows


def _read_sizes(examples: Sequence[Example], sequences: int) -> RowSizes:
    rows = sorted(examples, key=lambda one: -len(one.token_ids))
    return RowSizes(
        tuple(len(one.token_ids) for one in rows),
        tuple(len(one.lengths) for one in rows),
        tuple(max(one.lengths) for one in rows),
        tuple(count_once(one, sequences) for one in rows),
    )


def cut_rows(
    lengths: Sequence[int], most_rows: int, own_tokens: int, most_tokens: float = math.inf
) -> list[int]:
    """Return how many rows each micro-batch takes of rows of these `lengths`, the longest first.

    Rows of a micro-batch are padded to its longest, and a micro-batch takes as long as `own_tokens` more: the cut with
    the least of both together, none of more than `most_rows` rows, or of several rows that make more than
    `most_tokens` with their padding. Found from the last row on; of equal cuts the one
    with the fewest micro-batches.
    """
    best: list[tuple[int, int, int]] = [
        (0, 0, 0)
    ]  # of the last i rows: tokens, micro-batches, rows of the first
    for first in reversed(range(len(lengths))):
        rest = len(lengths) - first
        best.append(
            min(
                (lengths[first] * rows + own_tokens + best[rest - rows][0], best[rest - rows][1] + 1, rows)
                for rows in range(1, min(most_rows, rest) + 1)
                if rows == 1 or lengths[first] * rows <= most_tokens
            )
        )
    sizes, left = [], len(lengths)
    while left:
        sizes.append(best[left][2])
        left -= sizes[-1]
    return sizes


def cut_stream(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Return which of the rows of these `lengths` (the longest first) go into one stream together.

    As few streams as `most_tokens` allows (a row that is longer by itself stands alone), as even as can be: each row
    goes to the shortest so far (Graham, 1969), which leaves the longest at most a third above the best.
    """
    count = max(1, -(-sum(lengths) // most_tokens))
    while True:
        streams: list[list[int]] = [[] for _ in range(count)]
        sizes = [0] * count
        for row, length in enumerate(lengths):
            place = min(range(count), key=sizes.__getitem__)
            streams[place].append(row)
            sizes[place] += length
        if count >= len(lengths) or max(sizes) <= most_tokens:
            return [stream for stream in streams if stream]
        count += 1


def cut_in_order(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Return which neighbours of rows of these `lengths` go into one stream together, in their order.

    As few streams as `most_tokens` allows (a row that is longer by itself stands alone), then as even as can be.
    """

    def fill(limit: int) -> list[list[int]]:
        streams: list[list[int]] = []
        size = limit
        for row, length in enumerate(lengths):
            if size + length > limit or not streams:
                streams.append([])
                size = 0
            streams[-1].append(row)
            size += length
        return streams

    longest, most = max(lengths), most_tokens
    fewest = len(fill(most))
    least = min(most, max(longest, -(-sum(lengths) // fewest)))
    while least < most:  # the smallest limit with which they are no more
        middle = (least + most) // 2
        least, most = (middle + 1, most) if len(fill(middle)) > fewest else (least, middle)
    return fill(most)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on its device."""

    input_ids: torch.Tensor
    """(B, S) int64"""
    attention_mask: torch.Tensor | None
    """(B, S) int64, or None when position ids mark packed documents"""
    position_ids: torch.Tensor
    """(B, S) int64; restart at 0 with each packed document"""
    picks: torch.Tensor
    """(N,) int64: flat positions whose next token is trained; found on the CPU so that no step waits for the GPU"""
    targets: torch.Tensor
    """(N,) int64: those next tokens"""
    entropies: torch.Tensor | None = None
    """(N,) float32, for the head to fill; None where nobody wants them"""


def collate(examples: Sequence[Example], pad_id: int, device: torch.device, multiple: int = 8) -> Batch:
    """Return `examples` as one Batch, padded on the right to a multiple of `multiple` tokens."""
    longest = max(len(example.token_ids) for example in examples)
    width = math.ceil(longest / multiple) * multiple
    packed = any(len(example.lengths) > 1 for example in examples)
    ids = np.full((len(examples), width), pad_id, dtype=np.int64)
    mask = np.zeros((len(examples), width), dtype=np.int64)
    positions = np.zeros((len(examples), width), dtype=np.int64)
    trained = np.zeros((len(examples), width), dtype=bool)
    for row, example in enumerate(examples):
        length = len(example.token_ids)
        ids[row, :length] = example.token_ids
        mask[row, :length] = 1
        trained[row, :length] = example.trained
        trained[row, document_starts(example)] = False
        start = 0
        for part in example.lengths:
            positions[row, start : start + part] = np.arange(part)
            start += part
        # Padding counts on from 0 as a document of its own, so that no packed document sees it.
        positions[row, length:] = np.arange(width - length)
    # Position t predicts token t + 1: the pick is one to the left of its target.
    rows, columns = np.nonzero(trained)
    flat = rows * width + columns
    return Batch(
        input_ids=torch.from_numpy(ids).to(device),
        attention_mask=None if packed else torch.from_numpy(mask).to(device),
        position_ids=torch.from_numpy(positions).to(device),
        picks=torch.from_numpy(flat - 1).to(device),
        targets=torch.from_numpy(ids.reshape(-1)[flat]).to(device),
    )


def pick_values(examples: Sequence[Example], objective: Objective) -> dict[str, np.ndarray]:
    """Return what `objective` wants to know of the tokens that count in `examples`: the fields of Picked, as arrays.

    The tokens stand in their order, as collate() and decoder_step.join() have them.
    """
    weighed = [(example, objective.weigh(example)) for example in examples] if _weighs(objective) else []
    known = [replace(example, weights=weights) for example, weights in weighed]
    wanted = {"weights": join_values(known, "weights", 1.0)} if known else {}
    wanted["reference"] = join_values(examples, "reference", 0.0)
    wanted["answers"] = join_values(examples, "answers", True, np.bool_)
    if all(values is None for values in wanted.values()) and isinstance(objective, TokenObjective):
        return {}
    trained = [example.trained.copy() for example in examples]
    for one, example in zip(trained, examples, strict=True):
        one[document_starts(example)] = False
    together = np.concatenate(trained)
    found = {name: values[together] for name, values in wanted.items() if values is not None}
    if not isinstance(objective, TokenObjective):
        lengths = [length for example in examples for length in example.lengths]
        found["counts"] = np.add.reduceat(together, np.cumsum([0, *lengths[:-1]]), dtype=np.int64)
    if examples[0].label is not None:
        found["labels"] = np.asarray([example.label for example in examples], dtype=np.bool_)
    drawn = [example.drawn for example in examples if example.drawn is not None]
    if drawn:
        found["advantages"] = np.asarray([one.advantage for one in drawn], dtype=np.float32)
        for name in ("old", "sampled"):
            values = [getattr(one, name) for one in drawn]
            if all(value is not None for value in values):
                found[name] = np.concatenate(values)[together]
    if examples[0].window is not None:
        found["window"] = np.asarray([examples[0].window], dtype=np.float32)
    return found


def part_documents(examples: Sequence[Example]) -> list[Example]:
    """Return each document of `examples` as an example of its own, in their order."""
    parts = []
    for example in examples:
        start = 0
        for length in example.lengths:
            stop = start + length
            parts.append(Example(example.token_ids[start:stop], example.trained[start:stop], (length,)))
            start = stop
    return parts


def _weighs(objective: Objective) -> bool:
    return isinstance(objective, TokenObjective) and type(objective).weigh is not TokenObjective.weigh
