"""The best state of a run so far, kept beside its checkpoints until the end: the result is made of it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from studio.core.atomic_files import replace_file
from studio.engine.checkpoint import require_space

NAME = re.compile(r"step-(\d{8})\.safetensors")


class BestWeights:
    """Files of trained weights in one folder of the run, one a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, step: int, weights: Mapping[str, torch.Tensor], also: int = 0) -> None:
        """Keep the weights after `step`, and those of step `also` that a checkpoint speaks of; no others.

        Raises StudioError on a full disk, OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        require_space(self.folder, sum(tensor.nbytes for tensor in weights.values()))
        staged = self.folder / ".staging"
        save_file({name: tensor.contiguous().cpu() for name, tensor in weights.items()}, staged)
        replace_file(staged, self._name(step))
        for path in self.folder.iterdir():
            found = NAME.fullmatch(path.name)
            if found and int(found[1]) not in (step, also):
                path.unlink(missing_ok=True)

    def read(self, step: int) -> dict[str, torch.Tensor] | None:
        """Return the weights after `step`, on the processor; None where they are gone or damaged."""
        try:
            return load_file(self._name(step))
        except (OSError, SafetensorError):
            return None

    def remove(self) -> None:
        """Delete what was kept: the result holds it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _name(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.safetensors"
