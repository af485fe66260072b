"""Before step 1: one small forward and backward pass in every form that a run takes, so that kernels compile here.

A kernel's variants hang on dtypes, widths and on what needs a gradient, not on lengths (those are not specialised),
so short rows stand for all; what depends on lengths, such as memory, is tried by the trial run.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from studio.data.sequence_packing import Example, cut_example
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.trainer import Trainer

WARM_TOKENS = 64


def warm_up(trainer: Trainer) -> None:
    """Train and evaluate on short rows, then leave weights, gradients and random generators as they were.

    Full micro-batches, the short last one of an epoch and the evaluation's. A kernel that fails here goes to its
    PyTorch twin by the trainer's `recover` hook. Raises what that gives up on.
    """
    generators = read_generators()
    trainer.model.train()
    try:
        for rows in row_counts(trainer):
            window = [shorten(trainer.train_examples[i % len(trainer.train_examples)]) for i in range(rows)]
            trainer.take_gradients(window, phase="compile")
        size, validation = trainer.evaluation_batch, trainer.validation
        part = [shorten(example) for example in validation[: size + len(validation) % size]]
        trainer.evaluate(part, phase="compile")
    finally:
        trainer.step.clear()
        write_generators(generators)


def row_counts(trainer: Trainer) -> list[int]:
    """Return the kinds of micro-batch that a run has, by their rows: several at once, and one."""
    most = min(trainer.state.micro_batch, trainer.order.per_step, trainer.order.examples)
    return [most, 1] if most > 1 else [1]


def shorten(example: Example) -> Example:
    """Return the first WARM_TOKENS of `example`, all of them trained; a packed one stays packed."""
    size = min(len(example.token_ids), WARM_TOKENS)
    cut = cut_example(example, size, np.ones(size, dtype=bool))
    half = size // 2
    lengths = (half, size - half) if len(example.lengths) > 1 and half else (size,)
    return dataclasses.replace(cut, lengths=lengths)
