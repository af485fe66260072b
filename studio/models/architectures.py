"""Which model classes the studio trains, told by a model's config.json alone."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from studio.core.facts import Verdict
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.models.stored_weights import OPENED

SCORING_TASK = "SEQ_CLS"
"""What peft calls an adapter whose model gives scores (score_head.py)."""
TABLES = ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")
"""transformers' tables of what writes text, and of what does so having read text and pictures."""
STORED = ("none", "nf4", "fp4", "int8", *OPENED)
"""Forms of stored weights that are trained on, or opened before."""
BOTH_SIDES = frozenset(
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xlnet xmod".split()
)
"""Families that were trained on texts with gaps. transformers lists a class of each that writes, and its attention sees
the words that it is to learn: the loss falls to nothing, and the model cannot write."""
HALVES = frozenset(
    "bart bigbird_pegasus blenderbot blenderbot-small florence2 marian mbart moshi moss_transcribe_diarize musicgen "
    "musicgen_melody mvp pegasus pix2struct plbart pp_formulanet prophetnet t5gemma2 trocr udop "
    "vision-encoder-decoder whisper".split()
)
"""Families of an encoder and a decoder: what writes is one half, which reads the other's result."""
OTHER_AIMS = frozenset(
    "blt cpmant diffusion_gemma evolla gemma4_assistant gemma4_unified_assistant pi0 reformer shieldgemma2".split()
)
"""Families that do not learn to write the next token of the text in front of them: drafters for another model, noise
taken away, proteins, a robot's movements, verdicts on pictures, bytes in patches, or texts of one length only."""
NEED_PICTURES = frozenset("blip blip-2 idefics instructblip instructblipvideo kosmos-2".split())
"""Families whose forward asks for a picture: there is no text of theirs without one."""
COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""What a config counts of every model that has it, in whole numbers from 1 up."""
PACKAGES = {"timm_wrapper": "timm", "timm_backbone": "timm", "gemma3n_vision": "timm"}
"""model_type of a part -> the package without which transformers cannot make that part."""


def judge_config(config: Mapping[str, Any], architecture: str, quantization: str) -> Verdict:
    """Return whether a model with this config can be trained on text, by what its config alone says."""
    return next(_find_reasons(config, architecture, quantization), Verdict(ok=True))


def _find_reasons(config: Mapping[str, Any], architecture: str, quantization: str) -> Iterator[Verdict]:
    known, name, family = list_writers(), architecture or "?", str(config.get("model_type", ""))
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for key in COUNTS:
            if (value := part.get(key)) is not None and _is_no_count(value):
                yield _refuse("count", key=key, value=str(value)[:40])
    if quantization not in STORED:
        yield _refuse("quantization", quantization=quantization)
    if config.get("auto_map") and known is not None and architecture not in known:
        yield _refuse("remote_code", architecture=name)
    if family in BOTH_SIDES:
        yield _refuse("both_sides", architecture=name)
    if family in HALVES or any(part.get("is_encoder_decoder") for part in _list_parts(config)):
        yield _refuse("half", architecture=name)
    if family in OTHER_AIMS:
        yield _refuse("other_aim", architecture=name)
    if family in NEED_PICTURES:
        yield _refuse("needs_pictures", architecture=name)
    if known is None or architecture not in known:
        writes = re.search(r"(ForCausalLM|LMHeadModel|ForConditionalGeneration)$", architecture)
        if known is not None or not writes:
            yield _refuse("unknown" if writes else "not_decoder", architecture=name)
    kinds = (str(part.get("model_type")) for part in _list_parts(config))
    if package := next((PACKAGES[kind] for kind in kinds if kind in PACKAGES), ""):
        if importlib.util.find_spec(package) is None:
            yield _refuse("package", architecture=name, package=package)


def _is_no_count(value: object) -> bool:
    """Return whether a config's value is no count from 1 up; a list counts layer by layer."""
    return isinstance(value, (str, bool)) or (
        isinstance(value, (int, float)) and (value < 1 or value % 1 != 0)
    )


def _list_parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a config and those of its parts, such as `text_config`."""
    yield config
    yield from (part for part in config.values() if isinstance(part, Mapping))


def _refuse(id: str, **values: object) -> Verdict:
    return Verdict(ok=False, reason=text(f"model.trainable.{id}", **values))


def name_auto_class(architecture: str) -> str:
    """Return the name of transformers' Auto class that loads models of the class `architecture`."""
    if architecture.endswith("ForSequenceClassification"):
        return "AutoModelForSequenceClassification"
    text_only, after_pictures = _read_tables()
    reads = architecture in after_pictures and architecture not in text_only
    return "AutoModelForImageTextToText" if reads else "AutoModelForCausalLM"


def read_architecture(folder: str | Path) -> str:
    """Return the class of the model in `folder`, or of the one that an adapter there was made for; "" when not told."""
    for name in ("config.json", "adapter_config.json"):
        path = Path(folder) / name
        if not path.is_file():
            continue
        config = read_json(path)
        mapping = config.get("auto_mapping") or {}
        return str(next(iter(config.get("architectures") or ()), mapping.get("base_model_class", "")))
    return ""


def list_writers() -> frozenset[str] | None:
    """Return the names of the classes that the installed transformers has for writing text; None without it."""
    return frozenset().union(*_read_tables()) or None


@lru_cache(maxsize=1)
def _read_tables() -> tuple[frozenset[str], ...]:
    """Return the class names in each of TABLES; empty ones without transformers.

    Read from its source as text: importing transformers takes seconds and loads torch.
    """
    spec = importlib.util.find_spec("transformers")
    nowhere = spec is None or spec.origin is None
    table = None if nowhere else Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    source = table.read_text(encoding="utf-8") if table is not None and table.is_file() else ""
    return tuple(_list_names(source.partition(f"{title} = ")[2].partition("\n)")[0]) for title in TABLES)


def _list_names(entries: str) -> frozenset[str]:
    """Return the values of a table of `("family", "Class")` or `("family", ("Class", ...))`."""
    values = re.findall(r'"[^"]+",\s*(\([^)]*\)|"[^"]+")', entries)
    return frozenset(name for value in values for name in re.findall(r'"([^"]+)"', value))


def holds_score(folder: str | Path) -> bool:
    """Return whether the adapter or model in `folder` gives scores."""
    folder = Path(folder)
    adapter, config = folder / "adapter_config.json", folder / "config.json"
    if adapter.is_file():
        return read_json(adapter).get("task_type") == SCORING_TASK
    named = read_json(config).get("architectures") or [""] if config.is_file() else [""]
    return str(named[0]).endswith("ForSequenceClassification")
