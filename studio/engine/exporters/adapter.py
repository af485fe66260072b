"""The adapter alone, as plain peft loads it: safetensors, tokenizer with template, card."""

from __future__ import annotations

import shutil
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.text import text
from studio.engine.artifact import fingerprint, load_artifact, verify_artifact
from studio.engine.export_sizes import adapter_bytes
from studio.engine.exporters.exporter import Exporter, ExportJob, probe_ids
from studio.models.adapt import load_adapter
from studio.models.load import load_tokenizer


def size_bytes(job: ExportJob) -> int:
    """Return the bytes of the artefact's files."""
    return adapter_bytes(job.run_folder / job.record.artifact)


def write(job: ExportJob) -> None:
    """Copy the run's verified adapter, and load the copy onto the base. Raises StudioError for a full run."""
    if not job.record.adapter:
        raise StudioError(
            text("export.no_adapter"), text("export.no_adapter.why"), text("export.no_adapter.fix")
        )
    job.begin(text("export.phase.write"))
    _copy(job.run_folder / job.record.artifact, job.target)
    job.begin(text("export.phase.check"))
    tuned = load_artifact(job.run_folder, job.record, job.facts, job.plan)
    tokenizer = load_tokenizer(job.facts)
    expected = fingerprint(tuned, probe_ids(tokenizer))
    again = load_adapter(tuned.unload(), job.target)
    verify_artifact(again, tokenizer, expected, job.plan.dtype.value)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


ADAPTER = Exporter(name="adapter", size_bytes=size_bytes, write=write)
