"""The experiment trackers that a run can be mirrored to, one file each; adding one is its file and its line here."""

from __future__ import annotations

from studio.services.trackers.mlflow import MLFLOW
from studio.services.trackers.tensorboard import TENSORBOARD
from studio.services.trackers.tracker import Tracker
from studio.services.trackers.trackio import TRACKIO
from studio.services.trackers.wandb import WANDB

TRACKERS: tuple[Tracker, ...] = (TENSORBOARD, TRACKIO, WANDB, MLFLOW)


def get_tracker(name: str) -> Tracker | None:
    """Return the tracker called `name`, or None when there is none of that name."""
    return {tracker.name: tracker for tracker in TRACKERS}.get(name)
