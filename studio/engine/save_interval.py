"""When a checkpoint is due, and how many a run writes."""

from __future__ import annotations

from studio.core.recipe import RunSpec

SAVE_INTERVAL_S = 600.0
"""Without a `save_every`, a checkpoint at least this often: what a power cut may cost."""
FIRST_SAVE_S, FIRST_SAVE_SHARE = 60.0, 0.05
"""The first one comes after this time or share of the steps, whichever is sooner: until then a kill loses all."""


def is_save_due(spec: RunSpec, step: int, total_steps: int, saved_step: int, since_s: float) -> bool:
    """Return whether a checkpoint is due after `step`, `since_s` after the one of `saved_step` (0: none yet)."""
    if spec.save_every:
        return step % spec.save_every == 0
    if saved_step == 0:
        return since_s > FIRST_SAVE_S or step >= FIRST_SAVE_SHARE * total_steps
    return since_s > SAVE_INTERVAL_S


def count_saves(spec: RunSpec, total_steps: int, trained_s: float) -> int:
    """Return how many checkpoints a run of `total_steps` writes before its end, when its steps take `trained_s`."""
    if spec.save_every:
        return total_steps // spec.save_every
    return 1 + int(trained_s // SAVE_INTERVAL_S)
