"""What the test of rewards said last: rewards that it refused are not trained by unless a person insists.

A verdict belongs to the rewards as they were (weights, options, the words of a person's code) and to the data that they
were tried on (its files as they were, its mapping and split): who changes one of them has not been tested yet.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from studio.core.atomic_files import write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.core.recipe import DatasetSpec, RewardSpec
from studio.machine.workspace import Workspace

FILE_NAME = "refused.json"
MOST_KEPT = 200
"""Refusals that are remembered, the latest ones."""
FEW_FILES = 1000
"""Of a folder of data, more are not looked at one by one."""


class RewardVerdicts:
    """The refusals of one workspace. Methods may be called from any thread."""

    def __init__(self, workspace: Workspace) -> None:
        self._file = workspace.root / "rewards" / FILE_NAME
        self._lock = threading.Lock()

    def note(self, rewards: Sequence[RewardSpec], data: DatasetSpec, refused: Text | None) -> None:
        """Remember why the test refused `rewards` on `data`; None: it let them pass. Raises StudioError, OSError."""
        key = _identify(rewards, data)
        with self._lock:
            known = self._read()
            before = known.pop(key, None)
            if refused is None and before is None:
                return
            if refused is not None:
                known[key] = refused
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, to_json(dict(list(known.items())[-MOST_KEPT:])))

    def find(self, rewards: Sequence[RewardSpec], data: DatasetSpec) -> Text | None:
        """Return why the test refused `rewards` as they stand on `data`; None where it did not, or was not asked."""
        try:
            return self._read().get(_identify(rewards, data)) if rewards and self._file.exists() else None
        except StudioError:
            return None  # a reward that cannot be made: RewardCode.find_problems says why

    def _read(self) -> dict[str, Text]:
        try:
            found = read_json(self._file)
        except StudioError:
            return {}  # nothing was refused yet; what cannot be read is tested again
        listed = found.items() if isinstance(found, dict) else ()
        known = {}
        for key, one in listed:
            try:
                known[str(key)] = from_json(Text, one)
            except RecipeError:
                continue  # of a later version
        return known


def find_refusal(rewards: Sequence[RewardSpec], refused: Text) -> Problem:
    """Return what a check says of rewards that the test refused: an error, a warning where a person insists."""
    insists = any(spec.insist for spec in rewards)
    id = "reward.tested.insisted" if insists else "reward.tested"
    return Problem(
        field="rewards",
        message=text(id, why=refused),
        fix=text(f"{id}.fix"),
        severity="warning" if insists else "error",
    )


def _identify(rewards: Sequence[RewardSpec], data: DatasetSpec) -> str:
    """Return 24 letters that change when the rewards or the data do. Raises StudioError for what is no reward."""
    from studio.engine.rewards import make_reward
    from studio.engine.rewards.code import Code, read_code

    facts: list[Any] = [
        sorted(data.mapping.items()),
        data.split,
        data.config,
        data.sheet,
        *_look(data.source),
    ]
    for spec in rewards:
        made = make_reward(spec)
        options = (
            {**to_json(made), "path": read_code(Path(made.path))} if isinstance(made, Code) else to_json(made)
        )
        facts.append([made.name, spec.weight, options])
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _look(source: str) -> Iterator[Any]:
    """Yield what a source of data is known by: its files' names, bytes and times; a name that is no file is itself."""
    path = Path(source)
    if not source or not path.exists():
        yield source
        return
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())[:FEW_FILES]
    yield str(path.resolve())
    for file in files:
        found = file.stat()
        yield [file.name, found.st_size, found.st_mtime_ns]
