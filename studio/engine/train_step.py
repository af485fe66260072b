"""How a micro-batch's loss and gradients come about: by the model's own forward and autograd, or by the decoder."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch
from studio_kernels.adamw import Steps
from torch import Tensor

from studio.data.sequence_packing import Example, measure_lengths
from studio.engine.batches import (
    PAD_MULTIPLE,
    Batch,
    RowSizes,
    collate,
    cut_rows,
    part_documents,
    pick_values,
)
from studio.engine.objectives.objective import Objective, Picked, Terms
from studio.models.load import AUTOCAST_DTYPES
from studio.models.modules_to_save import list_freed
from studio.models.score_head import SCORE
from studio.planning.micro_batch import CPU_TOKENS

Scale = Callable[[Tensor], Tensor]
"""Multiplies a loss by the loss scale (1 where there is none)."""


class Step(Protocol):
    """Computes micro-batches of one model; what the optimizer changes are `decayed` and `undecayed`."""

    kind: str
    """A checkpoint's optimizer state fits steps of the same kind."""
    objective: Objective
    decayed: list[torch.nn.Parameter]
    """Matrices, to which weight decay applies."""
    undecayed: list[torch.nn.Parameter]
    """Norms and biases."""
    beside: list[torch.nn.Parameter]
    """Tables that are trained beside an adapter, at a rate of their own; weight decay applies."""
    beside_undecayed: list[torch.nn.Parameter]
    """Norms, likewise, without it."""
    adamw: Callable[[], Steps] | None
    """Gives the op that computes AdamW where all that is trained is one flat parameter; None elsewhere."""
    kernels: Mapping[str, str]
    """Op -> "triton" or "reference", of those that the step binds."""

    expects_sequences: int
    """How many documents of an example share what they begin with, for the sizes that expect() hears; 1: none do."""

    def expect(self, windows: Sequence[RowSizes], steps: int) -> None:
        """Hear how large the rows of the run's `steps` will be, or of the first of them."""

    def find_longest(self, examples: Sequence[Example]) -> int:
        """Return of how many tokens the longest row is that it computes for one of `examples`."""

    def order(self, examples: Sequence[Example]) -> list[int]:
        """Return in which order `examples`, by their numbers, are best computed a few at a time."""

    def cut(self, window: Sequence[Example], most_rows: int, longest_tokens: int) -> list[list[Example]]:
        """Return the rows of an optimizer step (the longest first) as its micro-steps.

        None of them needs more memory than `most_rows` rows of which `longest_tokens` are computed.
        """

    def measures(self, examples: Sequence[Example]) -> bool:
        """Return whether add_gradients() of these, all of a step, finds itself what the objective measures of them."""

    def clear(self) -> None:
        """Begin a window: no gradients, weights as they are now."""

    def add_gradients(self, examples: Sequence[Example], count: float, scale: Scale) -> Tensor:
        """Add the gradients of the scaled loss over `count`, what all examples of the optimizer step count.

        Returns sum_terms(), its loss divided by `count`.
        """

    def evaluate(self, examples: Sequence[Example]) -> Tensor:
        """Return sum_terms(), its loss undivided; to be called without gradients, in evaluation mode."""

    def log_probabilities(self, examples: Sequence[Example]) -> Tensor:
        """Return (N,) fp32, of each token that counts in its order; to be called like evaluate()."""


def sort_places(examples: Sequence[Example]) -> list[int]:
    """Return the numbers of `examples`, the longest first: they pad least, and memory that is short shows at once."""
    return sorted(range(len(examples)), key=lambda i: -len(examples[i].token_ids))


def sum_terms(terms: Terms, objective: Objective, count: float = 1.0) -> Tensor:
    """Return the loss over `count`, then sum and count of each of the objective's metrics: (1 + 2 M,) fp32."""
    pairs = [terms.metrics[metric.name] for metric in objective.metrics]
    return torch.stack([terms.loss / count, *(one.float() for pair in pairs for one in pair)])


def read_metrics(sums: Sequence[float], objective: Objective) -> dict[str, float]:
    """Return the metrics of what sum_terms() gave, added up over micro-steps."""
    pairs = zip(objective.metrics, sums[1::2], sums[2::2], strict=True)
    return objective.complete({metric.name: total / count for metric, total, count in pairs if count})


OWN_TOKENS = {"cuda": 4096, "cpu": 64}
"""Tokens that take as long as a micro-batch takes beside its tokens: a card waits for Python's launches (185 ms for 30
layers on an H200, where 30,000 tokens/s pass), a processor hardly ever."""


class StockStep:
    """The model's own forward under autocast, and autograd; rows are padded to the longest of their micro-batch."""

    kind = "stock"
    adamw = None
    expects_sequences = 1
    kernels: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        model: torch.nn.Module,
        token_losses: Callable[[Batch], Tensor],
        *,
        objective: Objective,
        dtype: str,
        device: torch.device,
        pad_id: int,
    ) -> None:
        self._token_losses = token_losses
        self.objective = objective
        self.device = device
        self.pad_id = pad_id
        self.pad_multiple = PAD_MULTIPLE.get(device.type, PAD_MULTIPLE["cpu"])
        self.autocast_dtype = AUTOCAST_DTYPES.get(dtype)
        # A score is new, and learns at the adapter's rate.
        freed = [one for name, one in list_freed(model).items() if name.split(".")[-2] != SCORE]
        apart = set(map(id, freed))
        trained = [one for one in model.parameters() if one.requires_grad and id(one) not in apart]
        self.decayed = [parameter for parameter in trained if parameter.ndim >= 2]
        self.undecayed = [parameter for parameter in trained if parameter.ndim < 2]
        self.beside = [parameter for parameter in freed if parameter.ndim >= 2]
        self.beside_undecayed = [parameter for parameter in freed if parameter.ndim < 2]

    def expect(self, windows: Sequence[RowSizes], steps: int) -> None:
        """See Step."""

    def find_longest(self, examples: Sequence[Example]) -> int:
        """See Step."""
        return int(measure_lengths(examples).max(initial=1))

    def order(self, examples: Sequence[Example]) -> list[int]:
        """See Step."""
        return sort_places(examples)

    def cut(self, window: Sequence[Example], most_rows: int, longest_tokens: int) -> list[list[Example]]:
        """See Step."""
        lengths = [len(example.token_ids) for example in window]
        own_tokens = OWN_TOKENS.get(self.device.type, OWN_TOKENS["cpu"])
        most_tokens = CPU_TOKENS if self.device.type == "cpu" else math.inf
        sizes = cut_rows(lengths, most_rows, own_tokens, most_tokens)
        edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        return [list(window[start:stop]) for start, stop in itertools.pairwise(edges)]

    def measures(self, examples: Sequence[Example]) -> bool:
        """See Step."""
        return False

    def clear(self) -> None:
        """See Step."""
        for parameter in (*self.decayed, *self.undecayed, *self.beside, *self.beside_undecayed):
            parameter.grad = None

    def add_gradients(self, examples: Sequence[Example], count: float, scale: Scale) -> Tensor:
        """See Step."""
        picked = self._pick(examples)  # before the forward pass, for which the copy would wait
        batch = self._collate(examples)
        if self.objective.wants_entropy:
            entropies = torch.zeros(len(batch.picks), device=self.device)
            batch = dataclasses.replace(batch, entropies=entropies)
            picked = dataclasses.replace(picked, entropies=entropies)
        with self.autocast():
            losses = self._token_losses(batch)
        terms = self.objective.loss(-losses.detach(), picked)
        # Its gradient is that of the loss: dL/dlp stands still while lp is differentiated.
        scale((terms.gradient / -count) @ losses).backward()
        return sum_terms(terms, self.objective, count)

    def evaluate(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        terms = self.objective.loss(self.log_probabilities(examples), self._pick(examples))
        return sum_terms(terms, self.objective)

    def log_probabilities(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        with self.autocast():
            return -self._token_losses(self._collate(examples))

    def _pick(self, examples: Sequence[Example]) -> Picked:
        values = pick_values(examples, self.objective)
        return Picked(**{name: torch.from_numpy(v).to(self.device) for name, v in values.items()})

    def _collate(self, examples: Sequence[Example]) -> Batch:
        if self.objective.sequences > 1:  # rows of one document need nothing of the model's own code
            examples = part_documents(examples)
        return collate(examples, self.pad_id, self.device, self.pad_multiple)

    def autocast(self) -> torch.autocast:
        """Return the context in which matrix products are taken in the plan's dtype."""
        return torch.autocast(
            self.device.type,
            dtype=self.autocast_dtype or torch.bfloat16,
            enabled=self.autocast_dtype is not None,
        )
