"""The adapter alone, as plain peft loads it: safetensors, tokenizer with template, card."""

from __future__ import annotations

import shutil

from studio.core.errors import StudioError
from studio.core.text import text
from studio.engine.exporters.exporter import Exporter, ExportJob


def size_bytes(job: ExportJob) -> int:
    """Return the bytes of the artefact's files."""
    source = job.run_folder / job.record.artifact
    return sum(path.stat().st_size for path in source.rglob("*") if path.is_file())


def write(job: ExportJob) -> None:
    """Copy the run's verified adapter. Raises StudioError for a run that trained every weight."""
    if not job.record.adapter:
        raise StudioError(
            text("export.no_adapter"), text("export.no_adapter.why"), text("export.no_adapter.fix")
        )
    shutil.copytree(job.run_folder / job.record.artifact, job.target, dirs_exist_ok=True)


ADAPTER = Exporter(name="adapter", size_bytes=size_bytes, write=write)
