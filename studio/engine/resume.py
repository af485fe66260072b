"""Takes a run up again where its newest whole checkpoint left it."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from studio.core.errors import StudioError
from studio.core.events import RunEvent, Warned
from studio.core.i18n import Text, text
from studio.engine.checkpoint import Checkpoint, list_checkpoints, newest_valid
from studio.engine.checkpoint_state import name_kind, read_kind, read_training
from studio.engine.run_folder import RunFolder
from studio.engine.trainer import Trainer
from studio.models.adapt import load_trained_state


def explain_own_code(folder: RunFolder) -> Text | None:
    """Return why the model's own code is to compute a run's steps: its newest checkpoint is of such; else None.

    A newer studio may compute by its decoder what an older one did not, and neither's optimizer state fits the other.
    """
    newest = next(iter(list_checkpoints(folder.checkpoints)), None)
    began = () if newest is None else read_kind(newest.path)
    return text("run.begun_by_own_code") if began[2:] == ("stock",) else None


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
    if (kind := name_kind(state)) != (*trainer.kind,):
        raise StudioError(
            text("run.plan_changed"),
            text("run.plan_changed.why", before=" / ".join(kind), now=" / ".join(trainer.kind)),
            text("run.plan_changed.fix"),
        )
    trainer.load_state_data(state)
    return True
