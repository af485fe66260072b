"""MLflow: its file store in a folder of its own; no server, no telemetry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from studio.services.trackers.tracker import PROJECT, StepValues, Tracker

TAG = "finetune_studio_run"
ENVIRONMENT = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""Its file store asks for the first since 3.17."""


class _Store:
    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=folder.absolute().as_uri())
        known = self._client.get_experiment_by_name(PROJECT)
        place = known.experiment_id if known else self._client.create_experiment(PROJECT)
        found = self._client.search_runs([place], f"tags.{TAG} = '{run}'")
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._client.create_run(place, run_name=run, tags={TAG: run}).info.run_id
            params = [Param(name, str(value)[:500]) for name, value in settings.items()]
            self._client.log_batch(self._run, params=params[:100])
        names = self._client.get_run(self._run).data.metrics
        self.written = {
            (name, one.step) for name in names for one in self._client.get_metric_history(self._run, name)
        }

    def write(self, points: Iterable[StepValues]) -> None:
        """Append points to the files of their series."""
        metrics = [
            self._metric(name, value, int(point.time_s * 1000), point.step)
            for point in points
            for name, value in point.values.items()
        ]
        for first in range(0, len(metrics), 1000):  # the most that it takes at once
            self._client.log_batch(self._run, metrics=metrics[first : first + 1000])

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._run)


MLFLOW = Tracker("mlflow", "mlflow-skinny", "mlflow", _Store, lambda folder: ENVIRONMENT)
