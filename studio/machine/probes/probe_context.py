"""What every look at the machine starts from: the environment, as it is and as the person has it, and the workspace."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from studio.machine.repairs import restore_environment
from studio.machine.workspace import WORKSPACE_VARIABLE, Workspace

SYSTEMS = {"win32": "Windows", "darwin": "Darwin"}
PROGRAM = Path(__file__).resolve().parents[3]
"""The folder that holds launch.py."""


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """Where one look is taken."""

    effective: Mapping[str, str]
    """The environment that child processes get."""
    environment: Mapping[str, str]
    """The same before any repair of ours."""
    workspace: Workspace | None
    system: str
    """`Linux`, `Windows` or `Darwin`."""

    def read(self, name: str) -> str:
        """Return the person's variable `name`, "" when unset; Windows matches names without case."""
        if self.system != "Windows":
            return self.environment.get(name, "")
        wanted = name.upper()
        return next((value for key, value in self.environment.items() if key.upper() == wanted), "")


def survey(environment: Mapping[str, str], workspace_root: Path | None = None) -> ProbeContext:
    """Return the Surroundings of `environment`; the workspace is the one that it names when no other is given."""
    root = workspace_root or environment.get(WORKSPACE_VARIABLE)
    return ProbeContext(
        effective=environment,
        environment=restore_environment(environment),
        workspace=Workspace(Path(root)) if root else None,
        system=SYSTEMS.get(sys.platform, "Linux"),
    )


def read_words(path: Path) -> list[str]:
    """Return the words of a small system file, none where it does not exist or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
