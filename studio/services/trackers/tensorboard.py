"""TensorBoard: event files in a folder a run, written and read back by its own package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from studio.services.trackers.tracker import StepValues, Tracker


class _Events:
    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.written = read_points(folder / run)
        self._writer = EventFileWriter(str(folder / run))

    def write(self, points: Iterable[StepValues]) -> None:
        """Write points, and flush them."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            event = Event(wall_time=point.time_s, step=point.step, summary=Summary(value=values))
            self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def read_points(folder: Path) -> set[tuple[str, int]]:
    """Return (series, step) of every point that TensorBoard would show of `folder`."""
    if not folder.is_dir():
        return set()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {(tag, event.step) for tag in found.Tags()["scalars"] for event in found.Scalars(tag)}


TENSORBOARD = Tracker("tensorboard", "tensorboard", "tensorboard", _Events)
