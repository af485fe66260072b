"""Where a run lives: its folder's layout, its atomic small files, and the search for runs."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from studio.core.atomic_files import replace_file, write_json
from studio.core.codec import from_json, to_json
from studio.core.errors import StudioError
from studio.core.facts import BackendPlan
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.migrate import lift
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.machine.workspace import LOCAL_VARIABLE

LATEST_S = 32_503_680_000.0
"""The year 3000, where the calendars of some systems end."""
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RECORD_LOCK = "records.lock"
"""Beside the folder of the runs: held for the moment in which one of their run.json is read, changed and written."""
LOCK_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run: recipe.json, plan.json, run.json, events.jsonl, checkpoints/, adapter/ or model/."""

    path: Path

    @property
    def run(self) -> str:
        """The run's id: the folder's name."""
        return self.path.name

    @property
    def events(self) -> Path:
        """The append-only event log."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def mixed_base(self) -> Path:
        """What of the base a run with `model.quantization = "mixed"` holds otherwise than in plain 4 bits."""
        return self.path / "mixed_base.safetensors"

    def find_base(self, plan: BackendPlan) -> Path | None:
        """Return the file that load_model wants for a run of this `plan`; None where it needs none."""
        return self.mixed_base if plan.quantization.value == "mixed" else None

    @property
    def log(self) -> Path:
        """Tracebacks and other words for developers."""
        return self.path / "log.txt"

    def read_recipe(self) -> Recipe:
        """Return the frozen recipe. Raises StudioError when it is of a newer studio or damaged."""
        return from_json(Recipe, lift("recipe", read_json(self.path / "recipe.json")))

    def read_record(self) -> RunRecord:
        """Return run.json. Raises StudioError when it is of a newer studio or damaged."""
        record = from_json(RunRecord, lift("record", read_json(self.path / "run.json")))
        return dataclasses.replace(
            record,
            created_s=_sound(record.created_s),
            ended_s=_sound(record.ended_s),
            timings_s={phase: _sound(seconds) for phase, seconds in record.timings_s.items()},
        )

    def read_name(self, otherwise: str) -> str:
        """Return the name in run.json, `otherwise` where that cannot be read."""
        try:
            return self.read_record().name
        except StudioError:
            return otherwise

    def write_record(self, record: RunRecord) -> None:
        """Make run.json anew, at once: only for a run that nobody else knows of yet. Raises OSError."""
        write_json(self.path / "run.json", to_json(record), lasting=True)

    def change_record(
        self, change: Callable[[RunRecord], RunRecord], otherwise: RunRecord | None = None
    ) -> RunRecord:
        """Replace run.json by what `change` makes of it, and return that; nobody else writes it meanwhile.

        A run that is on is renamed while its engine writes how it ended, in another process too: neither is lost.
        `otherwise` takes the place of a record that cannot be read. Raises StudioError without it, OSError.
        """
        # As Workspace.locks: inside WSL not beside what Windows holds, which cannot be opened there.
        lock = Path(os.environ.get(LOCAL_VARIABLE) or self.path.parent.parent) / RECORD_LOCK
        with FileLock(lock, timeout=LOCK_WAIT_S, thread_local=False):
            try:
                record = self.read_record()
            except StudioError:
                if otherwise is None:
                    raise
                record = otherwise
            record = change(record)
            self.write_record(record)
        return record


def create_run(runs: Path, recipe: Recipe) -> RunFolder:
    """Make a run's folder with the recipe frozen in it; its id is the name or time, and four random characters.

    Raises OSError (disk full); then no folder stays behind.
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", recipe.name).strip("-.")[:60] or time.strftime("%Y%m%d-%H%M%S")
    folder = RunFolder(runs / f"{stem}-{secrets.token_hex(2)}")
    folder.path.mkdir(parents=True)
    name = recipe.name or folder.run
    record = RunRecord(run=folder.run, name=name, state="waiting", created_s=time.time(), seed=recipe.seed)
    try:
        write_json(folder.path / "recipe.json", to_json(recipe), lasting=True)
        folder.write_record(record)
    except OSError:  # a disk that fills just now must not leave a run without a record
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder


def find_run(runs: Path, run: str) -> RunFolder:
    """Return the folder of run id `run`. Raises StudioError when there is none."""
    folder = RunFolder(runs / run)
    if not RUN_NAME.fullmatch(run) or not (folder.path / "run.json").is_file():
        raise StudioError(text("run.unknown", run=run), text("run.unknown.why"), text("run.unknown.fix"))
    return folder


def list_runs(runs: Path) -> Iterator[RunFolder]:
    """Yield the run folders, newest first by their recorded time."""
    found = []
    for path in runs.iterdir() if runs.is_dir() else ():
        if RUN_NAME.fullmatch(path.name) and (path / "run.json").is_file():
            found.append((_created_s(path / "run.json"), path.name, RunFolder(path)))
    yield from (folder for _, _, folder in sorted(found, reverse=True, key=lambda entry: entry[:2]))


def remove_run(folder: RunFolder) -> None:
    """Delete a run: gone for every reader at once, its files after that. Raises OSError while some are held open."""
    gone = folder.path.with_name(f".deleted-{folder.run}")
    shutil.rmtree(gone, ignore_errors=True)
    replace_file(folder.path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def sweep_runs(runs: Path) -> None:
    """Delete what a killed deletion or import left behind. Only for the workspace's owner."""
    for pattern in (".deleted-*", ".import-*"):
        for left in runs.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def _created_s(record: Path) -> float:
    """Return when a run was made; 0 when its record is damaged, so that it is listed last."""
    try:
        created_s = read_json(record)["created_s"]
    except (StudioError, KeyError, TypeError):
        return 0.0
    return _sound(created_s) if isinstance(created_s, (int, float)) else 0.0


def _sound(seconds: float) -> float:
    """Return `seconds`, 0 for what no calendar holds (NaN too): one such record would break every list of runs."""
    return float(seconds) if 0 <= seconds <= LATEST_S else 0.0
