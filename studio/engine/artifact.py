"""The result of a run: written without local paths, reloaded onto an untouched base and compared before it counts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig

from studio.core.atomic_files import replace_file
from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.core.run_record import RunRecord
from studio.engine.legacy_config import add_older_spelling
from studio.engine.run_folder import RunFolder
from studio.models.adapt import evaluation_mode, load_adapter
from studio.models.load import load_model, set_evaluation
from studio.models.modules_to_save import adapter_state, save_adapter
from studio.models.token_list import BASE_CONFIG

PROBE_TOKENS = 24
"""Tokens of the batch on which the reloaded artefact is compared."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
SUMMED = 1024
"""Numbers of 8 bytes in a row that sum_frozen adds up."""


def save_artifact(model: Any, tokenizer: Any, folder: Path, facts: ModelFacts, record: RunRecord) -> str:
    """Write the adapter (LoRA) or the model (full) beside its tokenizer and card; returns the folder's name.

    Staged in a sibling and renamed, so that a kill leaves no half-written artefact. Raises OSError.
    """
    name = "adapter" if record.adapter else "model"
    staging = folder / f".{name}-staging"
    shutil.rmtree(staging, ignore_errors=True)
    if record.adapter:
        save_adapter(model, staging)
    else:
        model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    if record.adapter:
        name_base(staging, facts)
        note_rope(model, facts, staging)
    else:
        strip_path(staging / "config.json")
        copy_processor(facts.folder, staging)
    add_older_spelling(staging)
    (staging / "README.md").write_text(write_card(facts, record), encoding="utf-8")
    final = folder / name
    if final.exists():
        shutil.rmtree(final)
    replace_file(staging, final)
    return name


def name_base(adapter: Path, facts: ModelFacts) -> None:
    """Name the base in adapter_config.json by hub id or folder name: peft writes the local path it was loaded from.

    And its class, which peft leaves out where it knows the task: who loads the adapter needs to know of pictures.
    """
    path = adapter / "adapter_config.json"
    config = read_json(path)
    config["base_model_name_or_path"] = facts.name
    config["auto_mapping"] = {"base_model_class": facts.architecture, "parent_library": "transformers"}
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def note_rope(model: Any, facts: ModelFacts, adapter: Path) -> None:
    """Write the base's settings beside an adapter that was trained with stretched positions: it holds for these alone.

    `base_config.json` is what AutoConfig.from_pretrained() takes for loading the base.
    """
    own = AutoConfig.from_pretrained(facts.folder, trust_remote_code=False, local_files_only=True)
    before, now = (getattr(one.get_text_config(), "rope_parameters", None) for one in (own, model.config))
    if before == now:
        return
    model.config.save_pretrained(adapter)
    config_path = adapter / "config.json"
    strip_path(config_path)
    add_older_spelling(adapter)
    replace_file(config_path, adapter / BASE_CONFIG)


def copy_processor(source: str, target: Path) -> None:
    """Copy what a model has beside weights and tokenizer to read pictures and sound by."""
    for name in PROCESSOR_FILES:
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, target / name)


def strip_path(config_path: Path) -> None:
    """Remove `_name_or_path` from a model's config.json: it can hold a local path."""
    config = read_json(config_path)
    if config.pop("_name_or_path", None) is not None:
        config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_card(facts: ModelFacts, record: RunRecord) -> str:
    """Return the model card: base, method, data and versions as recorded; nothing that was not measured."""
    kind = "LoRA adapter" if record.adapter else "model"
    lines = [
        "---",
        *(
            [f"base_model: {facts.name}", "library_name: peft"]
            if record.adapter
            else ["library_name: transformers"]
        ),
        "tags: [finetune-studio]",
        "---",
        f"# {record.name}",
        "",
        f"A {kind} fine-tuned from `{facts.name}` (weights sha256 `{record.base_hash[:16]}`) with Finetune Studio.",
        "",
        "| | |",
        "|---|---|",
        f"| steps | {record.steps} |",
        f"| last training loss | {record.loss:.4f} |"
        if record.loss is not None
        else "| last training loss | - |",
        *([f"| validation loss | {record.eval_loss:.4f} |"] if record.eval_loss is not None else []),
        *([f"| held-out reward | {record.eval_reward:.4f} |"] if record.eval_reward is not None else []),
        f"| seed | {record.seed} |",
        f"| data sha256 | `{record.data_hash[:16]}` |",
        f"| hardware | {record.gpu or 'CPU'} |",
        "| versions | "
        + ", ".join(f"{name} {version}" for name, version in sorted(record.packages.items()))
        + " |",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What was trained and what it computes on one batch: enough to compare the reloaded artefact with."""

    ids: torch.Tensor
    """(1, S) int64"""
    logits: torch.Tensor
    """(S, V) fp32"""
    weights: dict[str, tuple[torch.dtype, bytes]]
    """The dtype and a hash of each tensor that an artefact holds, by name."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What is left of a training once its artefact is on disk: enough to check it."""

    facts: ModelFacts
    plan: BackendPlan
    tokenizer: Any
    fingerprint: Fingerprint
    loss: float
    base: Any
    """The base model without the adapter, where it is still what its files hold; else None."""


@torch.no_grad()
def fingerprint(
    model: Any,
    token_ids: list[int],
    like: Fingerprint | None = None,
    read: Callable[[str], torch.Tensor] | None = None,
) -> Fingerprint:
    """Return what `model` holds, and its logits on (the first PROBE_TOKENS of) `token_ids`.

    `like`: what it is to be compared with, in whose dtypes its tensors are hashed: some models load a few of their
    16-bit tensors as fp32. `read`: gives the weights of a streamed model by name (models/streamed_model.py).
    """
    ids, logits = probe(model, token_ids)
    stored = dict(model.named_parameters())
    if isinstance(model, PeftModel):
        stored = adapter_state(model)
    dtypes = {name: dtype for name, (dtype, _) in like.weights.items()} if like else {}
    weights = {}
    for name, held in stored.items():
        tensor = held if read is None else read(name)
        dtype = dtypes.get(name, tensor.dtype)
        weights[name] = dtype, sum_bits(tensor.to(dtype))
    return Fingerprint(ids, logits, weights)


@torch.no_grad()
def probe(model: Any, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (the first PROBE_TOKENS of) `token_ids`, (1, S), and the logits of `model` on them, (S, V) fp32."""
    ids = torch.tensor([token_ids[:PROBE_TOKENS]], device=next(model.parameters()).device)
    with evaluation_mode(model):
        logits = model(input_ids=ids, use_cache=False).logits[0].float().cpu()
    return ids.cpu(), logits


@torch.no_grad()
def sum_frozen(model: Any) -> dict[str, bytes]:
    """Return a hash of each weight and buffer that training must leave alone, by name; reads them twice.

    Weights that still have the hashes with which they were loaded need not be loaded again to be sure of them.
    """
    sums = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.requires_grad:
            continue
        parts = [tensor.detach()]
        state = getattr(tensor, "quant_state", None)  # bitsandbytes: the scales of a 4-bit weight
        while state is not None:
            parts += [part for part in (state.absmax, state.offset) if part is not None]
            state = state.state2
        sums[name] = b"".join(sum_bits(part) for part in parts)
    return sums


def sum_bits(tensor: torch.Tensor) -> bytes:
    """Return a hash of a tensor's bits: of the sums of their rows and columns as whole numbers of 8 bytes, modulo 2^64.

    A sum of what is moved or swapped would stay the same in one direction, not in both.
    """
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    row_bytes = 8 * SUMMED
    even = len(flat) // row_bytes * row_bytes
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(flat[even:].cpu().numpy().tobytes())
    if even:
        square = flat[:even].view(torch.int64).view(-1, SUMMED)
        for dim in (0, 1):
            digest.update(square.sum(dim).cpu().numpy().tobytes())
    return digest.digest()


def load_artifact(
    folder: Path, record: RunRecord, facts: ModelFacts, plan: BackendPlan, base: Any = None
) -> Any:
    """Return the artefact as a user would load it: a fresh base with the adapter on it, or the saved model.

    base: the base in memory, where it is known to be what its files hold; None reads it.
    """
    if base is not None:
        return load_adapter(base, folder / record.artifact)
    settings = {"device": plan.device.value, "attention": plan.attention.value}
    if not record.adapter:
        saved = dataclasses.replace(facts, folder=str(folder / record.artifact), quantization="none")
        return load_model(saved, dtype=plan.dtype.value, **settings).model
    settings |= {"quantization": plan.quantization.value, "rope": plan.rope.value}
    settings["base"] = RunFolder(folder).find_base(plan)
    base = load_model(facts, dtype=plan.dtype.value, **settings).model
    return load_adapter(base, folder / record.artifact)


@torch.no_grad()
def verify_artifact(
    model: Any,
    tokenizer: Any,
    expected: Fingerprint,
    dtype: str,
    read: Callable[[str], torch.Tensor] | None = None,
) -> None:
    """Compare a reloaded artefact with the trained model's Fingerprint and let it write a few tokens.

    read: as for fingerprint(); such a model, which reads all its weights for each token, writes one.

    Raises StudioError when a tensor is not the one that was trained, to the bit; or when the logits differ by more
    than rounding (fp32 1e-3, 16-bit 5 % of their spread: a card may choose other kernels for them), or are not finite.
    """
    found = fingerprint(model, expected.ids[0].tolist(), expected, read)
    changed = [name for name, known in expected.weights.items() if found.weights.get(name) != known]
    if changed:
        why = text("trial.differs.why", count=len(changed), first=changed[0])
        raise StudioError(text("artifact.differs"), why, text("artifact.differs.fix"), exit_code=1)
    ids, logits = expected.ids.to(next(model.parameters()).device), found.logits
    set_evaluation(model)
    spread = float(expected.logits.std())
    tolerance = 1e-3 * max(1.0, spread) if dtype == "fp32" else 0.05 * spread + 0.02
    difference = float((logits - expected.logits).abs().max())
    if not difference <= tolerance:  # also true for a NaN
        raise StudioError(
            text("artifact.differs"),
            text("artifact.differs.why", difference=difference, tolerance=tolerance),
            text("artifact.differs.fix"),
            exit_code=1,
        )
    if model.get_output_embeddings() is None:
        return  # it gives scores
    count = 8 if read is None else 1
    out = model.generate(
        input_ids=ids, max_new_tokens=count, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    if out.shape[1] <= ids.shape[1]:
        raise StudioError(
            text("artifact.silent"), text("artifact.silent.why"), text("artifact.differs.fix"), exit_code=1
        )
