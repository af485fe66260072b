"""One 16-bit model with the adapter's corrections added into its weights: loads anywhere without peft."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.i18n import text
from studio.core.json_file import parse_json
from studio.engine.exporters.exporter import Exporter, ExportJob, probe_ids, require_memory
from studio.engine.exporters.kept_parts import KeptParts
from studio.engine.exporters.streamed_merge import BESIDE_BYTES, can_stream, count_bytes, write_streamed
from studio.engine.run_folder import RunFolder
from studio.models.architectures import holds_score, name_auto_class, read_architecture

if TYPE_CHECKING:
    from studio.engine.artifact import Fingerprint

EXPECTED = "expected.safetensors"
"""A kept part: what the weights that were written compute."""


def size_bytes(job: ExportJob) -> int:
    """Return two bytes for each parameter."""
    return 2 * job.facts.parameters


def memory_bytes(job: ExportJob) -> int:
    """Return what the largest part takes, where it is written part by part; else the fp32 weights and a fifth more."""
    return count_bytes(job) if can_stream(job) else whole_bytes(job)


def whole_bytes(job: ExportJob) -> int:
    """Return what the whole model takes: the fp32 weights, and one fifth more for the merge."""
    return round(job.facts.parameters * 4 * 1.2) + BESIDE_BYTES


def write(job: ExportJob) -> None:
    """Merge in fp32 on the CPU and store as 16 bit: adding small corrections to 16-bit weights would lose part of them.

    Weight by weight, and opened layer by layer, where can_stream(); all else in memory as a whole.
    A base that was trained on quantised is quantised again and opened: the corrections were learned on those weights.
    The files are loaded again and compared with what was stored, computing in fp32: in 16 bits, a rounding that differs
    between two loads sends tokens to other experts, and two equal models seem to differ (Hunyuan's, Bailing's).
    Files that an earlier attempt wrote as a whole are checked, and not written again.
    """
    from studio.engine.artifact import verify_artifact, write_card
    from studio.models.load import load_model
    from studio.models.score_head import load_classifier
    from studio.models.streamed_model import draw_streamed, read_folder, stream
    from studio.models.tokenizer import load_tokenizer

    parts = KeptParts(job.target)
    kept = parts.list_files()
    if f"{parts.folder.name}/{EXPECTED}" in kept and parts.has_all(kept):
        job.begin(text("export.phase.kept"))
        tokenizer = load_tokenizer(dataclasses.replace(job.facts, folder=str(job.target)))
        expected = _read_expected(parts.folder / EXPECTED)
    else:
        for left in job.target.glob("*.safetensors*"):  # of another number of files
            left.unlink()
        tokenizer, expected = store(job)
        (job.target / "README.md").write_text(write_card(job.facts, job.record), encoding="utf-8")
        parts.folder.mkdir(exist_ok=True)
        _keep_expected(expected, parts.folder / EXPECTED)
        written = (path for path in job.target.iterdir() if path.is_file() and path.suffix != ".tmp")
        named = (path for path in written if not path.name.startswith("studio-"))
        parts.keep([*sorted(named), parts.folder / EXPECTED])
    gc.collect()  # the merged model makes room for the stored one
    job.begin(text("export.phase.check"))
    stored = dataclasses.replace(job.facts, folder=str(job.target), quantization="none")
    attention = job.plan.attention.value
    opened = draw_streamed(job.target, attention) if can_stream(job) else None
    if opened is not None:
        read = read_folder(opened, job.target)
        stream(opened, read, job.go_on)
        verify_artifact(opened, tokenizer, expected, "fp32", read)
        return
    settings = {"device": "cpu", "dtype": "fp32", "attention": attention}
    read = load_classifier(job.target) if holds_score(job.target) else load_model(stored, **settings).model
    verify_artifact(read, tokenizer, expected, "fp32")


def store_once(job: ExportJob, parts: KeptParts) -> Path:
    """Return the folder of the merged model, a part of another form: written now, where it is not there as a whole.

    Raises what store() raises.
    """
    folder = parts.folder / "merged"
    if parts.has(f"{parts.folder.name}/merged"):
        job.begin(text("export.phase.kept"))
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store(dataclasses.replace(job, target=folder))
    parts.keep(sorted(path for path in folder.rglob("*") if path.is_file()))
    return folder


def store(job: ExportJob) -> tuple[Any, Fingerprint]:
    """Write the merged model into job.target; return its tokenizer and what it computes in fp32. See write()."""
    from studio.engine.artifact import copy_processor
    from studio.engine.legacy_config import add_older_spelling
    from studio.models.tokenizer import load_tokenizer

    kept = "fp16" if job.facts.dtype == "fp16" else "bf16"
    artifact = dataclasses.replace(job.facts, folder=str(job.run_folder / job.record.artifact))
    tokenizer = load_tokenizer(artifact)  # with the template that the run's examples were written in
    expected = _write_weights(job, tokenizer, kept)
    tokenizer.save_pretrained(job.target)
    copy_processor(job.facts.folder, job.target)
    add_older_spelling(job.target)
    return tokenizer, expected


def _write_weights(job: ExportJob, tokenizer: Any, kept: str) -> Fingerprint:
    """Store the weights as `kept` (bf16, fp16) and return what they compute in fp32."""
    import torch

    from studio.engine.artifact import fingerprint, strip_path
    from studio.engine.stop_tokens import set_ends
    from studio.models.adapt import cast_weights, load_adapter, merge
    from studio.models.load import DTYPES, load_model
    from studio.models.score_head import make_classifier

    job.begin(text("export.phase.load"))
    streamed = write_streamed(job, tokenizer, DTYPES[kept]) if can_stream(job) else None
    if streamed is not None:
        return streamed
    require_memory(whole_bytes(job), job.facts.name)  # before, a part of it may have been asked for
    settings = {"device": "cpu", "dtype": "fp32", "attention": job.plan.attention.value}
    if job.record.adapter:
        trained_on = job.plan.quantization.value
        settings["base"] = RunFolder(job.run_folder).find_base(job.plan)
        base = load_model(job.facts, quantization=trained_on, rope=job.plan.rope.value, **settings).model
        quantized = trained_on != "none"
        plain = base.dequantize() if quantized else base
        tuned = load_adapter(plain, job.run_folder / job.record.artifact)
        job.begin(text("export.phase.merge"))
        model = merge(tuned)
        model = _plain_copy(model) if quantized else model
    else:
        saved = dataclasses.replace(
            job.facts, folder=str(job.run_folder / job.record.artifact), quantization="none"
        )
        model = load_model(saved, **settings).model
    set_ends(model, tokenizer)  # whoever loads these files stops where the run's answers end
    if holds_score(job.run_folder / job.record.artifact):
        model = make_classifier(model)
    cast_weights(model, DTYPES[kept], job.record.seed)
    job.begin(text("export.phase.write"))
    model.save_pretrained(job.target, max_shard_size="5GB")
    strip_path(job.target / "config.json")
    cast_weights(model, torch.float32, job.record.seed)  # exact: the same numbers in more bits
    return fingerprint(model, probe_ids(tokenizer))


def _plain_copy(model: Any) -> Any:
    """Return the same weights in a model that knows nothing of quantisation.

    transformers 5.23 keeps the loader of the quantised files on a dequantised model and then cannot save it.
    """
    import torch

    with torch.device("meta"):
        plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict(), assign=True)
    for name, buffer in model.named_buffers():  # such as the rotary frequencies, which no state holds
        if plain.get_buffer(name).is_meta:
            place, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(place), leaf, buffer)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain


def _keep_expected(expected: Fingerprint, path: Path) -> None:
    from safetensors.torch import save_file

    weights = {name: [str(dtype), sums.hex()] for name, (dtype, sums) in expected.weights.items()}
    tensors = {"ids": expected.ids.contiguous(), "logits": expected.logits.contiguous()}
    save_file(tensors, path, metadata={"weights": json.dumps(weights)})


def _read_expected(path: Path) -> Fingerprint:
    import torch
    from safetensors import safe_open

    from studio.engine.artifact import Fingerprint

    with safe_open(path, framework="pt") as file:
        weights = parse_json(file.metadata()["weights"])
        return Fingerprint(
            file.get_tensor("ids"),
            file.get_tensor("logits"),
            {
                name: (getattr(torch, dtype.removeprefix("torch.")), bytes.fromhex(sums))
                for name, (dtype, sums) in weights.items()
            },
        )


def load_lines(folder: str, base: str) -> tuple[str, ...]:
    """Return the lines of Python that load the model in `folder`."""
    cls = name_auto_class(read_architecture(folder))
    return (
        f"from transformers import {cls}, AutoTokenizer",
        f"model = {cls}.from_pretrained({folder!r})",
        f"tokenizer = AutoTokenizer.from_pretrained({folder!r})",
    )


MERGED = Exporter(
    name="merged",
    size_bytes=size_bytes,
    memory_bytes=memory_bytes,
    write=write,
    load_lines=load_lines,
    merges=True,
    place="server",
)
