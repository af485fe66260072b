"""The person's settings: a small JSON file in the workspace, written in one step."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.files import replace_file
from studio.core.text import LANGUAGES

if TYPE_CHECKING:
    from studio.host.workspace import Workspace


def read_settings(workspace: Workspace) -> dict:
    """Return the person's settings; a file that cannot be read counts as none, and what it names wrongly is dropped."""
    try:
        settings = json.loads(workspace.settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(settings, dict):
        return {}
    if settings.get("language") not in LANGUAGES:
        settings.pop("language", None)
    return settings


def write_json(path: Path, data: Any) -> None:
    """Replace the file at `path` by `data` as JSON, in one step."""
    staged = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    staged.write_text(json.dumps(data, ensure_ascii=False, indent=1), encoding="utf-8")
    replace_file(staged, path)
