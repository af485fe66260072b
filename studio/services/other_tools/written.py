"""What a file of another tool sets: keys with their values and places, as they are written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that only a run of the script would give; `words` is how it is written."""

    words: str

    def __str__(self) -> str:
        """Return the words."""
        return self.words


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where something is written: its line, from 1; in a notebook within the code cell `cell`, from 1."""

    line: int = 0
    cell: int = 0

    def __str__(self) -> str:
        """Return `12`, or `[3]:12` as Jupyter counts cells; `-` for what is written nowhere."""
        words = f"[{self.cell}]:{self.line}" if self.cell else str(self.line)
        return words if self.line else "-"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a file: a dotted path where it lies within others."""

    key: str
    value: Any
    place: TextPlace = TextPlace()


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """All that a file sets for one tool."""

    settings: Mapping[str, Setting]
    folder: Path = Path()
    """What relative paths in it count from."""
    command: str = ""
    """`sft`, `rlhf` and the like, where a command line names what is done."""
    processes: Setting | None = None
    """How many cards train side by side, where the file says so."""
    comments: str = ""
    """Its comments, in which torchtune's configs name the model."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the reader of a script found beside the settings."""

    def find(self, *keys: str) -> Setting | None:
        """Return the first of `keys` that is set to something."""
        found = (self.settings.get(key) for key in keys)
        return next((one for one in found if one is not None and one.value not in (None, "")), None)

    def is_file(self, name: str) -> bool:
        """Return whether a relative name is a file or folder beside this one."""
        return (self.folder / os.path.expanduser(name)).exists()


def truth(value: Any) -> bool | None:
    """Return what a switch says, in whatever spelling; None where nobody can know."""
    if isinstance(value, Unresolved):
        return None
    if isinstance(value, str):
        return {"true": True, "yes": True, "on": True, "1": True}.get(value.strip().lower(), False)
    return bool(value)


def number(value: Any) -> float | None:
    """Return a number in whatever spelling (YAML reads `2e-4` as words); None for what is none."""
    if isinstance(value, bool) or value is None or isinstance(value, Unresolved):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def words(value: Any) -> str:
    """Return a value as a person would write it, cut to 80 signs."""
    if isinstance(value, (list, tuple)):
        said = ", ".join(words(one) for one in value)
    elif isinstance(value, bool):
        said = str(value).lower()
    elif value is None:
        said = "null"
    else:
        said = f"{value:g}" if isinstance(value, float) else str(value)
    said = " ".join(said.split())
    return said if len(said) <= 80 else said[:79] + "…"
