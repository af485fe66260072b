"""What the trial run writes: a checkpoint and the result, each read back and compared with the memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.core.run_record import RunRecord
from studio.engine.artifact import save_artifact
from studio.engine.checkpoint import require_space, save_checkpoint, verify_checkpoint
from studio.engine.checkpoint_state import count_checkpoint, count_tensors, read_training, write_training
from studio.engine.run_folder import RunFolder
from studio.engine.trainer import Trainer
from studio.models.adapt import trained_state
from studio.models.modules_to_save import adapter_state

CHECKPOINT_LIMIT_BYTES = 2**26
"""At most this much of the weights is written as a checkpoint, flushed and read back: a disk that flushes 25 MB/s took
10 s of a first start for the whole one of an 8B model's adapter, and the rest of it is written the same way."""
RESULT_LIMIT_BYTES = 2**30
"""A larger result is not written: 10 to 20 s on a hard disk."""


def check_space(trainer: Trainer, folder: RunFolder) -> int:
    """Return the bytes of one checkpoint. Raises StudioError when the disk cannot take those of the run."""
    whole_bytes = count_checkpoint(trained_state(trainer.model), trainer)
    # One more than is kept: a new one is whole before the oldest goes.
    require_space(folder.path, whole_bytes * (trainer.recipe.run.keep_checkpoints + 1))
    return whole_bytes


def try_checkpoint(trainer: Trainer, folder: RunFolder, place: Path) -> float:
    """Write a checkpoint below `place` the way that training does, read it back and compare it.

    Returns how many seconds a checkpoint of the run will take, the optimizer's state in it. Raises StudioError when
    the disk cannot take the checkpoints of the run or gives them back changed; OSError, and RuntimeError for tensors
    that share memory.
    """
    whole_bytes = check_space(trainer, folder)
    weights = trained_state(trainer.model)
    written = _first(weights, CHECKPOINT_LIMIT_BYTES)
    started_s = time.perf_counter()
    checkpoint, _ = save_checkpoint(
        place, 0, lambda staging: write_training(staging, written, trainer.state_data()), keep=1
    )
    took_s = time.perf_counter() - started_s
    wrong = verify_checkpoint(checkpoint)
    if wrong is not None:
        raise StudioError(text("trial.differs"), wrong, text("trial.differs.fix"), exit_code=1)
    _compare(written, read_training(checkpoint.path)[0])
    return took_s * whole_bytes / count_tensors(written)


def try_result(model: Any, tokenizer: Any, facts: ModelFacts, record: RunRecord, place: Path) -> None:
    """Write the result below `place` as it is after training, an adapter compared; of a large model no weights."""
    if count_tensors(trained_state(model)) > RESULT_LIMIT_BYTES:
        for part in (tokenizer, model.config, getattr(model, "generation_config", None)):
            if part is not None:
                part.save_pretrained(place)
        return
    name = save_artifact(model, tokenizer, place, facts, record)
    if record.adapter:
        _compare(adapter_state(model), load_file(place / name / "adapter_model.safetensors"))


def _compare(written: Mapping[str, torch.Tensor], read: Mapping[str, Any]) -> None:
    """Raise StudioError unless every tensor came back as it was."""
    changed = [
        name
        for name, tensor in written.items()
        if name not in read or not torch.equal(tensor.detach().cpu(), read[name])
    ]
    if changed:
        why = text("trial.differs.why", count=len(changed), first=changed[0])
        raise StudioError(text("trial.differs"), why, text("trial.differs.fix"), exit_code=1)


def _first(tensors: Mapping[str, torch.Tensor], limit_bytes: int) -> dict[str, torch.Tensor]:
    """Return the first of `tensors` that take no more than `limit_bytes` together, at least one."""
    chosen: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        limit_bytes -= tensor.nbytes
        if chosen and limit_bytes < 0:
            break
        chosen[name] = tensor
    return chosen
