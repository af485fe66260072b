"""Modules that are trained in full beside an adapter (peft's `modules_to_save`): embedding, head, norms.

peft trains a copy of each and keeps the model's own beside it. Here the model's own weights are trained, in fp32, which
saves a table of 16-bit numbers (1 GiB of 128,256 x 4,096) and leaves what shares a weight sharing it; only what is
saved has peft's names, so that peft alone reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import ModulesToSaveWrapper
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from studio.core.errors import StudioError
from studio.core.i18n import text

PREFIX = "base_model.model."
ADAPTER = re.compile(r"lora_|\.trainable_tokens_(delta|original)\.|\.modules_to_save\.")
"""What of a PeftModel's parameters is peft's, not the model's own."""
LIKELY_NAMES = 12
"""Of modules, in a refusal."""


def find_modules(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules that `names` mean, each a name's last parts: peft takes `norm` for all that ends so.

    Raises StudioError for a name that means none, and for a module whose weights cannot be trained in full.
    """
    found: dict[str, nn.Module] = {}
    for name in names:
        meant = {
            path: one
            for path, one in model.named_modules(remove_duplicate=False)
            if f".{path}".endswith(f".{name}")
        }
        if not meant:
            leaves = dict.fromkeys(
                path.rpartition(".")[2] for path, one in model.named_modules() if _is_free(one)
            )
            values = {"name": name, "names": ", ".join([one for one in leaves if one][:LIKELY_NAMES])}
            raise StudioError(
                text("modules.unknown", **values), text("modules.why"), text("modules.fix", **values)
            )
        if strange := next((path for path, one in meant.items() if not _is_free(one)), None):
            raise StudioError(
                text("modules.held", name=strange), text("modules.held.why"), text("modules.held.fix")
            )
        found |= meant
    return found


def _is_free(module: nn.Module) -> bool:
    """Return whether `module` is a plain holder of weights: no layers, no adapter, nothing quantised."""
    parameters = list(module.parameters())
    parts = [one for one in module.modules() if one is not module]
    held = any(isinstance(one, BaseTunerLayer) for one in module.modules())
    return bool(parameters) and not parts and not held and all(one.is_floating_point() for one in parameters)


def free_modules(adapted: PeftModel, names: Sequence[str]) -> None:
    """Let the modules called so be trained in full, in fp32, and be saved with the adapter. Raises StudioError."""
    model = adapted.get_base_model()
    found = find_modules(model, names)
    for module in found.values():
        for parameter in module.parameters():
            if parameter.dtype != torch.float64:
                parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    free_apart(adapted.peft_config[adapted.active_adapter], model, found)


def free_apart(config: LoraConfig, model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    """Let `config` name `modules` (path -> module) of `model`: of two that share a weight the embedding alone."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = {path: one for path, one in model.named_modules() if one is embedding or one is head}
    tied = head is not None and head.weight is embedding.weight and any(path in ends for path in modules)
    kept = [path for path in modules if not (tied and path in ends)]
    config.modules_to_save = [*(path for path, one in ends.items() if tied and one is embedding), *kept]
    config.ensure_weight_tying = tied


def take_up(adapted: PeftModel) -> None:
    """Train on what an adapter brought along, in the place of the model's own: see the file's docstring."""
    wrapped = [(path, one) for path, one in adapted.named_modules() if isinstance(one, ModulesToSaveWrapper)]
    names = [path.removeprefix(PREFIX) for path, _ in wrapped]
    for path, wrapper in wrapped:
        owner, _, leaf = path.rpartition(".")
        setattr(adapted.get_submodule(owner), leaf, wrapper.modules_to_save[adapted.active_adapter])
    if names:
        free_modules(adapted, names)


def list_freed(model: Any, *, shared: bool = False) -> dict[str, nn.Parameter]:
    """Return the model's own weights that are trained beside an adapter, by the names under which they are saved.

    `shared`: one that two modules hold is there by both of their names, as peft wants it in its files.
    """
    if not isinstance(model, PeftModel):
        return {}
    named = model.named_parameters(remove_duplicate=not shared)
    return {name: one for name, one in named if one.requires_grad and not ADAPTER.search(name)}


def adapter_state(model: PeftModel) -> dict[str, Tensor]:
    """Return what is saved of an adapter, by name; never a table that was only enlarged, which peft would add."""
    return get_peft_model_state_dict(model, save_embedding_layers=False) | {
        name: one.detach() for name, one in list_freed(model, shared=True).items()
    }


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter into `folder` as peft does, with all that is trained beside it. Raises OSError."""
    model.save_pretrained(folder, save_embedding_layers=False)
    if freed := list_freed(model, shared=True):
        path = folder / "adapter_model.safetensors"
        # No two tensors of such a file may lie at one place.
        tensors = load_file(path) | {name: one.detach().cpu().clone() for name, one in freed.items()}
        save_file(tensors, path, metadata={"format": "pt"})


def rename_saved(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's `tensors` by the names that they have where peft wraps the modules."""
    wrapped = {path for path, one in model.named_modules() if isinstance(one, ModulesToSaveWrapper)}

    def rename(name: str) -> str:
        owner, _, leaf = name.rpartition(".")
        return f"{owner}.modules_to_save.default.{leaf}" if owner in wrapped else name

    return {rename(name): tensor for name, tensor in tensors.items()}
