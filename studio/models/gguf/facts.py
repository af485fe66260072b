"""What a GGUF file is to the studio: the facts of the folder that it is opened as, from its header alone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.models.gguf.header import is_gguf, refuse
from studio.models.gguf.opened import GgufModel, list_model_files, understand
from studio.models.gguf.programs import OLLAMA, find_ollama
from studio.models.packed_facts import describe_packed

KEPT = 64
"""Files whose headers are kept: one with a large vocabulary takes 0.2 s to read."""


def find_gguf(source: str, path: Path) -> Path | None:
    """Return the GGUF file that a recipe's `model.source` names, `path` where it is a path; None for other models.

    It is a file, a folder that has no other model, or `ollama:NAME`. Raises StudioError where Ollama has no such model,
    or a folder holds several.
    """
    if source.startswith(OLLAMA):
        found = find_ollama(source.removeprefix(OLLAMA))
        if found is None:
            raise refuse("ollama_missing", source.removeprefix(OLLAMA))
        return found
    if path.is_file():
        return path if is_gguf(path) else None
    if not path.is_dir() or any(path.glob("*.safetensors")):  # a config alone stands beside many GGUF files
        return None
    files = list_model_files(path)
    if len(files) > 1:
        raise refuse("several", path.name, files=", ".join(file.name for file in files[:6]))
    return files[0] if files else None


def name_gguf(source: str, file: Path) -> str:
    """Return what a person calls the model: never a path of this machine."""
    return source.removeprefix(OLLAMA) if source.startswith(OLLAMA) else file.stem


def read_gguf(file: Path) -> GgufModel:
    """Return what a file holds. Raises StudioError for what cannot be opened."""
    facts = file.stat()
    return _read(file, facts.st_size, facts.st_mtime_ns)


def describe_gguf(model: GgufModel, source: str, name: str) -> ModelFacts:
    """Return the facts of a file that is not opened yet: its `folder` is ""."""
    gigabytes = {"size": f"{model.opened_bytes / 1e9:.1f}", "bits": f"{model.stored_bits:.1f}"}
    return describe_packed(
        source,
        name,
        model.config,
        model.shapes,
        dtype=model.dtype,
        has_chat_template=model.has_chat_template,
        opening=text("gguf.opened_later", name=name, **gigabytes),
    )


@lru_cache(KEPT)
def _read(file: Path, size_bytes: int, changed_ns: int) -> GgufModel:
    return understand(file)
