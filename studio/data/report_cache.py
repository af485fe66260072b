"""Reports on data sets that are kept: the same question about the same files needs no tokenizer the second time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_file
from studio.core.codec import from_json, to_json
from studio.core.errors import StudioError
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec
from studio.data.convert import identify

VERSION = 4
PACKAGES = ("transformers", "tokenizers", "jinja2")
"""What decides, beside files and settings, which tokens come out."""
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx")
LARGEST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report as it lies on the disk."""

    report: Any


def name_report(spec: DatasetSpec, cache: Path, model: Path | None, rows: int) -> str:
    """Return the path of the report inside `cache`: it changes with the source, `spec`, the model's files and `rows`.

    "" where the source is not converted yet. `model`: the folder of the model. Raises StudioError when the source
    cannot be read.
    """
    key = identify(spec, cache)
    if not key:
        return ""
    facts = [VERSION, to_json(spec), rows, _list_versions() if model is not None else []]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8", "surrogatepass"))
    template = Path(spec.template)
    if spec.template and template.is_file():
        digest.update(template.read_bytes())
    if model is not None:
        templates = (model / "additional_chat_templates").glob("*.jinja")
        for path in sorted((*model.iterdir(), *templates)):
            size = path.stat().st_size if path.is_file() else 0
            if size and size <= LARGEST_BYTES and path.suffix not in WEIGHTS:
                digest.update(f"{path.name}\0{size}\0".encode("utf-8", "surrogatepass"))
                digest.update(path.read_bytes())
    return f"{key}/report-{digest.hexdigest()[:24]}.json"


def _list_versions() -> list[str]:
    from importlib.metadata import version

    return [version(name) for name in PACKAGES]


def read_report(cache: Path, name: str) -> dict[str, Any] | None:
    """Return the report kept under `name`; None where there is none."""
    if not name:
        return None
    try:
        found = read_json(cache / name, halves=True)
    except StudioError:
        return None
    return from_json(KeptReport, {"report": found}).report


def keep_report(cache: Path, name: str, report: Mapping[str, Any]) -> None:
    """Keep `report` under `name`; where the disk does not take it, the next time works it out again."""
    if not name:
        return
    with suppress(OSError):
        # ASCII: the name of a file need not be text.
        write_file(cache / name, json.dumps(to_json(report), default=int).encode("ascii"))
