"""The run as a plain TRL + PEFT script and notebook: rows as tokens, the adapter before its first step, settings.

Nothing in the folder needs the studio. The script's rows, order, start, schedule and loss are the run's, so that it
reaches the run's losses; `assets/examples/train_with_trl.py` is what is copied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from studio.core.codec import event_from_json, to_json
from studio.core.errors import StudioError
from studio.core.events import StepLogged
from studio.core.i18n import LOCALES, Text, text
from studio.core.json_file import parse_json
from studio.core.recipe import Recipe, settle_rate
from studio.engine.exporters.exporter import Exporter, ExportJob
from studio.engine.run_folder import RunFolder
from studio.planning.memory_estimate import loaded_bytes

SCRIPT = LOCALES.parent / "examples" / "train_with_trl.py"
OBJECTIVES = ("sft", "pretrain")
"""What TRL's trainer for examples computes on ready tokens."""
MOST_AT_ONCE = 8
"""Rows of a micro-batch in the script; steps of more add up."""
TOKEN_BYTES = 14
"""Of a token and its label, written out."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BITS = {"nf4": 4, "int8": 8}


def size_bytes(job: ExportJob) -> int:
    """Return roughly what the rows and the adapter take."""
    artifact = job.run_folder / job.record.artifact
    files = artifact.rglob("*") if job.record.adapter else ()
    return sum(path.stat().st_size for path in files if path.is_file()) + 2**20


def memory_bytes(job: ExportJob) -> int:
    """Return what loading the base takes, whose adapter is begun anew."""
    return loaded_bytes(job.plan, job.facts)


def find_problem(job: ExportJob) -> Text | None:
    """Return why the run cannot be said in TRL's words; None where it can."""
    recipe = RunFolder(job.run_folder).read_recipe()
    reasons = (
        (recipe.objective not in (*OBJECTIVES, "auto"), "export.script.objective"),
        (recipe.data.fill, "export.script.fill"),
        (bool(recipe.adapter.tokens or recipe.adapter.tokens_file), "export.script.tokens"),
        (bool(recipe.adapter.modules_to_save), "export.script.modules"),
        (recipe.model.rope_scaling != "none", "export.script.rope"),
        (job.plan.quantization.value == "mixed", "export.script.mixed"),
        (recipe.optim.optimizer != "adamw", "export.script.optimizer"),
    )
    return next((text(id) for wrong, id in reasons if wrong), None)


def write(job: ExportJob) -> None:
    """Write rows, start, tokenizer, settings, script and notebook into job.target. Raises StudioError."""
    from studio.engine.rows import prepare_rows

    problem = find_problem(job)
    if problem is not None:
        raise StudioError(text("export.script.refused"), problem, text("export.script.refused.fix"))
    folder = RunFolder(job.run_folder)
    recipe = folder.read_recipe()
    job.begin(text("export.phase.rows"))
    tokenizer, data = prepare_rows(recipe, job.facts, None)
    if data.method not in OBJECTIVES or any(one.weights is not None for one in data.train):
        raise StudioError(
            text("export.script.refused"), text("export.script.objective"), text("export.script.refused.fix")
        )
    if job.record.data_hash and data.facts.content_hash != job.record.data_hash:
        raise StudioError(
            text("export.script.refused"), text("export.script.data"), text("export.script.data.fix")
        )
    losses = list(read_losses(folder.events))
    if not losses:
        raise StudioError(
            text("export.script.refused"), text("export.script.losses"), text("export.script.refused.fix")
        )
    _write_rows(job.target / "rows.jsonl", data.train)
    if len(data.validation):
        _write_rows(job.target / "validation.jsonl", data.validation)
    tokenizer.save_pretrained(job.target / "tokenizer")
    job.begin(text("export.phase.write"))
    if job.record.adapter:
        _write_start(job, recipe, tokenizer)
    settings = make_settings(job, recipe, losses)
    words = json.dumps(settings, ensure_ascii=False, indent=1) + "\n"
    (job.target / "settings.json").write_text(words, encoding="utf-8")
    body = SCRIPT.read_text(encoding="utf-8")
    (job.target / "train.py").write_text(body, encoding="utf-8")
    (job.target / "train.ipynb").write_text(make_notebook(body), encoding="utf-8")
    versions = {name: job.record.packages.get(name, "") for name in ("torch", "transformers", "trl", "peft")}
    needed = [f"{name}=={version.partition('+')[0]}" for name, version in versions.items() if version]
    (job.target / "requirements.txt").write_text("\n".join(needed or versions) + "\n", encoding="utf-8")


def read_losses(events: Path) -> Iterator[float]:
    """Yield the loss of each step of a run, of a step that was done again the last one."""
    losses: dict[int, float] = {}
    for line in events.read_bytes().splitlines() if events.is_file() else ():
        try:
            event = event_from_json(parse_json(line))
        except ValueError:
            continue  # torn by a kill
        if isinstance(event, StepLogged):
            losses[event.step] = event.loss
    yield from (losses[step] for step in sorted(losses))


def make_settings(job: ExportJob, recipe: Recipe, losses: Sequence[float]) -> dict[str, Any]:
    """Return what the script reads: model, optimizer, how a step is cut, and the run's losses."""
    rows = recipe.optim.batch_size
    at_once = max(size for size in range(1, min(rows, MOST_AT_ONCE) + 1) if rows % size == 0)
    local = Path(recipe.model.source).exists() or recipe.model.source == "demo"
    return {
        "base": job.facts.folder if local or not recipe.model.source.count("/") == 1 else recipe.model.source,
        "revision": "" if local else recipe.model.revision,
        "dtype": DTYPES["fp32" if not job.record.adapter else job.plan.dtype.value],
        "device": job.plan.device.value,
        "attention": job.plan.attention.value,
        "bits": BITS.get(job.plan.quantization.value, 0),
        "adapter": job.record.adapter,
        "seed": recipe.seed,
        "total_steps": len(losses),
        "rows_at_once": at_once,
        "accumulated": rows // at_once,
        "optim": to_json(settle_rate(recipe).optim),
        "losses": list(losses),
    }


def _write_rows(path: Path, rows: Sequence[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            ids = row.token_ids.tolist()
            labels = [
                one if learned else -100 for one, learned in zip(ids, row.trained.tolist(), strict=True)
            ]
            file.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")


def _write_start(job: ExportJob, recipe: Recipe, tokenizer: Any) -> None:
    """Save the adapter as the run's first step found it: the same seed draws it again."""
    from studio.engine.rng_state import seed_all
    from studio.models.adapt import adapt
    from studio.models.load import load_model

    seed_all(recipe.seed)
    loaded = load_model(
        job.facts,
        device=job.plan.device.value,
        dtype=job.plan.dtype.value,
        quantization=job.plan.quantization.value,
        attention=job.plan.attention.value,
        tokenizer=tokenizer,
        rope=job.plan.rope.value,
    )
    adapted = adapt(loaded.model, recipe.adapter, recipe.model.adapter)
    adapted.save_pretrained(job.target / "start")
    card = job.target / "start" / "README.md"  # peft's own names the base's folder
    card.unlink(missing_ok=True)


def make_notebook(script: str) -> str:
    """Return the script as a notebook: each part that begins with `# %%` is a cell, its first line the heading."""
    cells: list[dict[str, Any]] = []
    for part in script.split("# %% ")[1:]:
        heading, _, code = part.partition("\n")
        cells.append({"cell_type": "markdown", "metadata": {}, "source": [heading]})
        source = code.strip("\n").splitlines(keepends=True)
        cells.append(
            {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        )
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    book = {
        "cells": cells,
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, ensure_ascii=False, indent=1) + "\n"


def load_lines(folder: str, base: str) -> tuple[str, ...]:
    """Return the commands that run it."""
    return (f"pip install -r {Path(folder) / 'requirements.txt'}", f"python {Path(folder) / 'train.py'}")


TRL_SCRIPT = Exporter(
    name="script",
    size_bytes=size_bytes,
    memory_bytes=memory_bytes,
    write=write,
    load_lines=load_lines,
    find_problem=find_problem,
    checked_by="",
)
