"""The result of a run: written without local paths, reloaded into a fresh base and compared before it counts."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from studio.core.errors import StudioError
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.files import replace_file
from studio.core.record import RunRecord
from studio.core.text import text
from studio.models.adapt import evaluation_mode, load_adapter
from studio.models.load import load_model, set_evaluation

PROBE_TOKENS = 24
"""Tokens of the batch on which the reloaded artefact is compared."""


def save_artifact(model: Any, tokenizer: Any, folder: Path, facts: ModelFacts, record: RunRecord) -> str:
    """Write the adapter (LoRA) or the model (full) beside its tokenizer and card; returns the folder's name.

    Staged in a sibling and renamed, so that a kill leaves no half-written artefact. Raises OSError.
    """
    name = "adapter" if record.adapter else "model"
    staging = folder / f".{name}-staging"
    shutil.rmtree(staging, ignore_errors=True)
    model.save_pretrained(staging)
    tokenizer.save_pretrained(staging)
    if record.adapter:
        name_base(staging, facts.name)
    else:
        strip_path(staging / "config.json")
    (staging / "README.md").write_text(write_card(facts, record), encoding="utf-8")
    final = folder / name
    if final.exists():
        shutil.rmtree(final)
    replace_file(staging, final)
    return name


def name_base(adapter: Path, base: str) -> None:
    """Name the base in adapter_config.json by hub id or folder name: peft writes the local path it was loaded from."""
    path = adapter / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = base
    path.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def strip_path(config_path: Path) -> None:
    """Remove `_name_or_path` from a model's config.json: it can hold a local path."""
    config = json.loads(config_path.read_text(encoding="utf-8"))
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
    """What the trained model computes on one batch, kept on the CPU to compare the reloaded artefact with."""

    ids: torch.Tensor
    """(1, S) int64"""
    logits: torch.Tensor
    """(S, V) fp32"""


@torch.no_grad()
def fingerprint(model: Any, token_ids: list[int]) -> Fingerprint:
    """Return the logits of `model` on (the first PROBE_TOKENS of) `token_ids`."""
    ids = torch.tensor([token_ids[:PROBE_TOKENS]], device=next(model.parameters()).device)
    with evaluation_mode(model):
        logits = model(input_ids=ids, use_cache=False).logits[0].float().cpu()
    return Fingerprint(ids.cpu(), logits)


def load_artifact(folder: Path, record: RunRecord, facts: ModelFacts, plan: BackendPlan) -> Any:
    """Return the artefact as a user would load it: a fresh base with the adapter on it, or the saved model."""
    settings = {"device": plan.device.value, "attention": plan.attention.value}
    if not record.adapter:
        saved = dataclasses.replace(facts, folder=str(folder / record.artifact), quantization="none")
        return load_model(saved, dtype=plan.dtype.value, **settings).model
    base = load_model(facts, dtype=plan.dtype.value, quantization=plan.quantization.value, **settings).model
    return load_adapter(base, folder / record.artifact)


@torch.no_grad()
def verify_artifact(model: Any, tokenizer: Any, expected: Fingerprint, dtype: str) -> None:
    """Compare a reloaded artefact with the trained model's Fingerprint and let it write a few tokens.

    Raises StudioError when the logits differ by more than rounding (fp32 1e-3, 16-bit 5 % of their spread),
    or are not finite.
    """
    ids = expected.ids.to(next(model.parameters()).device)
    set_evaluation(model)
    logits = model(input_ids=ids, use_cache=False).logits[0].float().cpu()
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
    out = model.generate(
        input_ids=ids, max_new_tokens=8, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    if out.shape[1] <= ids.shape[1]:
        raise StudioError(
            text("artifact.silent"), text("artifact.silent.why"), text("artifact.differs.fix"), exit_code=1
        )
