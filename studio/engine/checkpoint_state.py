"""What a resume needs, as files: the trained weights and the state of optimizer, scaler, generators and trainer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from studio.engine.run_states import WEIGHTS
from studio.planning.memory_estimate import OPTIMIZER_BYTES

STATE = "state.pt"


def write_training(folder: Path, weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
    """Write the trained weights by name, and Trainer.state_data(), into `folder`.

    Raises OSError, and RuntimeError for tensors that share memory or a disk that is full.
    """
    tensors = {name: tensor.contiguous().cpu() for name, tensor in weights.items()}
    save_file(tensors, folder / WEIGHTS)
    torch.save(state, folder / STATE)


def count_tensors(tree: Any) -> int:
    """Return the bytes of the tensors in `tree`, of whatever dictionaries and lists it is made."""
    if isinstance(tree, torch.Tensor):
        return tree.nbytes
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    return sum(map(count_tensors, parts))


def count_checkpoint(weights: Mapping[str, torch.Tensor], trainer: Any) -> int:
    """Return the bytes of a checkpoint of `trainer`; the optimizer counts as after its first step."""
    moments = OPTIMIZER_BYTES.get(trainer.kind[0], 0) * sum(one.numel() for one in trainer.trained)
    return count_tensors(weights) + max(count_tensors(trainer.optimizer.state_dict()), moments)


def name_kind(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the optimizer, the numbers it trains in and the kind of step of a checkpoint's state."""
    return (*state["kind"], "stock")[:3]  # older studios knew one kind of step


def read_kind(folder: Path) -> tuple[str, ...]:
    """Return name_kind() of a checkpoint, without reading its tensors.

    () where its state cannot be read: whoever takes it up hears what is wrong with it.
    """
    try:
        return name_kind(torch.load(folder / STATE, map_location="cpu", weights_only=True, mmap=True))
    except (OSError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError):
        return ()


def read_training(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return what write_training() wrote, on the CPU."""
    # weights_only: a checkpoint folder may come from elsewhere, and a pickle can run code.
    state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    return load_file(folder / WEIGHTS), state
