"""Checkpoints that a kill cannot break: staged beside, hashed, flushed, renamed; found again by step, never by time."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.atomic_files import add_spare, replace_file, write_json
from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text
from studio.core.json_file import read_json

NAME = re.compile(r"step-(\d{8})")
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint folder and the step after which it was written."""

    step: int
    path: Path


def save_checkpoint(
    folder: Path, step: int, write: Callable[[Path], None], keep: int
) -> tuple[Checkpoint, int]:
    """Write a checkpoint by `write(staging_folder)`, publish it by a rename, and delete all but the newest `keep`.

    Returns the checkpoint and its size in bytes. A kill at any moment leaves either no new checkpoint or a complete
    one: every file is flushed to disk before the manifest, and the manifest before the rename.
    Raises OSError (disk full, no permission); then nothing half-written stays behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".staging-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        write(staging)
        entries = {}
        for path in sorted(part for part in staging.rglob("*") if part.is_file()):
            _flush(path)
            name = path.relative_to(staging).as_posix()
            entries[name] = {"bytes": path.stat().st_size, "sha256": _hash(path)}
        write_json(staging / MANIFEST, {"version": 1, "step": step, "files": entries}, lasting=True)
        _flush_folder(staging)
        final = folder / f"step-{step:08d}"
        if final.exists():
            shutil.rmtree(final)
        replace_file(staging, final)
        _flush_folder(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    rotate(folder, keep)
    return Checkpoint(step, final), sum(entry["bytes"] for entry in entries.values())


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the published checkpoints, newest step first; staging leftovers and broken ones are not among them."""
    if not folder.is_dir():
        return []
    found = [(NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir()]
    return sorted(
        (Checkpoint(int(match[1]), path) for match, path in found if match),
        key=lambda c: c.step,
        reverse=True,
    )


def rotate(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints by step (file times lie when a clock was set)."""
    for old in list_checkpoints(folder)[max(1, keep) :]:
        shutil.rmtree(old.path, ignore_errors=True)
    for broken in folder.glob("step-*.broken"):  # a whole one was saved since
        shutil.rmtree(broken, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete what killed writers left behind. Only for the run's owner, before it writes."""
    if folder.is_dir():
        for path in folder.glob(".staging-*"):
            shutil.rmtree(path, ignore_errors=True)


def verify_checkpoint(checkpoint: Checkpoint) -> Text | None:
    """Return what is wrong with a checkpoint (a file missing, short or changed), or None when it is whole."""
    try:
        manifest: dict[str, Any] = read_json(checkpoint.path / MANIFEST)
        files = manifest["files"]
    except (StudioError, KeyError, TypeError):
        return text("checkpoint.no_manifest")
    for name, entry in files.items():
        path = checkpoint.path / name
        if not path.is_file():
            return text("checkpoint.file_missing", name=name)
        if path.stat().st_size != entry["bytes"] or _hash(path) != entry["sha256"]:
            return text("checkpoint.file_changed", name=name)
    return None


def newest_valid(folder: Path, on_broken: Callable[[Checkpoint, Text], None]) -> Checkpoint | None:
    """Return the newest whole checkpoint; broken newer ones are renamed to `.broken` and reported to `on_broken`."""
    for checkpoint in list_checkpoints(folder):
        wrong = verify_checkpoint(checkpoint)
        if wrong is None:
            return checkpoint
        on_broken(checkpoint, wrong)
        broken = checkpoint.path.with_name(checkpoint.path.name + ".broken")
        shutil.rmtree(broken, ignore_errors=True)
        replace_file(checkpoint.path, broken)
    return None


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raise StudioError when the disk that holds `folder` has not `needed_bytes` free, and some to spare."""
    free_bytes, room_bytes = shutil.disk_usage(folder).free, add_spare(needed_bytes)
    if free_bytes < room_bytes:
        raise StudioError(
            text("disk.full", folder=literal(folder.name)),
            text("disk.full.why", needed_mb=round(room_bytes / 1e6), free_mb=round(free_bytes / 1e6)),
            text("disk.full.fix"),
            exit_code=1,
        )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    """Flush a folder's entries; Windows has no such call and keeps its metadata in order by journal."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
