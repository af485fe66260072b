"""Decides what is trained: attaches a LoRA adapter, takes up an existing one, or frees every weight."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.helpers import disable_input_dtype_casting
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file

from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, load_catalogue, text
from studio.core.recipe import AdapterSpec
from studio.models.adapter_targets import ALL, find_targets, list_shared, restrict_targets
from studio.models.architectures import holds_score
from studio.models.expert_adapters import list_expert_weights, read_rank, stacks_as_parameters
from studio.models.language_model import find_head, is_outside, list_outside
from studio.models.load import set_evaluation
from studio.models.modules_to_save import (
    adapter_state,
    find_modules,
    free_apart,
    free_modules,
    list_freed,
    take_up,
)
from studio.models.new_tokens import count_rows, enlarge, name_ends, refuse_ends, unwrap_end
from studio.models.nf4_experts import list_stacks
from studio.models.score_head import add_score
from studio.models.token_list import split_modules
from studio.models.tokenizer import last_line

LITTLE_REACH = 0.9
"""A person who asks for an adapter on all layers is told when it reaches less of the weights."""
ROUNDED_AT_ONCE = 2**24
"""Weights; each takes 12 bytes beside itself meanwhile."""
NAMES_TOLD = 12
"""Names of linears in a refusal: no dense family has more kinds."""


def adapt(
    model: Any, spec: AdapterSpec, adapter: str = "", tokens: Sequence[int] = (), *, apart: bool = False
) -> Any:
    """Return `model` ready for training by `spec`: a PeftModel for LoRA (Hu et al., 2021), the model itself for full.

    Of a model that reads pictures or sound too, the language model alone is trained.
    `adapter`: folder of an existing LoRA adapter to go on from; its own rank and targets hold. `tokens`: ids whose rows
    in embedding and head are trained beside a new one. `apart`: modules that are trained in full are copies, beside
    which the model's own stay as they are: to compute with both, not to train.
    Raises StudioError when targets match nothing or the adapter does not fit this model.
    """
    if spec.method == "full":
        outside = list_outside(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.is_floating_point() and not is_outside(name, outside))
        return model
    if adapter:
        adapted = load_adapter(model, Path(adapter), trainable=True)
        if not apart:
            take_up(adapted)
        return adapted
    targets = spec.target_modules.strip()
    config = make_config(spec)
    if targets == ALL:
        found = find_targets(model, config)
        names = wanted = list(found.names)
        target_experts(config, found.experts, read_rank(spec.rank, model))
    else:
        wanted = [name.strip() for name in targets.split(",") if name.strip()]
        names = restrict_targets(model, wanted)
    config.target_modules = set(names)
    modules = split_modules(spec.modules_to_save)
    whole = find_modules(model, modules)
    if apart and modules:
        free_apart(config, model, whole)
    if tokens:  # as peft holds them: the rows alone are trained, saved and put back
        config.trainable_token_indices = {
            name: list(tokens) for name in name_ends(model) if name not in whole
        } or None
    linears = [name for name, module in model.named_modules() if _is_linear(module)]
    if not names:
        raise _refuse_targets(targets, text("adapter.targets.none"), linears)
    try:
        with _device_of(model), stacks_as_parameters(model), _without_false_alarm():
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise _refuse_targets(targets, literal(last_line(error)), linears) from error
    missed = _find_missed(wanted, adapted.base_model.targeted_module_names)
    refuse_ends(unwrap(adapted))
    if modules and not apart:
        free_modules(adapted, modules)
    if missed:  # peft says nothing where others match
        raise _refuse_targets(", ".join(missed), text("adapter.targets.why"), linears)
    return adapted


def make_config(spec: AdapterSpec) -> LoraConfig:
    """Return peft's settings for `spec`, without the modules that get an adapter."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        use_rslora=spec.rslora,
        use_dora=spec.dora,
    )


def target_experts(config: LoraConfig, experts: Sequence[str], rank: int) -> None:
    """Let `config` adapt the stacks of experts with these ends of names, each matrix with an adapter of `rank`."""
    if experts:
        config.target_parameters = list(experts)
        config.rank_pattern = {re.escape(name): rank for name in experts}


def note_parts(model: Any, spec: AdapterSpec, adapter: str = "") -> tuple[Text, ...]:
    """Return in words what of `model` (not adapted yet) stays as it is when adapt() is called so."""
    outside = list_outside(model)
    notes = [text("run.towers", names=", ".join(outside))] if outside else []
    if spec.method == "lora" and spec.target_modules.strip() == ALL and not adapter:
        found = find_targets(model, make_config(spec))
        notes += _note_experts(model, found.experts, read_rank(spec.rank, model))
        notes += [one.describe() for one in found.left_out]
    return tuple(notes)


def note_beside(model: Any, rate: float) -> list[Text]:
    """Return in words what of an adapted `model` is trained beside its adapter; `rate`: of modules, as a share."""
    notes, freed = [], list_freed(model)
    if freed:
        names = dict.fromkeys(name.split(".")[-2] for name in freed)
        millions = f"{sum(one.numel() for one in freed.values()) / 1e6:,.2f}"
        notes.append(text("run.modules", names=", ".join(names), millions=millions, share=f"{rate:g}"))
    rows = [one for name, one in model.named_parameters() if "trainable_tokens_delta" in name]
    if rows:
        count, width = rows[0].shape
        where = text(f"run.tokens.{'apart' if len(rows) > 1 else 'tied'}")
        notes.append(text("run.tokens", count=count, rows=count * len(rows), width=width, tables=where))
    return notes


def _note_experts(model: Any, ends: Sequence[str], rank: int) -> list[Text]:
    """Return in words what the experts of stacks with these ends of names get."""
    stacks = {name: shape for name, shape in list_expert_weights(model).items() if name.endswith(tuple(ends))}
    if not ends:
        return []
    numbers = rank * sum(experts * (rows + columns) for experts, rows, columns in stacks.values())
    layers = len({name.rpartition(".")[0] for name in stacks})
    return [text("run.experts", rank=rank, millions=f"{numbers / 1e6:,.1f}", layers=layers)]


@contextmanager
def _without_false_alarm() -> Iterator[None]:
    """Inside, peft does not say that ranks of parameters, which it uses, match no module (0.21)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys")
        yield


def _device_of(model: torch.nn.Module) -> torch.device:
    """Return where an adapter's weights are to be made, as a context: peft makes them on the processor and moves each.

    An 8-billion model has 448 of them, of which making and moving took 4.7 s on an H100 (of 5.1 s for the adapter).
    """
    return next(model.parameters()).device


def measure_reach(model: Any) -> float:
    """Return the share of a language model's weights between embeddings and head that have an adapter; 1.0 without any.

    Experts in 4 bits are no parameters.
    """
    outside = list_outside(unwrap(model))
    prefix = "base_model.model." if isinstance(model, PeftModel) else ""
    ends = (unwrap_end(part) for part in (model.get_input_embeddings(), find_head(unwrap(model))) if part)
    ends = {id(part.weight) for part in ends}
    reached = total = 0
    for name, parameter in model.named_parameters():
        if id(parameter) in ends or "lora_" in name or "trainable_tokens_" in name or parameter.dim() < 2:
            continue
        if is_outside(name.removeprefix(prefix), outside):
            continue
        state = getattr(parameter, "quant_state", None)  # of two weights packed into a byte
        size = math.prod(state.shape) if state is not None else parameter.numel()
        total += size
        reached += size if ".base_layer." in name else 0
    for name, stack in list_stacks(model):
        total += math.prod(stack.shape)
        reached += math.prod(stack.shape) if ".base_layer." in name else 0
    return reached / total if reached else 1.0


def _find_missed(targets: Iterable[str], adapted: Sequence[str]) -> list[str]:
    """Return which of `targets` name none of the `adapted` modules, by peft's rule for a list of names."""
    return [one for one in targets if not any(name == one or name.endswith(f".{one}") for name in adapted)]


def _is_linear(module: torch.nn.Module) -> bool:
    """Whether peft could adapt `module` as a matrix: also those of other libraries, and GPT-2's."""
    weight = getattr(module, "weight", None)
    return (
        weight is not None and not list(module.children()) and hasattr(module, "bias") and weight.dim() == 2
    )


def _refuse_targets(targets: str, why: Text, linears: Sequence[str]) -> StudioError:
    names = list(dict.fromkeys(name.rsplit(".", 1)[-1] for name in linears))
    if not names:
        fix = text("adapter.targets.other")
    elif targets == "all-linear":  # peft names the layers that it does not take
        refused = load_catalogue("en").say(why)
        names = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", refused)]
        fix = text("adapter.targets.all.fix", names=",".join(names[:NAMES_TOLD]))
    else:
        fix = text("adapter.targets.fix", names=", ".join(names[:NAMES_TOLD]))
    what = (
        text("adapter.targets.all") if targets == "all-linear" else text("adapter.targets", targets=targets)
    )
    return StudioError(what, why, fix)


def load_adapter(model: Any, folder: Path, *, trainable: bool = False) -> Any:
    """Return `model` with the adapter in `folder` on it. Raises StudioError when it is absent or does not fit.

    peft itself would take a pickled adapter_model.bin, or ask the hub, where there are no safetensors. And it renames
    the tensors as transformers does those of the family's first files (0.21, set_peft_model_state_dict), also where a
    name is the model's already: of Laguna's mlp.shared_experts it makes mlp.shared_experts., which nothing has, and
    the adapter is silently left as it was made. What bears a name of the model's own is taken by it.
    """
    if not (folder / "adapter_config.json").is_file() or not (folder / "adapter_model.safetensors").is_file():
        raise StudioError(
            text("adapter.missing", name=folder.name),
            text("adapter.missing.why"),
            text("adapter.missing.fix"),
        )
    try:
        if holds_score(folder):
            add_score(model)
        enlarge(model, count_rows(folder))
        with _device_of(model), stacks_as_parameters(model), _without_false_alarm():
            adapted = PeftModel.from_pretrained(model, folder, is_trainable=trainable, local_files_only=True)
        _take_by_name(adapted, load_file(folder / "adapter_model.safetensors"))
    except (ValueError, RuntimeError, OSError, KeyError) as error:
        raise StudioError(
            text("adapter.misfit", name=folder.name), literal(last_line(error)), text("adapter.misfit.fix")
        ) from error
    return adapted


@torch.no_grad()
def _take_by_name(adapted: PeftModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy those of `tensors` that bear a name under which peft would save a tensor of `adapted`."""
    own = adapter_state(adapted)
    for name in own.keys() & tensors.keys():
        own[name].copy_(tensors[name])


def merge(adapted: PeftModel) -> torch.nn.Module:
    """Return the model with the adapter's corrections added into its weights. Raises what refuse_shared() raises."""
    refuse_shared(adapted)
    return adapted.merge_and_unload()


def refuse_shared(adapted: PeftModel) -> None:
    """Raise StudioError where layers that share a weight have each learned a correction.

    peft adds all of them to it, and the model computes what none of its layers did.
    """
    modules = dict(adapted.named_modules())
    held = [name for name in list_shared(adapted) if isinstance(modules[name], BaseTunerLayer)]
    if held:
        names = ", ".join(sorted({name.rpartition(".")[2] for name in held}))
        why = text("export.shared.why", names=names)
        raise StudioError(text("export.shared"), why, text("export.shared.fix"))


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
def cast_weights(
    model: torch.nn.Module,
    dtype: torch.dtype,
    seed: int,
    parameters: Iterable[torch.nn.Parameter] | None = None,
) -> None:
    """Round the floating-point parameters to `dtype`, in place; tied ones stay tied. fp32 to bf16 stochastically.

    `parameters`: of the model, to be rounded; None: all.

    Not `model.to(dtype)`: that would round buffers too, and a model whose rotary frequencies are 16-bit numbers
    computes something else than the same weights loaded from disk.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for parameter in model.parameters() if parameters is None else parameters:
        if not parameter.is_floating_point():
            continue
        if (parameter.dtype, dtype) == (torch.float32, torch.bfloat16):
            device = parameter.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(seed)
            parameter.data = round_stochastically(parameter.data, generators[device])
        else:
            parameter.data = parameter.data.to(dtype)


def round_stochastically(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return `weight` (fp32, any shape) in bf16: up or down by chance, so that the mean stays what it is.

    P(up) = (w - down) / (up - down): Gupta et al., 2015, "Deep Learning with Limited Numerical Precision". A bf16
    number has 16 bits fewer at its end, so a random number of 16 bits is added before they are cut off; what bf16
    holds exactly stays as it is. To the nearest, a correction below 1/512 of its weight is lost: SmolLM2-135M, all
    weights, 60 steps on real conversations, held-out loss 1.7455 before, 1.5824 in fp32, 1.6462 to the nearest,
    1.5824 so (benchmarks/rounding.py).
    """
    rounded = torch.empty(weight.shape, dtype=torch.bfloat16, device=weight.device)
    flat, target = weight.contiguous().view(-1), rounded.view(-1)
    for start in range(0, len(flat), ROUNDED_AT_ONCE):
        part = flat[start : start + ROUNDED_AT_ONCE]
        noise = torch.randint(1 << 16, part.shape, generator=generator, dtype=torch.int32, device=part.device)
        up_or_down = (part.view(torch.int32) + noise).bitwise_and_(-(1 << 16)).view(torch.float32)
        target[start : start + ROUNDED_AT_ONCE] = torch.where(part.isfinite(), up_or_down, part)
    return rounded


def trained_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the trainable parameters by name (tied ones once): what a checkpoint holds of the weights."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def load_trained_state(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Copy trained_state() back. Raises StudioError when names or shapes differ: those are another model's."""
    parameters = trained_state(model)
    names = parameters.keys() | tensors.keys()
    shapes = {name: (tensors[name].shape, parameters[name].shape) for name in parameters.keys() & tensors}
    fitting = [name for name, (stored, wanted) in shapes.items() if stored == wanted]
    if len(fitting) < len(names):
        why = text("chat.place.other", count=len(names) - len(fitting), total=len(names))
        raise StudioError(text("chat.place.misfit"), why, text("run.checkpoint_misfit.fix"))
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
