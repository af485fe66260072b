"""Takes a run up again where its newest whole checkpoint left it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from studio.core.errors import StudioError
from studio.core.events import RunEvent, Warned
from studio.core.i18n import Text, text
from studio.engine.checkpoint import Checkpoint, newest_valid
from studio.engine.checkpoint_state import read_training
from studio.engine.run_folder import RunFolder
from studio.engine.trainer import Trainer
from studio.models.adapt import load_trained_state


def resume(folder: RunFolder, model: nn.Module, trainer: Trainer, emit: Callable[[RunEvent], None]) -> bool:
    """Go on from the newest whole checkpoint; returns whether there was one.

    A broken newer one is told and left aside as `.broken`. Raises StudioError for one of another kind of step.
    """

    def report(broken: Checkpoint, wrong: Text) -> None:
        emit(Warned(step=broken.step, message=text("run.checkpoint_broken", step=broken.step, reason=wrong)))

    checkpoint = newest_valid(folder.checkpoints, report)
    if checkpoint is None:
        return False
    weights, state = read_training(checkpoint.path)
    load_trained_state(model, weights)
    if [*state["kind"], "stock"][:3] != trainer.kind:  # runs of older studios know one kind of step
        raise StudioError(
            text("run.plan_changed"),
            text("run.plan_changed.why", before=" / ".join(state["kind"]), now=" / ".join(trainer.kind)),
            text("run.plan_changed.fix"),
        )
    trainer.load_state_data(state)
    return True
