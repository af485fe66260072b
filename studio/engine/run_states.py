"""The states of a run that can answer: its result, and every whole checkpoint on the way to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.core.run_record import RunRecord
from studio.engine.checkpoint import MANIFEST, NAME, list_checkpoints
from studio.engine.run_folder import RunFolder

RESULT = ""
"""The name of the place that is a run's checked result."""
WEIGHTS = "trained.safetensors"


@dataclass(frozen=True, slots=True)
class StatePlace:
    """One state of a run's weights: the result, or the checkpoint in the folder `name`."""

    name: str
    step: int
    problem: Text | None = None
    """Why it cannot answer."""


def list_places(folder: RunFolder, record: RunRecord) -> tuple[StatePlace, ...]:
    """Return the result, if there is one, then the checkpoints, newest first. Only names and sizes are looked at."""
    places = []
    if record.state == "finished" and record.artifact:
        problem = None if (folder.path / record.artifact).is_dir() else text("chat.place.gone")
        places.append(StatePlace(RESULT, record.kept_step or record.steps, problem))
    for checkpoint in list_checkpoints(folder.checkpoints):
        places.append(StatePlace(checkpoint.path.name, checkpoint.step, _find_fault(checkpoint.path)))
    return tuple(places)


def find_weights(folder: RunFolder, name: str) -> Path:
    """Return the weights file of checkpoint `name`, hashed against its manifest.

    Raises StudioError when there is no such checkpoint, or it is not whole.
    """
    path = folder.checkpoints / name
    if not NAME.fullmatch(name) or not path.is_dir():
        raise _refuse(name, text("chat.place.gone"))
    fault = _find_fault(path)
    if fault is None:
        with (path / WEIGHTS).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _read_entry(path)["sha256"]:
            fault = text("checkpoint.file_changed", name=WEIGHTS)
    if fault is not None:
        raise _refuse(name, fault)
    return path / WEIGHTS


def _find_fault(path: Path) -> Text | None:
    try:
        entry = _read_entry(path)
        size_bytes = (path / WEIGHTS).stat().st_size
    except (StudioError, KeyError, TypeError):
        return text("checkpoint.no_manifest")
    except OSError:
        return text("checkpoint.file_missing", name=WEIGHTS)
    return None if size_bytes == entry["bytes"] else text("checkpoint.file_changed", name=WEIGHTS)


def _read_entry(path: Path) -> dict[str, Any]:
    entry = read_json(path / MANIFEST)["files"][WEIGHTS]
    if not {"bytes", "sha256"} <= set(entry):
        raise KeyError(WEIGHTS)
    return entry


def _refuse(name: str, why: Text) -> StudioError:
    return StudioError(text("chat.place", name=name), why, text("chat.place.fix"))
