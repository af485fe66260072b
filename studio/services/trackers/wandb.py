"""Weights & Biases, offline: its files in a folder of its own, which `wandb sync` sends if a person runs it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from studio.services.trackers.tracker import PROJECT, StepValues, Tracker


class _Offline:
    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        import wandb

        # An offline run cannot be gone on with: its files are written anew, from the first point on.
        for old in (folder / "wandb").glob(f"offline-run-*-{run}"):
            shutil.rmtree(old)
        self.written: set[tuple[str, int]] = set()
        own = wandb.Settings(
            mode="offline",
            root_dir=str(folder),
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
        )
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(project=PROJECT, id=run, name=run, config=dict(settings), settings=own)

    def write(self, points: Iterable[StepValues]) -> None:
        """Write points; those of one step go together, since it takes no earlier step."""
        for point in points:
            self._run.log(dict(point.values), step=point.step, commit=False)

    def close(self) -> None:
        """Wait until all is in its file."""
        self._run.finish()


WANDB = Tracker("wandb", "wandb", "wandb", _Offline)
