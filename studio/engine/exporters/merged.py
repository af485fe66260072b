"""One 16-bit model with the adapter's corrections added into its weights: loads anywhere without peft."""

from __future__ import annotations

import dataclasses
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM

from studio.core.errors import StudioError
from studio.core.text import text
from studio.engine.artifact import strip_path, write_card
from studio.engine.exporters.exporter import Exporter, ExportJob
from studio.models.adapt import load_adapter
from studio.models.load import load_model, load_tokenizer


def size_bytes(job: ExportJob) -> int:
    """Return two bytes for each parameter."""
    return 2 * job.facts.parameters


def require_memory(job: ExportJob) -> None:
    """Raise StudioError when the fp32 weights, and one fifth more for the merge, exceed the free memory."""
    needed_bytes, free_bytes = round(job.facts.parameters * 4 * 1.2), psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        needed_gb, free_gb = f"{needed_bytes / 1e9:.1f}", f"{free_bytes / 1e9:.1f}"
        raise StudioError(
            text("export.memory", name=job.facts.name),
            text("export.memory.why", needed_gb=needed_gb, free_gb=free_gb),
            text("export.memory.fix"),
        )


def write(job: ExportJob) -> None:
    """Merge in fp32 on the CPU and store as 16 bit: adding small corrections to 16-bit weights would lose part of them.

    A base stored quantised is dequantised first.
    """
    require_memory(job)
    kept = torch.float16 if job.facts.dtype == "fp16" else torch.bfloat16
    if job.record.adapter:
        base = load_model(job.facts, device="cpu", dtype="fp32").model
        quantized = job.facts.quantization != "none"
        plain = base.dequantize() if quantized else base
        model = load_adapter(plain, job.run_folder / job.record.artifact).merge_and_unload()
        model = _plain_copy(model) if quantized else model
    else:
        saved = dataclasses.replace(
            job.facts, folder=str(job.run_folder / job.record.artifact), quantization="none"
        )
        model = load_model(saved, device="cpu", dtype="fp32").model
    model = model.to(kept)
    model.save_pretrained(job.target)
    strip_path(job.target / "config.json")
    load_tokenizer(job.facts).save_pretrained(job.target)
    (job.target / "README.md").write_text(write_card(job.facts, job.record), encoding="utf-8")


def _plain_copy(model: Any) -> Any:
    """Return the same weights in a model that knows nothing of quantisation.

    transformers 5.23 keeps the loader of the quantised files on a dequantised model and then cannot save it.
    """
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(model.config, trust_remote_code=False)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


MERGED = Exporter(name="merged", size_bytes=size_bytes, write=write)
