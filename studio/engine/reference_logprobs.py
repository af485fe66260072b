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
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.data.sequence_packing import (
    Example,
    WrappedExamples,
    count_trained,
    document_starts,
    measure_lengths,
)
from studio.engine.scoring import score
from studio.engine.trainer import Trainer

FILE = "reference.safetensors"


class WithReference(WrappedExamples):
    """Examples with the log-probabilities that were stored of their tokens."""

    def __init__(
        self,
        examples: Sequence[Example],
        values: np.ndarray,
        edges: np.ndarray,
        companions: Sequence[Example] | None = None,
    ) -> None:
        """values: float32, of the tokens that count, example by example; edges: int64 [examples + 1] in it.

        companions: what is scored beside each example, with its own log-probabilities.
        """
        super().__init__(examples)
        self.values, self.edges, self.companions = values, edges, companions

    def make(self, i: int) -> Example:
        """Return example `i`."""
        example = self.examples[i]
        counts = example.trained.copy()
        counts[document_starts(example)] = False
        reference = np.zeros(len(counts), dtype=np.float32)
        reference[counts] = self.values[self.edges[i] : self.edges[i + 1]]
        companion = None if self.companions is None else self.companions[i]
        return dataclasses.replace(example, reference=reference, companion=companion)


def add_reference(trainer: Trainer, folder: Path, key: str, stop_when_asked: Callable[[], None]) -> None:
    """Give the trainer's examples, and their companions, their reference, computed now or read from `folder`.

    `key`: of what they hang on; what was computed under another does not count.

    Raises StudioError when the run has taken steps and its file is gone: the model is no longer what it was;
    and what `stop_when_asked` raises.
    """
    file, objective = folder / FILE, trainer.step.objective
    sets = {"train": trainer.train_examples, "validation": trainer.validation}
    most = trainer.recipe.data.max_length
    beside = {f"{name}.companions": objective.companions(rows, most) for name, rows in sets.items()}
    sets |= {name: rows for name, rows in beside.items() if rows is not None}
    counts = {name: [count_trained(example) for example in rows] for name, rows in sets.items()}
    known = _read(file, key)
    if any(len(known.get(name, ())) != sum(counts[name]) for name in sets):
        if trainer.state.step:
            raise StudioError(
                *(text(f"run.reference_lost{part}") for part in ("", ".why", ".fix")), exit_code=1
            )
        known = {name: _compute(trainer, sets[name], counts[name], stop_when_asked) for name in sets}
        staging = file.with_suffix(".part")
        save_file(known, staging, metadata={"key": key})
        replace_file(staging, file)
    found: dict[str, Sequence[Example]] = {}
    for name in sorted(sets, reverse=True, key=lambda one: one.endswith(".companions")):
        edges = np.cumsum([0, *counts[name]])
        found[name] = WithReference(sets[name], known[name], edges, found.get(f"{name}.companions"))
    trainer.train_examples, trainer.validation = found["train"], found["validation"]


def _read(file: Path, key: str) -> dict[str, np.ndarray]:
    """Return what `file` holds of these data; nothing where it is of others, or none."""
    if not file.exists():
        return {}
    with safe_open(file, "numpy") as opened:
        same = (opened.metadata() or {}).get("key") == key
    return load_file(file) if same else {}


def _compute(
    trainer: Trainer, examples: Sequence[Example], counts: Sequence[int], stop_when_asked: Callable[[], None]
) -> np.ndarray:
    """Return the log-probabilities of all tokens that count, float32, by evaluations of a few rows."""
    edges = np.cumsum([0, *counts])
    values = np.zeros(edges[-1], dtype=np.float32)
    order = np.argsort(-measure_lengths(examples), kind="stable").tolist()
    done = 0

    def tell() -> None:
        stop_when_asked()
        trainer.hooks.beat("reference", 0, done)

    for place, found in score(trainer, examples, order, tell):
        values[edges[place] : edges[place + 1]] = found
        done += 1
    return values
