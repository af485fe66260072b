"""The card of an exported GGUF file: what it is, what opened it and how close it is, how to run it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from studio.core.i18n import load_catalogue
from studio.engine.exporters.exporter import ExportJob
from studio.engine.exporters.modelfile import Modelfile
from studio.models.gguf.llama_cpp import PACKAGE
from studio.models.gguf.tensor_types import TypeMix


def write_card(
    job: ExportJob, path: Path, mix: TypeMix, checked: Mapping[str, float], modelfile: Modelfile, *, rows: int
) -> str:
    """Return the card: what it is, how to run it, and what opened it."""
    from studio.engine.artifact import write_card as describe

    card = describe(job.facts, job.record).replace("library_name: peft", "library_name: gguf")
    card = card.replace("library_name: transformers", "library_name: gguf")
    size = f"{path.stat().st_size / 1e6:,.1f} MB, {mix.name}"
    program = f"llama.cpp ({PACKAGE} {version(PACKAGE)})" if checked else ""
    told = (
        f"{program} opened it: same tokens, same chat, {checked['kl']:.2g} nats a token from the 16-bit model."
        if checked
        else "The studio read it again: same tokens and weights. llama.cpp was not there to open it."
    )
    if rows:
        told += f" {rows} of the run's rows said which columns matter most."
    elif mix.usual.endswith("_K"):
        told += " The run's rows were not there any more to say which columns matter most."
    english = load_catalogue("en")
    notes = [english.say(note) for note in modelfile.notes]
    uses = (
        f"- Ollama: `ollama create {path.stem.lower()} -f Modelfile`, then `ollama run {path.stem.lower()}`",
        f"- LM Studio: `lms import {path.name}`",
        f"- llama.cpp: `llama-server -m {path.name}`",
    )
    return card + "\n" + "\n".join((f"`{path.name}`: {size}. {told}", "", *notes, "", *uses)) + "\n"
