"""Where models may lie on this machine: the demo, own folders, the caches of the hub and ModelScope, other programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from studio.core.i18n import Text, text
from studio.hub import modelscope
from studio.models.catalog import DEMO_MODEL, find_cached
from studio.models.gguf.opened import list_model_files
from studio.models.gguf.programs import list_program_models

FOLDERS_READ = 3000
"""Of one folder of the person's, no more folders below it are looked into: somebody may name a whole disk."""
PARTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlace:
    """A folder or a file that may hold a model."""

    source: str
    """What a recipe's `model.source` takes: `demo`, a path, or a hub id."""
    name: str
    origin: str
    """demo, folder, cache, modelscope, or the program that keeps it: ollama, lmstudio, llama.cpp"""
    path: Path
    problem: Text | None = field(default=None, compare=False)
    """Why it cannot be trained, where its listing alone tells."""


def list_places(folders: Iterable[str]) -> Iterator[ModelPlace]:
    """Yield every place, the demo first; what cannot be read is left out."""
    yield ModelPlace(source="demo", name="demo", origin="demo", path=DEMO_MODEL)
    for folder in folders:
        yield from _list_folder(Path(os.path.expanduser(folder)))
    yield from _list_cache()
    for hub_id, path in modelscope.list_folders():
        yield ModelPlace(source=hub_id, name=hub_id, origin="modelscope", path=path)
    for model in list_program_models():
        yield ModelPlace(source=model.source, name=model.name, origin=model.program, path=model.file)


def read_stamp(path: Path) -> tuple[int, int, int]:
    """Return what changes when a folder's files do, or a file: their number, their bytes, the newest time of change."""
    count = size_bytes = newest = 0
    try:
        if path.is_file():
            facts = path.stat()
            return 1, facts.st_size, facts.st_mtime_ns
        with os.scandir(path) as entries:
            for entry in entries:
                facts = entry.stat()
                count, size_bytes = count + 1, size_bytes + facts.st_size
                newest = max(newest, facts.st_mtime_ns)
    except OSError:
        return -1, 0, 0  # gone, or not to be read: inspecting it says so
    return count, size_bytes, newest


def _list_folder(folder: Path) -> Iterator[ModelPlace]:
    """Yield the models at, directly below, and below the owners' folders of `folder` (owner/name)."""
    read = 0
    waiting = [(folder, 0)]
    while waiting and read < FOLDERS_READ:
        path, depth = waiting.pop(0)
        read += 1
        files, below = _read_folder(path)
        name = path.relative_to(folder).as_posix() if path != folder else path.name
        if _holds_gguf_alone(files):
            for file in list_model_files(path):
                yield ModelPlace(source=str(file), name=file.stem, origin="folder", path=file)
        elif "config.json" in files or any(name.endswith(PARTS) for name in files):
            yield ModelPlace(source=str(path), name=name, origin="folder", path=path)
        elif depth < 2:
            waiting += [(one, depth + 1) for one in below]


def _holds_gguf_alone(files: set[str]) -> bool:
    """Return whether the models among a folder's files are GGUF files."""
    return any(name.endswith(".gguf") for name in files) and not any(
        name.endswith(".safetensors") for name in files
    )


def _read_folder(path: Path) -> tuple[set[str], list[Path]]:
    """Return the names of a folder's files, and the folders in it that are not hidden; nothing of an unreadable one."""
    files, below = set(), []
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    below += [Path(entry.path)] if not entry.name.startswith(".") else []
                else:
                    files.add(entry.name)
    except OSError:
        return set(), []
    return files, below


def _list_cache() -> Iterator[ModelPlace]:
    """Yield the models of the hub library's cache, those too of which a part is missing."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    for repository in sorted(cache.glob("models--*--*")) if cache.is_dir() else ():
        hub_id = repository.name.removeprefix("models--").replace("--", "/", 1)
        found = find_cached(hub_id)
        if found is not None:
            yield ModelPlace(source=hub_id, name=hub_id, origin="cache", path=found)
            continue
        for snapshot in _snapshots(repository):
            files, _ = _read_folder(snapshot)
            if _holds_gguf_alone(files):
                for file in list_model_files(snapshot):
                    yield ModelPlace(
                        source=str(file), name=f"{hub_id}/{file.name}", origin="cache", path=file
                    )
                break
            if "config.json" in files:
                problem = text("fit.incomplete")
                yield ModelPlace(source=hub_id, name=hub_id, origin="cache", path=snapshot, problem=problem)
                break


def _snapshots(repository: Path) -> list[Path]:
    """Return a repository's snapshots, the newest first."""
    folder = repository / "snapshots"
    try:
        return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
