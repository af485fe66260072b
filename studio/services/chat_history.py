"""The last talk with each run, kept in the workspace so that a reload shows it again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.json_file import read_json
from studio.core.run_record import SIDES
from studio.machine.workspace import Workspace

BASE_TALK = "base-model"
"""The name under which the talk with a base model alone is kept."""
KEPT_TURNS = 200
FIGURES = ("tokens", "first_s", "tokens_per_s", "seed", "stopped", "unfinished")


class TalkFiles:
    """talks/RUN.json: {system, base, tuned}, each side a list of turns {role, content, and what an answer took}."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def read(self, run: str) -> dict[str, Any]:
        """Return the last talk with `run` ("" the base model); an unreadable one is empty. Raises StudioError."""
        path = self._path(run)
        try:
            data = read_json(path)
            sides = {side: [_read_turn(turn) for turn in data[side]] for side in SIDES}
            return {"system": str(data.get("system", "")), **sides}
        except (StudioError, ValueError, KeyError, TypeError, AttributeError):
            return {"system": "", "base": [], "tuned": []}

    def keep(self, run: str, talk: Mapping[str, Any]) -> None:
        """Remember the talk with `run`, and forget those of runs that are gone. Raises StudioError, OSError."""
        path = self._path(run)
        path.parent.mkdir(exist_ok=True)
        kept = {side: [_read_turn(turn) for turn in talk[side]][-KEPT_TURNS:] for side in SIDES}
        write_json(path, {"system": str(talk.get("system", "")), **kept})
        for other in path.parent.glob("*.json"):
            if other.stem != BASE_TALK and not (self.workspace.runs / other.stem).is_dir():
                other.unlink(missing_ok=True)

    def forget(self, run: str) -> None:
        """Delete the talk with a run that was deleted; one that is held open goes when another is kept."""
        with suppress(OSError):
            self._file(run).unlink(missing_ok=True)

    def _path(self, run: str) -> Path:
        if run:
            from studio.engine.run_folder import find_run

            run = find_run(self.workspace.runs, run).run
        return self._file(run)

    def _file(self, run: str) -> Path:
        return self.workspace.root / "talks" / f"{run or BASE_TALK}.json"


def _read_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return one turn of a talk as it is kept. Raises TypeError, KeyError for anything else."""
    if turn["role"] not in ("user", "assistant") or not isinstance(turn["content"], str):
        raise TypeError(turn["role"])
    numbers = {name: turn[name] for name in FIGURES if isinstance(turn.get(name), (int, float))}
    figures = {name: number for name, number in numbers.items() if math.isfinite(number)}
    return {"role": turn["role"], "content": turn["content"]} | figures
