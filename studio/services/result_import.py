"""An adapter or a merged model that another tool made, as a finished run: described, compared, talked to, exported.

Of its folder only what a result consists of is taken: safetensors, settings and tokenizer; a pickle is never opened.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studio.core.atomic_files import replace_file, write_json
from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.events import EvalLogged, RunEvent, RunFinished, StepLogged
from studio.core.i18n import Text, literal, text
from studio.core.json_file import read_json
from studio.core.recipe import AdapterSpec, DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.engine.checkpoint import require_space
from studio.engine.run_folder import RunFolder
from studio.models.catalog import StoredTensor, inspect_model, read_header
from studio.services.event_log import EventLog

WEIGHTS = {"adapter": "adapter_model.safetensors", "model": "model.safetensors"}
CONFIGS = {"adapter": "adapter_config.json", "model": "config.json"}
KEPT = re.compile(
    r"(adapter_config|config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|preprocessor_config|processor_config|chat_template|model\.safetensors\.index)\.json"
    r"|(adapter_model|model(-\d+-of-\d+)?)\.safetensors|merges\.txt|tokenizer\.model|chat_template\.jinja"
)
"""Files of a result. What else lies there (training_args.bin, optimizer.pt) is left where it is."""
SMALL_LIMIT_BYTES = 64 * 2**20
PEFT_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.\w+)?\.weight")
MAKERS = (
    ("Unsloth", ("unsloth",), ()),
    ("LLaMA-Factory", ("llama-factory", "llamafactory"), ("llamaboard_config.yaml", "trainer_log.jsonl")),
    ("axolotl", ("axolotl",), ("axolotl_config.yml",)),
    ("ms-swift", ("ms-swift", "swift"), ("args.json", "logging.jsonl")),
    ("TRL", ("trl",), ()),
)  # fmt: skip
"""Tool -> what its model card is tagged with, what lies in its folders; the first one that fits."""
QUANTIZATIONS = ("nf4", "int8")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedResult:
    """A result that is a run now."""

    run: str
    kind: str
    """adapter or model."""
    maker: str
    """The tool that made it; "" where nothing says so."""
    base: str
    notes: tuple[Text, ...]
    """What a person should know: a base that is not here, files that were left."""


def is_result(folder: Path) -> bool:
    """Return whether a folder holds an adapter or a model rather than a run of a studio."""
    return not (folder / "run.json").is_file() and any((folder / name).is_file() for name in CONFIGS.values())


def import_result(folder: Path, runs: Path, base: str = "") -> ImportedResult:
    """Copy the result in `folder` into `runs` as a finished run; `base` in place of the base that it names.

    Raises StudioError for what is no LoRA adapter or model in safetensors, what does not fit its base, and a full
    disk; OSError. Nothing is left behind then.
    """
    source = Path(os.path.expanduser(folder)).absolute()
    kind = "adapter" if (source / CONFIGS["adapter"]).is_file() else "model"
    if not (source / CONFIGS[kind]).is_file():
        raise _refuse(source, "nothing", *_list_inner(source))
    files = list(_list_files(source))
    if not any(name.endswith(".safetensors") for name, _ in files):
        raise _refuse(source, "pickle" if any(source.glob("*.bin")) else "weights")
    runs.mkdir(parents=True, exist_ok=True)
    require_space(runs, sum(size for _, size in files))
    config = _read_object(source, CONFIGS[kind])
    named = base or (str(config.get("base_model_name_or_path") or "") if kind == "adapter" else "")
    staging = runs / f".import-{secrets.token_hex(4)}"
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", source.name).strip("-.")[:60] or "imported"
    run = f"{stem}-{secrets.token_hex(2)}"
    final = runs / run
    try:
        _copy_files(source, staging / kind, [name for name, _ in files])
        recipe, notes = _make_recipe(staging / kind, final / kind, kind, config, named)
        events = list(_read_history(source, kind))
        steps = [event for event in events if isinstance(event, StepLogged)]
        evals = [event.loss for event in events if isinstance(event, EvalLogged)]
        now = time.time()
        record = RunRecord(
            run=run,
            name=source.name,
            state="finished",
            created_s=now,
            ended_s=now,
            steps=steps[-1].step if steps else 0,
            total_steps=steps[-1].total_steps if steps else 0,
            loss=steps[-1].loss if steps else None,
            eval_loss=evals[-1] if evals else None,
            artifact=kind,
            base=_name_base(named) if named else source.name,
            adapter=kind == "adapter",
        )
        write_json(staging / "recipe.json", to_json(recipe), lasting=True)
        RunFolder(staging).write_record(record)
        log = EventLog(staging / "events.jsonl")
        for event in events:
            log.append(event)
        log.append(RunFinished(step=record.steps, loss=record.loss or 0.0, artifact=kind))
        replace_file(staging, final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    left = sorted(one.name for one in source.iterdir() if one.is_file() and not KEPT.fullmatch(one.name))
    if left:
        notes = (*notes, text("result.left", names=", ".join(left[:8])))
    return ImportedResult(run=run, kind=kind, maker=find_maker(source), base=named, notes=notes)


def find_maker(folder: Path) -> str:
    """Return the tool that made the result in `folder`, by its card's tags and its other files; "" if nothing says."""
    card = folder / "README.md"
    words = card.read_text(encoding="utf-8", errors="replace")[:100_000].lower() if card.is_file() else ""
    tags = set(re.findall(r"^\s*-\s*([\w./-]+)\s*$", words.partition("\n---")[0], re.M))
    for name, marks, files in MAKERS:
        if tags & set(marks) or any((folder / one).is_file() for one in files):
            return name
    return ""


# Reading --------------------------------------------------------------------------------------------------------------


def _list_files(source: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(source.iterdir()):
        if KEPT.fullmatch(path.name) and path.is_file():
            size_bytes = path.stat().st_size
            if size_bytes > SMALL_LIMIT_BYTES and not path.name.endswith(".safetensors"):
                raise _refuse(source, "large", file=path.name)
            yield path.name, size_bytes


def _list_inner(source: Path) -> tuple[str, ...]:
    """Return folders in `source` that hold results, such as checkpoints."""
    inner = source.iterdir() if source.is_dir() else ()
    return tuple(sorted(one.name for one in inner if one.is_dir() and is_result(one)))


def _copy_files(source: Path, target: Path, names: list[str]) -> None:
    """Copy the files, links followed: the hub's own cache consists of links."""
    target.mkdir(parents=True)
    for name in names:
        shutil.copyfile((source / name).resolve(), target / name)
    for path in target.glob("*.safetensors"):
        read_header(path)  # refuses what is cut


def _read_object(source: Path, name: str) -> dict[str, Any]:
    found = read_json(source / name)
    if not isinstance(found, dict):
        raise _refuse(source, "nothing")
    return found


def _make_recipe(
    copy: Path, final: Path, kind: str, config: Mapping[str, Any], named: str
) -> tuple[Recipe, tuple[Text, ...]]:
    """Return the recipe that such a run would have had, and what a person should know."""
    notes: list[Text] = []
    data = DatasetSpec(source="", template=str(final / "chat_template.jinja") if _has_template(copy) else "")
    if kind == "model":
        return (
            Recipe(
                model=ModelChoice(source=named or str(final)), data=data, adapter=AdapterSpec(method="full")
            ),
            (),
        )
    if str(config.get("peft_type", "LORA")).upper() != "LORA":
        raise _refuse(copy, "kind", kind=str(config.get("peft_type"))[:40])
    if not named:
        raise _refuse(copy, "base")
    quantization = "none"
    try:
        facts = inspect_model(named)
    except StudioError:
        facts = None
    if facts is None or not facts.folder:
        notes.append(text("result.base.away", name=_name_base(named)))
    else:
        quantization = facts.quantization if facts.quantization in QUANTIZATIONS else "none"
        if quantization == "none":
            _check_fit(copy, Path(facts.folder))
    if quantization == "none" and named.lower().endswith(("-4bit", "-bnb-4bit")):
        quantization = "nf4"
    target = config.get("target_modules")
    targets = ",".join(sorted(map(str, target))) if isinstance(target, list) else str(target or "all-linear")
    modules = config.get("modules_to_save") or ()
    adapter = AdapterSpec(
        rank=int(config.get("r") or 8),
        alpha=float(config.get("lora_alpha") or 8),
        dropout=float(config.get("lora_dropout") or 0.0),
        target_modules=targets,
        rslora=bool(config.get("use_rslora")),
        dora=bool(config.get("use_dora")),
        modules_to_save=",".join(map(str, modules)),
    )
    model = ModelChoice(source=named, quantization=quantization, revision=str(config.get("revision") or ""))
    return Recipe(model=model, data=data, adapter=adapter), tuple(notes)


def _has_template(copy: Path) -> bool:
    """Return whether the result brings a chat template; one inside tokenizer_config.json becomes a file."""
    file = copy / "chat_template.jinja"
    config = copy / "tokenizer_config.json"
    if not file.is_file() and config.is_file():
        words = _read_object(copy, config.name).get("chat_template")
        if isinstance(words, str) and words.strip():
            file.write_text(words, encoding="utf-8")
    return file.is_file()


def _check_fit(adapter: Path, base: Path) -> None:
    """Raise StudioError where a matrix of the adapter has other widths than the weight that it corrects."""
    shapes: dict[str, StoredTensor] = {}
    for path in base.glob("*.safetensors"):
        shapes |= read_header(path)
    for name, tensor in read_header(adapter / WEIGHTS["adapter"]).items():
        part = PEFT_NAME.fullmatch(name)
        weight = shapes.get(f"{part.group(1)}.weight") if part is not None else None
        if weight is None or len(weight.shape) != 2:
            continue
        rows, columns = weight.shape
        wide = tensor.shape[1] if part.group(2) == "A" else tensor.shape[0]
        if wide != (columns if part.group(2) == "A" else rows):
            why = text("import.result.fit", layer=part.group(1), found=wide, base=base.name)
            raise StudioError(
                text("import.result", name=literal(adapter.parent.name)), why, text("import.result.fit.fix")
            )


def _read_history(source: Path, kind: str) -> Iterator[RunEvent]:
    """Yield the losses that transformers' trainer noted beside the result, as a run's events."""
    file = source / "trainer_state.json"
    if not file.is_file() or file.stat().st_size > SMALL_LIMIT_BYTES:
        return
    state = _read_object(source, file.name)
    entries = state.get("log_history")
    total = int(state.get("max_steps") or state.get("global_step") or 0)
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
            continue
        numbers = {key: float(value) for key, value in entry.items() if isinstance(value, (int, float))}
        step = entry["step"]
        if "loss" in numbers:
            yield StepLogged(
                step=step,
                total_steps=max(total, step),
                epoch=numbers.get("epoch", 0.0),
                loss=numbers["loss"],
                lr=numbers.get("learning_rate", 0.0),
                grad_norm=numbers.get("grad_norm", 0.0),
                tokens_per_s=0.0,
            )
        elif "eval_loss" in numbers:
            yield EvalLogged(step=step, loss=numbers["eval_loss"])


def _name_base(named: str) -> str:
    return Path(named).name if Path(named).exists() else named


def _refuse(source: Path, id: str, /, *names: str, **values: object) -> StudioError:
    said = {"names": ", ".join(names)} if names else {}
    fix = text("import.result.inner.fix", **said) if names else text(f"import.result.{id}.fix")
    name = source.name if source.name not in WEIGHTS else source.parent.name
    return StudioError(text("import.result", name=literal(name)), text(f"import.result.{id}", **values), fix)
