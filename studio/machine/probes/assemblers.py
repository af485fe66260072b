"""Every ptxas that Triton or a person could mean: those that overrides name, and those on PATH."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from studio.core.facts import Tool
from studio.machine.probes.child import ask_program
from studio.machine.probes.probe_context import ProbeContext
from studio.machine.repairs import ASSEMBLER_OVERRIDES

ANSWER_S = 3.0
MOST = 8


def look(here: ProbeContext) -> dict[str, Any]:
    """Return the assemblers with what they say of their release; one that gives no answer has none."""
    paths = find_assemblers(here)[:MOST]
    with ThreadPoolExecutor(max_workers=max(1, len(paths))) as pool:
        return {"assemblers": tuple(pool.map(lambda path: ask_release(path, here), paths))}


def find_assemblers(here: ProbeContext) -> list[str]:
    """Return the paths that overrides hold, as they hold them, and then those on PATH, each once."""
    named = [here.read(name) for name in ASSEMBLER_OVERRIDES]
    program = "ptxas.exe" if here.system == "Windows" else "ptxas"
    folders = here.read("PATH").split(os.pathsep)
    on_path = [os.path.join(folder, program) for folder in folders if folder]
    return list(dict.fromkeys([*filter(None, named), *(path for path in on_path if _is_program(path))]))


def ask_release(path: str, here: ProbeContext) -> Tool:
    """Return the Tool at `path`, asked with `--version`."""
    answer = ask_program([path, "--version"], timeout_s=ANSWER_S, environment=here.effective)
    found = re.search(r"release (\d+\.\d+)", answer.said)
    return Tool(path=path, release=found.group(1) if found else "")


def _is_program(path: str) -> bool:
    return Path(path).is_file() and (os.name == "nt" or os.access(path, os.X_OK))
