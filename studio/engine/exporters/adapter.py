"""The adapter alone, as plain peft loads it: safetensors, tokenizer with template, card."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.i18n import Text, load_catalogue, text
from studio.engine.exporters.exporter import Exporter, ExportJob, probe_ids
from studio.models.architectures import holds_score, name_auto_class, read_architecture
from studio.models.gguf.adapter_file import CONFIG
from studio.models.served_adapter import find_unserved, serve_command
from studio.models.token_list import BASE_CONFIG, has_tokens
from studio.planning.memory_estimate import loaded_bytes

SERVED_NAME = "tuned"
"""What a server's clients call the adapter, until somebody names it otherwise."""
SHARED_MEMORY = ("cpu", "mps")
"""Devices whose memory is the processor's."""


def size_bytes(job: ExportJob) -> int:
    """Return the bytes of the artefact's files."""
    artifact = job.run_folder / job.record.artifact
    files = artifact.rglob("*") if artifact.is_dir() else (artifact,)
    return sum(path.stat().st_size for path in files if path.is_file())


def memory_bytes(job: ExportJob) -> int:
    """Return what loading the base for the check takes of the processor's memory: nothing where a card loads it."""
    return loaded_bytes(job.plan, job.facts) if job.plan.device.value in SHARED_MEMORY else 0


def find_problem(job: ExportJob) -> Text | None:
    """Return that a full run has no adapter."""
    return None if job.record.adapter else text("export.no_adapter.why")


def write(job: ExportJob) -> None:
    """Copy the run's verified adapter, and load the copy onto the base. Raises StudioError for a full run."""
    from studio.engine.artifact import fingerprint, load_artifact, verify_artifact
    from studio.models.adapt import load_adapter
    from studio.models.tokenizer import load_tokenizer

    problem = find_problem(job)
    if problem is not None:
        raise StudioError(text("export.no_adapter"), problem, text("export.no_adapter.fix"))
    job.begin(text("export.phase.write"))
    _copy(job.run_folder / job.record.artifact, job.target)
    _add_use(job)
    job.begin(text("export.phase.check"))
    tuned = load_artifact(job.run_folder, job.record, job.facts, job.plan)
    tokenizer = load_tokenizer(dataclasses.replace(job.facts, folder=str(job.target)))
    expected = fingerprint(tuned, probe_ids(tokenizer))
    again = load_adapter(tuned.unload(), job.target)
    verify_artifact(again, tokenizer, expected, job.plan.dtype.value)


def load_lines(folder: str, base: str) -> tuple[str, ...]:
    """Return the lines of Python that load the adapter in `folder` onto its base; none without a base."""
    if not base:
        return ()
    scores = holds_score(folder)
    cls = "AutoModelForSequenceClassification" if scores else name_auto_class(read_architecture(folder))
    config = Path(folder) / BASE_CONFIG
    settings = f", config=AutoConfig.from_pretrained({str(config)!r})" if config.is_file() else ""
    names = f"AutoConfig, {cls}" if settings else cls
    enlarged = (
        "model.resize_token_embeddings(max(len(tokenizer), model.get_input_embeddings().weight.shape[0]))",
    )
    return (
        f"from peft import PeftModel; from transformers import {names}, AutoTokenizer",
        f"tokenizer = AutoTokenizer.from_pretrained({folder!r})",
        f"model = {cls}.from_pretrained({base!r}{settings}{', num_labels=1' if scores else ''})",
        *(enlarged if has_tokens(folder) else ()),
        f"model = PeftModel.from_pretrained(model, {folder!r})",
        *_serve_lines(Path(folder), base),
    )


def _serve_lines(folder: Path, base: str) -> tuple[str, ...]:
    """Return vLLM's command as a remark behind the Python; nothing where it does not take the adapter."""
    if not (folder / CONFIG).is_file() or find_unserved(folder) is not None:
        return ()
    return (f"# vLLM: {serve_command(folder, base, SERVED_NAME)}",)


def _add_use(job: ExportJob) -> None:
    """Write behind the card how vLLM serves the adapter, or why it does not."""
    card = job.target / "README.md"
    if not card.is_file() or not (job.target / CONFIG).is_file():
        return
    reason = find_unserved(job.target)
    if reason is None:
        base = job.facts.name if "/" in job.facts.name else "BASE"
        told = f"- vLLM: `{serve_command(job.target, base, SERVED_NAME, 'FOLDER')}`"
    else:
        told = f"- vLLM does not serve it as an adapter: {load_catalogue('en').say(reason)} Export the run as `merged`."
    card.write_text(f"{card.read_text(encoding='utf-8')}\n{told}\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


ADAPTER = Exporter(
    name="adapter",
    size_bytes=size_bytes,
    memory_bytes=memory_bytes,
    write=write,
    load_lines=load_lines,
    find_problem=find_problem,
    checked_by="peft",
)
