"""A model for Ollama: the usual GGUF file with its Modelfile, and put into Ollama itself where it is installed."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.engine.exporters import gguf_file
from studio.engine.exporters.exporter import ExportJob
from studio.models.gguf.tensor_types import get_mix

PROGRAM = "ollama"
MIX = get_mix("Q4_K_M")
TIMEOUT_S = 1800.0
"""Ollama copies the file into its own store: minutes on a slow disk."""
QUESTION = "Say hello."


def write(job: ExportJob) -> None:
    """Fill job.target with the file, Modelfile and card; then create the model in Ollama, if it is there.

    Raises StudioError where Ollama refuses it, which leaves the file unwritten, and what gguf_file.write() raises.
    """
    gguf_file.write(MIX, job)
    program = shutil.which(PROGRAM)
    if program is None:
        return
    name = name_model(job)
    job.begin(text("export.phase.ollama", name=name))
    _run(program, "create", name, "-f", "Modelfile", folder=job.target)
    try:
        _run(program, "show", "--modelfile", name, folder=job.target)
        _run(program, "run", name, QUESTION, folder=job.target)
    except StudioError:
        subprocess.run([program, "rm", name], capture_output=True, check=False)
        raise
    card = job.target / "README.md"
    told = f"\nIn Ollama on this machine it is called `{name}`: `ollama run {name}`\n"
    card.write_text(card.read_text(encoding="utf-8") + told, encoding="utf-8")


def name_model(job: ExportJob) -> str:
    """Return what the model is called in Ollama: lower case, letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9._-]+", "-", gguf_file.name_model(job).lower()).strip("-._") or "model"


def _run(program: str, *arguments: str, folder: Path) -> None:
    """Raises StudioError with Ollama's own last line where it fails."""
    command = [program, *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, encoding="utf-8", errors="replace",
            timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = (
            ""
            if done.returncode == 0
            else (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if said:
        why = text("export.ollama.failed.why", reason=said.splitlines()[-1][:300])
        raise StudioError(text("export.ollama.failed"), why, text("export.ollama.failed.fix"))


OLLAMA = dataclasses.replace(
    next(one for one in gguf_file.GGUFS if one.name == gguf_file.USUAL), name=PROGRAM, write=write
)
