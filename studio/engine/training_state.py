"""What a resume needs, as files: the trained weights and the state of optimizer, scaler, generators and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "trained.safetensors"
STATE = "state.pt"


def write_training(folder: Path, weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write the trained weights by name, and Trainer.state_data(), into `folder`.

    Raises OSError, and RuntimeError for tensors that share memory or a disk that is full.
    """
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    save_file(tensors, folder / WEIGHTS)
    torch.save(state, folder / STATE)


def read_training(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return what write_training() wrote, on the CPU."""
    # weights_only: a checkpoint folder may come from elsewhere, and a pickle can run code.
    state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return load_file(folder / WEIGHTS), state
