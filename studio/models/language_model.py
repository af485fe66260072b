"""The language model inside a model: what turns token ids into hidden states, and what else there is beside it."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from transformers import PreTrainedModel

from studio.models.config_shapes import TOWER


def find_language_model(model: nn.Module) -> nn.Module:
    """Return the part of `model` (a class with a head, without adapter wrapper) that gives hidden states of tokens.

    That is get_decoder() where it has no head of its own: Mllama's is a whole causal model, and ModernBERT's decoder
    calls its head so.
    """
    found = model.get_decoder()
    while isinstance(found, PreTrainedModel) and found.get_output_embeddings() is not None:
        inner = found.get_decoder() if found.get_decoder() is not found else found.base_model
        if inner is found or not isinstance(inner, PreTrainedModel):
            break
        found = inner
    return found if isinstance(found, PreTrainedModel) else model.base_model


def find_head(model: nn.Module) -> nn.Module | None:
    """Return the output embeddings of `model`, None where it has none.

    Nemotron-H Omni's language model is a whole causal model, whose head it does not name as its own.
    """
    found = model.get_output_embeddings()
    while (
        found is None and (inner := model.get_decoder()) is not model and isinstance(inner, PreTrainedModel)
    ):
        model, found = inner, inner.get_output_embeddings()
    return found


def list_outside(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the outermost modules of `model` that hold weights and no part of which reads or writes text.

    () for a model of text alone. Those of a tower inside the language model, as in Phi-4-multimodal, are among them.
    """
    language = find_language_model(model)
    mine = {id(module) for module in language.modules()}
    ends = [model.get_input_embeddings(), find_head(model)]
    mine |= {id(part) for end in ends if isinstance(end, nn.Module) for part in end.modules()}
    alone = not is_composite(model)

    def is_tower(name: str, module: nn.Module) -> bool:
        return TOWER.search(f"{name}.") is not None or not (alone or id(module) in mine)

    found: list[str] = []
    for name, module in model.named_modules():
        if not name or any(name == one or name.startswith(f"{one}.") for one in found):
            continue
        if next(module.parameters(), None) is None or not is_tower(name, module):
            continue
        parts = [(f"{name}.{inner}" if inner else name, part) for inner, part in module.named_modules()]
        if all(is_tower(one, part) for one, part in parts):
            found.append(name)
    return tuple(found)


def is_composite(model: nn.Module) -> bool:
    """Return whether `model` has a language model and more, each with a config of its own."""
    return model.config.get_text_config() is not model.config


def is_outside(name: str, outside: tuple[str, ...]) -> bool:
    """Return whether the module or parameter `name` lies in one of the modules `outside`."""
    return any(name == one or name.startswith(f"{one}.") for one in outside)


def text_inputs(model: nn.Module, shape: torch.Size, device: torch.device) -> dict[str, torch.Tensor]:
    """Return what a whole model's forward wants to hear of rows (B, S) in which nothing is a picture.

    Gemma 3 refuses to train without token types.
    """
    if not is_composite(model):
        return {}
    taken = inspect.signature(model.forward).parameters  # also behind a decorator, as Molmo 2's
    names = [name for name in ("token_type_ids", "mm_token_type_ids") if name in taken]
    return {name: torch.zeros(shape, dtype=torch.long, device=device) for name in names}
