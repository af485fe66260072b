"""Decides what is trained: attaches a LoRA adapter, takes up an existing one, or frees every weight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.helpers import disable_input_dtype_casting

from studio.core.errors import StudioError
from studio.core.recipe import AdapterSpec
from studio.core.text import literal, text
from studio.models.load import last_line, set_evaluation


def adapt(model: Any, spec: AdapterSpec, adapter: str = "") -> Any:
    """Return `model` ready for training by `spec`: a PeftModel for LoRA (Hu et al., 2021), the model itself for full.

    `adapter`: folder of an existing LoRA adapter to go on from; its own rank and targets hold.
    Raises StudioError when targets match nothing or the adapter does not fit this model.
    """
    if spec.method == "full":
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return model
    if adapter:
        return load_adapter(model, Path(adapter), trainable=True)
    targets = spec.targets.strip()
    names = (
        targets if targets == "all-linear" else [name.strip() for name in targets.split(",") if name.strip()]
    )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=names,
        use_rslora=spec.rslora,
        use_dora=spec.dora,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise StudioError(
            text("adapter.targets", targets=targets), literal(last_line(error)), text("adapter.targets.fix")
        ) from error


def load_adapter(model: Any, folder: Path, *, trainable: bool = False) -> Any:
    """Return `model` with the adapter in `folder` on it. Raises StudioError when it is absent or does not fit.

    peft itself would take a pickled adapter_model.bin, or ask the hub, where there are no safetensors.
    """
    if not (folder / "adapter_config.json").is_file() or not (folder / "adapter_model.safetensors").is_file():
        raise StudioError(
            text("adapter.missing", name=folder.name),
            text("adapter.missing.why"),
            text("adapter.missing.fix"),
        )
    try:
        return PeftModel.from_pretrained(model, folder, is_trainable=trainable, local_files_only=True)
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise StudioError(
            text("adapter.misfit", name=folder.name), literal(last_line(error)), text("adapter.misfit.fix")
        ) from error


def unwrap(model: Any) -> torch.nn.Module:
    """Return the model inside an adapter wrapper, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Switch `model` to evaluation for a block, and back to the modes that its modules had."""
    modes = {module: module.training for module in model.modules()}
    set_evaluation(model)
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def cast_by_autocast(model: torch.nn.Module, active: bool) -> Iterator[None]:
    """Leave the casting of the adapters' inputs to autocast for a block of training.

    peft widens the input of every adapted layer to the adapter's fp32, and autocast narrows it again: the same
    numbers, but a 16-bit copy of its own for each layer, kept for the backward pass. DoRA computes with that fp32.
    """
    dora = any(getattr(module, "lora_variant", None) for module in model.modules())
    with disable_input_dtype_casting(model, active=active and not dora):
        yield


@torch.no_grad()
def cast_weights(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Round the floating-point parameters to `dtype`, in place; tied ones stay tied.

    Not `model.to(dtype)`: that would round buffers too, and a model whose rotary frequencies are 16-bit numbers
    computes something else than the same weights loaded from disk.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def trained_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the trainable parameters by name (tied ones once): what a checkpoint holds of the weights."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def load_trained_state(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copy trained_state() back. Raises KeyError when the names differ."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if parameters.keys() != tensors.keys():
        raise KeyError(
            f"{len(parameters.keys() ^ tensors.keys())} trained tensors differ from the checkpoint's"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
