"""The mapping that a person settled on, kept as a small readable file beside the data and applied again."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.data.formats import FORMATS
from studio.data.formats.cells import shorten

ENDING = ".mapping.json"
"""`chats.csv` -> `chats.csv.mapping.json`. Files with this ending are no data."""
VERSION = 1
READ_BYTES = 2**16
FOLDER = "mappings"
"""Below the cache."""
UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedMapping:
    """What was settled for a data set."""

    format: str
    mapping: Mapping[str, str]
    """Role -> column; "": the role has no column."""
    path: Path


def save_mapping(source: str, format: str, mapping: Mapping[str, str], cache: Path | None = None) -> Path:
    """Write the mapping of `source` beside it, or below `cache` where that cannot be, and return the file's path.

    Only ever called because a person asked for it. Raises StudioError when neither place can be written.
    """
    found = {"version": VERSION, "data": source, "format": format, "mapping": dict(mapping)}
    words = json.dumps(found, ensure_ascii=False, indent=2) + "\n"
    refused: OSError | None = None
    for path in _list_places(source, cache):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, words.encode("utf-8"))
        except OSError as error:
            refused = error
        else:
            return path
    raise StudioError(
        text("data.mapping.unsaved", name=shorten(source)),
        text("data.mapping.unsaved.why", message=refused.strerror or str(refused) if refused else ""),
        text("data.mapping.unsaved.fix"),
        exit_code=1,
    )


def read_mapping(
    source: str, columns: Sequence[str], cache: Path | None = None
) -> tuple[SavedMapping | None, Text | None]:
    """Return the mapping that was saved for `source`; None with a note when there is one that fits no more."""
    for path in _list_places(source, cache):
        try:
            with path.open("rb") as file:
                found = file.read(READ_BYTES + 1)
        except (OSError, ValueError):
            continue
        saved = _parse(path, found)
        if saved is None:
            return None, text("data.mapping.broken", file=shorten(path.name))
        gone = [column for column in saved.mapping.values() if column and column not in columns]
        if gone:
            return None, text("data.mapping.gone", file=shorten(path.name), column=shorten(gone[0]))
        return saved, None
    return None, None


def _parse(path: Path, found: bytes) -> SavedMapping | None:
    """Return what a file says; None when it says nothing that could be applied."""
    if len(found) > READ_BYTES:
        return None
    try:
        said = parse_json(found.decode("utf-8-sig"))
    except ValueError:
        return None
    if (
        not isinstance(said, dict)
        or said.get("version") != VERSION
        or not isinstance(said.get("mapping"), dict)
    ):
        return None
    format = next((one for one in FORMATS if one.name == said.get("format")), None)
    mapping = said["mapping"]
    if format is None or not all(role in format.roles for role in mapping):
        return None
    if not all(isinstance(column, str) for column in mapping.values()):
        return None
    has_all = all(any(mapping.get(role) for role in roles.split("|")) for roles in format.required)
    return SavedMapping(format=format.name, mapping=mapping, path=path) if has_all else None


def _list_places(source: str, cache: Path | None) -> list[Path]:
    """Return where the mapping of `source` may be: beside a local file or folder, then in the cache."""
    places: list[Path] = []
    name = source.strip()
    if name and "://" not in name:
        try:
            path = Path(os.path.expanduser(name))
            if path.exists() and path.name:
                path = path.resolve()
                places.append(path.with_name(path.name + ENDING))
                name = str(path)
        except (OSError, ValueError, RuntimeError):  # such a name is no path
            places.clear()
    if cache is not None:
        key = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        label = UNSAFE.sub("-", name.replace("\\", "/").rsplit("/", 1)[-1])[:40].strip(".-") or "data"
        places.append(cache / FOLDER / f"{label}-{key}{ENDING}")
    return places
