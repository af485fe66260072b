"""The window's scripts: each lies beside the code whose parts it moves, named by its path below studio/ui."""

from __future__ import annotations

from pathlib import Path

UI = Path(__file__).resolve().parents[1]
RUNTIME = "shell/runtime.js"


def read_script(name: str) -> str:
    """Return a script, such as "tabs/runs/script.js"; behind the runtime (runtime.js) where it uses that."""
    script = (UI / name).read_text(encoding="utf-8")
    return (UI / RUNTIME).read_text(encoding="utf-8") + script if "runtime." in script else script
