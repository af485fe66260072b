"""Where the programs that people run models with keep their GGUF files: Ollama, LM Studio, llama.cpp."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from studio.core.json_file import parse_json
from studio.models.gguf.header import is_gguf
from studio.models.gguf.opened import list_model_files

OLLAMA = "ollama:"
"""Begins a recipe's `model.source` that is a name of Ollama's, such as ollama:llama3.2:1b."""
OLLAMA_MODEL = "application/vnd.ollama.image.model"
"""The kind of the part of an Ollama model that is its GGUF file."""
HOST = "registry.ollama.ai"
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramModel:
    """A model that another program keeps."""

    program: str
    """ollama, lmstudio or llama.cpp"""
    name: str
    source: str
    """What a recipe's `model.source` takes."""
    file: Path


def list_program_models(environment: Mapping[str, str] = os.environ) -> Iterator[ProgramModel]:
    """Yield the models of all of them, in order of their names; what cannot be read is left out."""
    for name, file in list_ollama(environment):
        yield ProgramModel(program="ollama", name=name, source=f"{OLLAMA}{name}", file=file)
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    for root in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        for folder in sorted(root.glob("*/*")) if root.is_dir() else ():
            for file in list_model_files(folder):
                name = f"{folder.parent.name}/{folder.name}/{file.name}"
                yield ProgramModel(program="lmstudio", name=name, source=str(file), file=file)
    for root in _llama_cpp_folders(environment, home):
        for file in list_model_files(root) if root.is_dir() else ():
            yield ProgramModel(program="llama.cpp", name=file.stem, source=str(file), file=file)


def find_ollama(name: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the GGUF file of the model that Ollama calls `name` (without a tag: latest), None where it has none."""
    wanted = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return next((file for known, file in list_ollama(environment) if known == wanted), None)


def list_ollama(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """Yield (name, GGUF file) of Ollama's models.

    A manifest lies at manifests/HOST/NAMESPACE/MODEL/TAG and names its parts by digest; a part lies at
    blobs/sha256-DIGEST. Names of Ollama's own library are shown as it shows them, without host and namespace.
    """
    for root in ollama_folders(environment):
        for manifest in sorted((root / "manifests").rglob("*")):
            parts = manifest.relative_to(root / "manifests").parts
            if len(parts) < 4 or not manifest.is_file():
                continue
            file = _read_manifest(manifest, root)
            if file is None:
                continue
            host, *space, model, tag = parts
            shown = [] if host == HOST and space == ["library"] else space if host == HOST else [host, *space]
            yield "/".join([*shown, f"{model}:{tag}"]), file


def ollama_folders(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders that Ollama may keep models in: its own variable's alone where it is set."""
    named = environment.get("OLLAMA_MODELS")
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    usual = (home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"))
    folders = (Path(named).expanduser(),) if named else usual
    return tuple(folder for folder in folders if (folder / "manifests").is_dir())


def _read_manifest(manifest: Path, root: Path) -> Path | None:
    """Return the GGUF file that a manifest names; None for another kind of model, or where the file is not there."""
    try:
        layers = parse_json(manifest.read_bytes())["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == OLLAMA_MODEL]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not a manifest, or not for us: what cannot be read is left out
    found = DIGEST.fullmatch(digests[0]) if len(digests) == 1 and isinstance(digests[0], str) else None
    file = root / "blobs" / f"sha256-{found[1]}" if found else None
    return file if file is not None and is_gguf(file) else None


def _llama_cpp_folders(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    named = environment.get("LLAMA_CACHE")
    if named:
        return (Path(named).expanduser(),)
    local = environment.get("LOCALAPPDATA")
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"
    return (
        cache,
        home / "Library" / "Caches" / "llama.cpp",
        *((Path(local) / "llama.cpp",) if local else ()),
    )
