"""The person's settings: a small JSON file in the workspace, written in one step.

`language` the window's language   `repairs_off`, `repairs_on` names of host/repairs.py   `hub_endpoint` a mirror's
address, "" for the hub itself
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from studio.core.files import replace_file
from studio.core.text import LANGUAGES
from studio.host.workspace import Workspace


def read_settings(workspace: Workspace) -> dict[str, Any]:
    """Return the person's settings; a file that cannot be read counts as none, and what it names wrongly is dropped."""
    try:
        settings = json.loads(workspace.settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(settings, dict):
        return {}
    if settings.get("language") not in LANGUAGES:
        settings.pop("language", None)
    for name in ("repairs_off", "repairs_on"):
        names = settings.get(name, [])
        settings[name] = [word for word in names if isinstance(word, str)] if isinstance(names, list) else []
    if not isinstance(settings.get("hub_endpoint", ""), str):
        settings.pop("hub_endpoint")
    return settings


def change_settings(workspace: Workspace, **changes: Any) -> None:
    """Set these settings and leave the others as they are. Raises OSError."""
    write_json(workspace.settings, read_settings(workspace) | changes)


def switch_repair(workspace: Workspace, name: str, *, on: bool) -> None:
    """Let a repair (host/repairs.py) be done from the next start on, or leave it. Raises OSError."""
    settings = read_settings(workspace)
    off = [word for word in settings.get("repairs_off", []) if word != name]
    wanted = [word for word in settings.get("repairs_on", []) if word != name]
    (wanted if on else off).append(name)
    change_settings(workspace, repairs_off=off, repairs_on=wanted)


def write_json(path: Path, data: Any) -> None:
    """Replace the file at `path` by `data` as JSON, in one step. Raises OSError."""
    staged = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    staged.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
    replace_file(staged, path)
