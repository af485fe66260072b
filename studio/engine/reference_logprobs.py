"""Log-probabilities of a run's examples by the model as it was before the first step, for objectives that compare.

They are computed once, by the very model that will be trained: right for a new adapter, for one that goes on and for
all weights, without a second model in memory (as DPO's reference, Rafailov et al., 2023, arXiv:2305.18290). They lie in
the run's folder, so a run that resumes reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.sequence_packing import (
    Example,
    LazySequence,
    count_documents,
    count_trained,
    document_starts,
    measure_lengths,
)
from studio.engine.trainer import Trainer
from studio.models.adapt import evaluation_mode

FILE = "reference.safetensors"
PARTS = ("train", "validation")


class WithReference(LazySequence):
    """Examples with the log-probabilities that were stored of their tokens."""

    def __init__(self, examples: Sequence[Example], values: np.ndarray, edges: np.ndarray) -> None:
        """values: float32, of the tokens that count, example by example; edges: int64 [examples + 1] in it."""
        self.examples, self.values, self.edges = examples, values, edges

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [examples]"""
        return measure_lengths(self.examples)

    @property
    def documents(self) -> np.ndarray:
        """int64 [examples]"""
        return count_documents(self.examples)

    def make(self, i: int) -> Example:
        """Return example `i`."""
        example = self.examples[i]
        counts = example.trained.copy()
        counts[document_starts(example)] = False
        reference = np.zeros(len(counts), dtype=np.float32)
        reference[counts] = self.values[self.edges[i] : self.edges[i + 1]]
        return dataclasses.replace(example, reference=reference)


def add_reference(
    trainer: Trainer, folder: Path, content_hash: str, stop_when_asked: Callable[[], None]
) -> None:
    """Give the trainer's examples their reference, computed now or read from `folder`.

    `content_hash`: of the data; what was computed of others does not count.

    Raises StudioError when the run has taken steps and its file is gone: the model is no longer what it was;
    and what `stop_when_asked` raises.
    """
    file = folder / FILE
    sets = {"train": trainer.train_examples, "validation": trainer.validation}
    counts = {name: [count_trained(example) for example in sets[name]] for name in PARTS}
    known = _read(file, content_hash)
    if any(len(known.get(name, ())) != sum(counts[name]) for name in PARTS):
        if trainer.state.step:
            raise StudioError(
                *(text(f"run.reference_lost{part}") for part in ("", ".why", ".fix")), exit_code=1
            )
        known = {name: _compute(trainer, sets[name], counts[name], stop_when_asked) for name in PARTS}
        staging = file.with_suffix(".part")
        save_file(known, staging, metadata={"content_hash": content_hash})
        replace_file(staging, file)
    edges = {name: np.cumsum([0, *counts[name]]) for name in PARTS}
    trainer.train_examples, trainer.validation = (
        WithReference(sets[name], known[name], edges[name]) for name in PARTS
    )


def _read(file: Path, content_hash: str) -> dict[str, np.ndarray]:
    """Return what `file` holds of these data; nothing where it is of others, or none."""
    if not file.exists():
        return {}
    with safe_open(file, "numpy") as opened:
        same = (opened.metadata() or {}).get("content_hash") == content_hash
    return load_file(file) if same else {}


def _compute(
    trainer: Trainer, examples: Sequence[Example], counts: Sequence[int], stop_when_asked: Callable[[], None]
) -> np.ndarray:
    """Return the log-probabilities of all tokens that count, float32, by evaluations of a few rows."""
    edges = np.cumsum([0, *counts])
    values = np.zeros(edges[-1], dtype=np.float32)
    order = np.argsort(-measure_lengths(examples), kind="stable").tolist()
    with evaluation_mode(trainer.model), torch.no_grad():
        done = 0
        while done < len(order):
            stop_when_asked()
            trainer.hooks.beat("reference", 0, done)
            part = order[done : done + trainer.evaluation_batch]
            found = trainer.try_batch([examples[i] for i in part], trainer.step.log_probabilities)
            if found is None:  # fewer rows fit
                continue
            starts = np.cumsum([0, *(counts[i] for i in part)])
            for place, i in enumerate(part):
                values[edges[i] : edges[i + 1]] = found[starts[place] : starts[place + 1]]
            done += len(part)
    return values
