"""The window's scripts: each lies beside the code whose parts it moves, named by its path below studio/ui."""

from __future__ import annotations

from pathlib import Path

from studio.ui.style import UPLOT

UI = Path(__file__).resolve().parents[1]
LIBRARIES = {
    "runtime.": (UI / "shell/runtime.js",),
    "plots.": (UPLOT / "uPlot.iife.min.js", UI / "shell/plots.js"),
}
"""What a script names that uses them -> the files that stand in front of it."""


def read_script(name: str) -> str:
    """Return a script, such as "tabs/runs/script.js", behind the libraries that it uses."""
    script = (UI / name).read_text(encoding="utf-8")
    used = [file for word, files in LIBRARIES.items() if word in script for file in files]
    return "".join(file.read_text(encoding="utf-8") for file in used) + script
