"""Where ModelScope's own tools keep the models that they downloaded: folders that are read like any other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

DOT = "___"
"""What its tools write for the dots of a name: Qwen/Qwen2.5-0.5B lies in Qwen/Qwen2___5-0___5B."""


def cache_folders(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Return the folders that may hold ORG/NAME: below $MODELSCOPE_CACHE, else ~/.cache/modelscope.

    Its tools put them into `models`, older ones into `hub` or `hub/models` beside data sets.
    """
    base = environment.get("MODELSCOPE_CACHE") or str(Path.home() / ".cache" / "modelscope")
    root = Path(base).expanduser()
    return tuple(
        folder for folder in (root / "models", root / "hub" / "models", root / "hub") if folder.is_dir()
    )


def find_folders(hub_id: str, environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the folders that hold the model ORG/NAME, its name written with dots or without."""
    owner, _, name = hub_id.partition("/")
    for root in cache_folders(environment):
        for written in dict.fromkeys((name, name.replace(".", DOT))):
            if (root / owner / written / "config.json").is_file():
                yield root / owner / written


def list_folders(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, Path]]:
    """Yield (ORG/NAME, folder) of every model, in order of their names."""
    for root in cache_folders(environment):
        for path in sorted(root.glob("[!.]*/[!.]*/config.json")):
            folder = path.parent
            yield f"{folder.parent.name}/{folder.name.replace(DOT, '.')}", folder
