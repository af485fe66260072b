"""trackio: its database in a folder of its own, written by its own package; nothing is uploaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from studio.services.trackers.tracker import PROJECT, StepValues, Tracker


class _Database:
    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        import trackio

        self.written = read_points(run)
        self._run = trackio.init(
            PROJECT,
            name=run,
            config=dict(settings),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, points: Iterable[StepValues]) -> None:
        """Hand points over; its own thread writes them within a second."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)

    def close(self) -> None:
        """Wait until all is written."""
        self._run.finish()


def read_points(run: str) -> set[tuple[str, int]]:
    """Return (series, step) of every point that trackio has of `run`."""
    from trackio.sqlite_storage import SQLiteStorage

    if run not in SQLiteStorage.get_runs(PROJECT):
        return set()
    return {
        (name, entry["step"])
        for entry in SQLiteStorage.get_logs(PROJECT, run)
        for name, value in entry.items()
        if name not in ("step", "timestamp") and isinstance(value, (int, float))
    }


TRACKIO = Tracker("trackio", "trackio", "trackio", _Database, lambda folder: {"TRACKIO_DIR": str(folder)})
