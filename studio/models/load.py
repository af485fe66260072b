"""Loads a model, with its tokenizer, for training or chat: local safetensors only, no remote code, no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GenerationConfig,
)
from transformers.utils import logging as transformers_logging

from studio.core.errors import StudioError
from studio.core.facts import ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.recipe import FOUR_BITS
from studio.models.decoder.structure import STREAM_COUNT, STREAM_MAPS
from studio.models.language_model import find_head, is_composite, list_outside
from studio.models.processor_parts import count_cores
from studio.models.rope_scaling import scale_config
from studio.models.tokenizer import last_line, load_tokenizer
from studio.models.weights import Weights, read_ahead

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What training's autocast lowers matrix products to; fp32 uses none."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on its device, and its tokenizer."""

    model: Any
    tokenizer: Any
    notes: tuple[Text, ...] = ()
    """What was left out or done in another way than asked for."""


def load_model(
    facts: ModelFacts,
    *,
    device: str,
    dtype: str,
    quantization: str = "none",
    attention: str = "sdpa",
    tokenizer: Any = None,
    weights: Weights | None = None,
    rope: str = "",
    base: Path | None = None,
) -> Loaded:
    """Load the model of `facts.folder` with its weights held in `dtype` (bf16, fp16, fp32), or quantised.

    A base that is stored quantised keeps its own quantisation. `tokenizer`: where it is loaded already. `weights`: what
    read_ahead began earlier; this ends it. `rope`: how positions are stretched (rope_scaling.py). `base`: the file of a
    run's `mixed` base (mixed_base.py); without it `mixed` is plain NF4.
    Raises StudioError for files that cannot be read.
    """
    weights = read_ahead(facts, device) if weights is None else weights
    try:
        model = _load(facts, device, dtype, quantization, attention, weights, rope)
    finally:
        if weights is not None:
            weights.close()
    if base is not None:
        from studio.models.mixed_base import put_base  # imports bitsandbytes

        put_base(model, base, DTYPES[dtype])
    return Loaded(model, load_tokenizer(facts) if tokenizer is None else tokenizer)


def _load(
    facts: ModelFacts,
    device: str,
    dtype: str,
    quantization: str,
    attention: str,
    weights: Weights | None,
    rope: str,
) -> Any:
    if device == "cpu":
        leave_one_core()
    settings: dict[str, Any] = {}
    if device != "cpu" or facts.quantization != "none" or quantization != "none":
        settings["device_map"] = {"": device}
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(facts.folder, trust_remote_code=False, local_files_only=True)
        if rope:
            scale_config(config, rope)
        cls = find_class(config)
        # What config.json says would go before the argument, and may be native code to be fetched from the hub.
        config._attn_implementation = attention = choose_attention(config, cls, attention)
        if facts.quantization == "none" and quantization != "none":
            settings["quantization_config"] = quantization_config(
                quantization, dtype, _list_kept(config, cls)
            )
        settings |= {"dtype": DTYPES[dtype], "attn_implementation": attention, "output_loading_info": True}
        if weights is not None and _is_plain(config, cls):
            model, report = cls.from_pretrained(
                None, config=config, state_dict=weights.state_dict(), **settings
            )
            set_origin(model, facts.folder)
        else:
            if weights is not None:
                weights.close()  # nobody takes them
            model, report = (cls or AutoModelForCausalLM).from_pretrained(
                facts.folder, config=config, use_safetensors=True, local_files_only=True, **settings
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise StudioError(
            text("model.load", name=facts.name), literal(last_line(error)), text("model.load.fix")
        ) from error
    if missing := sorted(report["missing_keys"]):  # transformers fills them with random numbers
        raise StudioError(
            text("model.load", name=facts.name),
            text("model.load.missing", count=len(missing), first=missing[0]),
            text("model.load.fix"),
        )
    set_evaluation(model)
    return model


def draw_model(facts: ModelFacts) -> torch.nn.Module:
    """Return the model of `facts.folder` without its weights, on PyTorch's meta device: names and shapes, no memory.

    Raises StudioError for a config of which transformers makes no model.
    """
    try:
        config = AutoConfig.from_pretrained(facts.folder, trust_remote_code=False, local_files_only=True)
        return _draw(config, find_class(config))
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise StudioError(
            text("model.load", name=facts.name), literal(last_line(error)), text("model.load.fix")
        ) from error


def _draw(config: Any, cls: Any) -> torch.nn.Module:
    with torch.device("meta"):
        return cls(config)


def find_class(config: Any) -> Any:
    """Return the class that a model's config names, if transformers has it for writing text; else the one that it has.

    None where it has none. Of a model that reads pictures it is the whole model: an adapter that is trained on the
    language model alone has other names, and does nothing on the whole one.
    """
    found: list[Any] = []
    for table in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        classes = table.get(type(config), None)
        found += classes if isinstance(classes, tuple) else [classes]
    named = [cls for cls in found if cls is not None and cls.__name__ in (config.architectures or ())]
    return next((cls for cls in (*named, *found) if cls is not None), None)


def choose_attention(config: Any, cls: Any, wanted: str) -> str | dict[str, str]:
    """Return how attention is to be computed: as `wanted`, plainly where transformers has no fused one.

    A dict, by part, for a model with a tower that has none (Gemma 4's for sound): its language model keeps `wanted`.
    """
    if wanted != "sdpa":
        return wanted
    if not getattr(cls, "_supports_sdpa", True):
        return "eager"
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    plain = {
        name: "eager"
        for name, part in parts.items()
        if part is not None and not _has_sdpa(MODEL_MAPPING.get(type(part), None))
    }
    return {"": wanted} | dict.fromkeys(parts, wanted) | plain if plain else wanted


def _has_sdpa(cls: Any) -> bool:
    classes = cls if isinstance(cls, tuple) else (cls,)
    return all(getattr(one, "_supports_sdpa", True) for one in classes)


def _is_plain(config: Any, cls: Any) -> bool:
    """Return whether a model's weights are the folder's tensors and nothing else: what is composed of several models or
    names further files, transformers loads by the folder.
    """
    files = getattr(type(config), "extra_files", None)  # transformers 5.17 has none
    odd = config.sub_configs or files or getattr(config, "transformers_weights", None)
    return isinstance(cls, type) and not odd


def _list_kept(config: Any, cls: Any) -> list[str] | None:
    """Return the modules that a quantisation is to leave as they are; None for what transformers leaves by itself.

    Towers are not trained, and a merged export is to hold them as they were. What weighs Gemma 3n's streams is
    a few numbers, which its training mode reads past their modules, where 4 bits are no numbers.
    """
    weighed = hasattr(config.get_text_config(), STREAM_COUNT)
    if cls is None or (config.get_text_config() is config and not weighed):
        return None
    model = _draw(config, cls)
    if not (is_composite(model) or weighed):
        return None
    head = find_head(model)
    kept = [name for name, module in model.named_modules() if module is head or name.endswith(STREAM_MAPS)]
    return [*list_outside(model), *kept]


def set_origin(model: Any, folder: str) -> None:
    """Give a model that was loaded from tensors what transformers would have read from `folder`."""
    model.name_or_path = model.config.name_or_path = folder
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)


def set_evaluation(model: torch.nn.Module) -> None:
    """Switch `model` to evaluation: no dropout.

    bitsandbytes' own 4-bit layers stay in training mode, where they compute the same: on a CPU with AVX-512 bf16 their
    first evaluation forward repacks the weights for good (0.50.2, nn/modules.py), which fails for widths that are no
    multiple of 32, and from then on no gradient flows through them, without an error. peft's layers around them, of
    the same class name, hold the dropout.
    """
    model.eval()
    for module in model.modules():
        owners = {
            kind.__module__.split(".")[0] for kind in type(module).__mro__ if kind.__name__ == "Linear4bit"
        }
        if "bitsandbytes" in owners:
            module.training = True


def leave_one_core() -> None:
    """Let PyTorch compute on one core fewer than there are: the last one is the window's and the system's.

    OpenMP's threads wait for each other in a busy loop. With one on every core, any other work stops them all: on two
    cores with one other process the demo falls from 6,000 tokens/s to some 300, while one thread alone keeps 3,000.
    """
    torch.set_num_threads(max(1, min(torch.get_num_threads(), count_cores() - 1)))


def quantization_config(name: str, dtype: str, kept: list[str] | None = None) -> BitsAndBytesConfig:
    """Return bitsandbytes' settings: `nf4`, `mixed` (4 bits, double quantisation; Dettmers et al., 2023), `int8`.

    `kept`: modules that stay as they are; None: the output embeddings.
    """
    if name in FOUR_BITS:
        from studio.models.nf4_loading import nf4_config  # imports bitsandbytes

        return nf4_config(DTYPES[dtype], kept)
    return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=kept)
