"""What an export is made of and what is known of it meanwhile: a run's result or a checkpoint, its parts, its curve."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.json_file import read_json
from studio.engine.exporters.exporter import NO_LIMITS, ExportJob, FileLimits
from studio.engine.exporters.gguf_file import CURVE
from studio.engine.exporters.kept_parts import FOLDER, KeptParts, hash_file
from studio.engine.run_states import RESULT, WEIGHTS
from studio.services.results import Result

PARTS_VERSION = 1
"""To be raised when exporters write or name their parts otherwise."""
NOWHERE = Path()
LIMITS = "limits.json"


@dataclass(frozen=True, slots=True)
class Curve:
    """What a measured file takes, and what it is expected to lose, from 8 bits for each tensor down to 4."""

    points: tuple[tuple[int, float], ...]
    """(bytes, nats a token), the largest first"""
    usual_bytes: int
    """What Q4_K_M takes."""


def make_task(result: Result, target: Path = NOWHERE) -> ExportJob:
    """Return what an exporter is given of a result, to write into `target`."""
    record, folder = result.record, result.folder.path
    if result.place != RESULT:  # as large as the result that is made of it, or a little larger
        weights = str(Path("checkpoints") / result.place / WEIGHTS)
        adapter = result.recipe.adapter.method == "lora"
        record = dataclasses.replace(record, artifact=weights, adapter=adapter)
    return ExportJob(folder, record, result.facts, result.plan, target)


def take_checkpoint(task: ExportJob, result: Result, folder: Path) -> ExportJob:
    """Write the checkpoint into `folder` as a run's result would be; return the task that exports it from there."""
    from studio.engine.chat import Partner, save_checkpoint

    partner = Partner(
        facts=result.facts,
        plan=result.plan,
        recipe=result.recipe,
        folder=result.folder,
        record=result.record,
        place=result.place,
    )
    shutil.rmtree(folder, ignore_errors=True)
    return dataclasses.replace(task, run_folder=folder, record=save_checkpoint(partner, folder))


def name_parts(result: Result, target: str) -> str:
    """Return what tells one export from any other: parts of it are gone on with by the same alone."""
    task = make_task(result)
    artifact = task.run_folder / task.record.artifact
    files = sorted(path for path in artifact.rglob("*") if path.is_file())
    told = {
        "version": PARTS_VERSION,
        "target": target,
        "run": name_state(result.folder.run, result.place),
        "base": result.record.base_hash,
        "artifact": {path.relative_to(artifact).as_posix(): hash_file(path) for path in files},
        "recipe": hash_file(result.folder.path / "recipe.json"),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def name_export(run: str, place: str, target: str) -> str:
    """Return what an export's folder is called."""
    return f"{name_state(run, place)}-{target}"


def name_state(run: str, place: str) -> str:
    """Return what a state of a run is called in such a name."""
    return f"{run}-{place}" if place else run


def read_curve(staging: Path) -> Curve | None:
    """Return what was measured in an export's staging folder; None where nothing was."""
    if not KeptParts(staging).has(f"{FOLDER}/{CURVE}"):
        return None
    found = read_json(staging / FOLDER / CURVE)
    return Curve(tuple((int(size), float(kl)) for size, kl in found["points"]), int(found["usual_bytes"]))


def keep_limits(staging: Path, limits: FileLimits) -> None:
    """Keep what was asked for beside the parts: whoever goes on wants the same. Raises OSError."""
    write_json(staging / FOLDER / LIMITS, {"size_bytes": limits.size_bytes, "kl": limits.kl})


def read_limits(staging: Path) -> FileLimits:
    """Return what was asked for of an export that did not end."""
    try:
        found = read_json(staging / FOLDER / LIMITS)
        return FileLimits(int(found["size_bytes"]), float(found["kl"]))
    except (StudioError, KeyError, TypeError, ValueError):
        return NO_LIMITS
