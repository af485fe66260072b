"""Which examples make up each optimizer step, as a pure function of seed and step, and how they become tensors.

B: rows of a micro-batch   S: padded length in tokens
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from studio.data.pack import Example

PAD_MULTIPLE = {"cuda": 64, "cpu": 8}
"""Rows are padded to a multiple of this many tokens. On a GPU few lengths remain, so that kernels and libraries that
prepare themselves for each length do so early; a processor would only compute more."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    """The order of the examples: epochs are permutations drawn from (seed, epoch), steps are slices of them."""

    examples: int
    per_step: int
    """Examples in one optimizer step: micro-batch times accumulation."""
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


def count_trained(example: Example) -> int:
    """Return how many tokens of `example` are predicted with a loss; a document's first token never is."""
    trained = example.trained.copy()
    trained[document_starts(example)] = False
    return int(trained.sum())


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


def document_starts(example: Example) -> np.ndarray:
    """Return the place of each document's first token in `example`."""
    return np.cumsum((0, *example.lengths[:-1]))
