"""Decides what a run will really use, each choice with its reason: a pure function of facts."""

from __future__ import annotations

import dataclasses

from studio.core.facts import BackendPlan, Choice, Gpu, MachineFacts, ModelFacts, Offer
from studio.core.recipe import Recipe
from studio.core.text import literal, text
from studio.host.memory import predict

OPS = ("rms_norm", "swiglu")
USABLE_VRAM = 0.9
"""Share of a GPU's memory that a run may plan with: the desktop and fragmentation take the rest."""
EAGER_FAMILIES = ("gemma2",)
"""Families whose attention caps its scores, which PyTorch's fused attention cannot do."""
LOWEST_CAPABILITY = {12: (5, 0), 13: (7, 5)}
"""CUDA major version of the torch build -> oldest compute capability that it holds code for."""


def plan(machine: MachineFacts, recipe: Recipe, model: ModelFacts) -> BackendPlan:
    """Return the BackendPlan of `recipe` on `machine`. A forced value that cannot work is replaced, saying so."""
    device, gpu = choose_device(machine, recipe)
    dtype = _choose_dtype(recipe.model.precision, gpu)
    quantization = _choose_quantization(machine, recipe, model)
    draft = BackendPlan(
        device=device,
        dtype=dtype,
        attention=_choose_attention(recipe.model.attention, model),
        quantization=quantization,
        optimizer=_choose_optimizer(machine, recipe.optim.optimizer, gpu),
        checkpointing=Choice(value=False, reason=text("plan.checkpointing.off")),
        kernels={op: _choose_kernel(machine, recipe, gpu) for op in OPS},
        offers=_offers(machine, recipe, gpu),
    )
    return dataclasses.replace(draft, checkpointing=_choose_checkpointing(draft, recipe, model, gpu))


def choose_device(machine: MachineFacts, recipe: Recipe) -> tuple[Choice, Gpu | None]:
    """Return the device to train on and its Gpu, None for the processor. `cuda:i` counts as MachineFacts.gpus does."""
    cores = machine.cores
    if recipe.limits.device == "cpu":
        return Choice(value="cpu", reason=text("plan.device.cpu_wanted", cores=cores)), None
    if not machine.gpus:
        return Choice(value="cpu", reason=text("plan.device.no_gpu", cores=cores)), None
    best = max(range(len(machine.gpus)), key=lambda i: machine.gpus[i].vram_bytes)
    gpu = machine.gpus[best]
    if not machine.torch_cuda:
        return Choice(value="cpu", reason=text("plan.device.cpu_build", gpu=gpu.name)), None
    built, driver = int(machine.torch_cuda.split(".")[0]), machine.driver_cuda
    if driver != (0, 0) and driver[0] < built:
        has = f"{driver[0]}.{driver[1]}"
        reason = text("plan.device.old_driver", gpu=gpu.name, has=has, needs=machine.torch_cuda)
        return Choice(value="cpu", reason=reason), None
    if gpu.capability < LOWEST_CAPABILITY.get(built, (0, 0)):
        reason = text("plan.device.old_gpu", gpu=gpu.name, capability=_dotted(gpu), build=machine.torch_cuda)
        return Choice(value="cpu", reason=reason), None
    id = "plan.device.gpu" if len(machine.gpus) == 1 else "plan.device.largest_gpu"
    return Choice(
        value=f"cuda:{best}", reason=text(id, gpu=gpu.name, gigabytes=gigabytes(gpu.vram_bytes))
    ), gpu


def gigabytes(size_bytes: float) -> str:
    """Return a size for a person: GiB with one digit, called GB as graphics cards are sold."""
    return f"{size_bytes / 2**30:.1f}"


def bitsandbytes_reason(machine: MachineFacts) -> str:
    """Return why bitsandbytes cannot be used, "" when it can."""
    if "bitsandbytes" not in machine.packages:
        return machine.bitsandbytes_error or "bitsandbytes is not installed."
    return machine.bitsandbytes_error


def _choose_dtype(wanted: str, gpu: Gpu | None) -> Choice:
    if gpu is None:
        if wanted == "fp16":
            return Choice(value="fp32", reason=text("plan.dtype.no_fp16_on_cpu"))
        if wanted != "auto":
            return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
        return Choice(value="fp32", reason=text("plan.dtype.cpu"))
    has_bf16 = gpu.capability[0] >= 8  # Turing (7.5) claims bf16 but emulates it slowly
    if wanted == "bf16" and not has_bf16:
        return Choice(
            value="fp16", reason=text("plan.dtype.bf16_emulated", gpu=gpu.name, capability=_dotted(gpu))
        )
    if wanted != "auto":
        return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
    if has_bf16:
        return Choice(value="bf16", reason=text("plan.dtype.bf16", gpu=gpu.name))
    return Choice(value="fp16", reason=text("plan.dtype.fp16", gpu=gpu.name, capability=_dotted(gpu)))


def _choose_attention(wanted: str, model: ModelFacts) -> Choice:
    if model.family in EAGER_FAMILIES:
        return Choice(value="eager", reason=text("plan.attention.capped", family=model.family))
    if wanted != "auto":
        return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
    return Choice(value="sdpa", reason=text("plan.attention.sdpa"))


def _choose_quantization(machine: MachineFacts, recipe: Recipe, model: ModelFacts) -> Choice:
    wanted, broken = recipe.model.quantization, bitsandbytes_reason(machine)
    if model.quantization != "none":
        return Choice(
            value=model.quantization, reason=text("plan.quantization.stored", value=model.quantization)
        )
    if wanted == "none":
        return Choice(value="none", reason=text("plan.quantization.none"))
    if recipe.adapter.method == "full":
        return Choice(value="none", reason=text("plan.quantization.full"))
    if broken:
        return Choice(
            value="none", reason=text("plan.quantization.broken", value=wanted, reason=literal(broken))
        )
    return Choice(value=wanted, reason=text(f"plan.quantization.{wanted}"))


def _choose_optimizer(machine: MachineFacts, wanted: str, gpu: Gpu | None) -> Choice:
    if wanted == "adamw":
        return Choice(value="adamw", reason=text("plan.optimizer.fused" if gpu else "plan.optimizer.adamw"))
    broken = bitsandbytes_reason(machine)
    if broken:
        reason = text("plan.optimizer.broken", value=wanted, reason=literal(broken))
        return Choice(value="adamw", reason=reason)
    if gpu is None and wanted == "paged_adamw_8bit":
        # bitsandbytes 0.50.2 runs both 8-bit optimizers on CPU tensors (measured), but pages only GPU memory.
        return Choice(value="adamw_8bit", reason=text("plan.optimizer.not_paged"))
    return Choice(value=wanted, reason=text(f"plan.optimizer.{wanted}"))


def _choose_checkpointing(draft: BackendPlan, recipe: Recipe, model: ModelFacts, gpu: Gpu | None) -> Choice:
    wanted = recipe.limits.activation_checkpointing
    if wanted != "auto":
        value = text("plan.on" if wanted == "on" else "plan.off")
        return Choice(value=wanted == "on", reason=text("plan.wanted", value=value))
    if gpu is None:
        return Choice(value=False, reason=text("plan.checkpointing.cpu"))
    if not model.parameters:
        return Choice(value=True, reason=text("plan.checkpointing.unknown"))
    needed = sum(predict(draft, model, recipe).values())
    values = {"needed": gigabytes(needed), "has": gigabytes(gpu.vram_bytes)}
    if needed <= USABLE_VRAM * gpu.vram_bytes:
        return Choice(value=False, reason=text("plan.checkpointing.fits", **values))
    return Choice(value=True, reason=text("plan.checkpointing.tight", **values))


def _choose_kernel(machine: MachineFacts, recipe: Recipe, gpu: Gpu | None) -> Choice:
    if recipe.limits.kernels == "pytorch":
        return Choice(value="reference", reason=text("plan.kernels.wanted"))
    if gpu is None:
        return Choice(value="reference", reason=text("plan.kernels.cpu"))
    if machine.triton_level == "right":
        return Choice(value="triton", reason=text("plan.kernels.triton", gpu=gpu.name))
    if machine.triton_level == "absent":
        return Choice(value="reference", reason=text("plan.kernels.absent"))
    reason = literal(machine.triton_error or machine.triton_level)
    return Choice(value="reference", reason=text("plan.kernels.broken", reason=reason))


def _offers(machine: MachineFacts, recipe: Recipe, gpu: Gpu | None) -> tuple[Offer, ...]:
    launcher = "py launch.py" if machine.system == "Windows" else "python3 launch.py"
    offers = []
    if machine.gpus and not machine.torch_cuda and recipe.limits.device != "cpu":
        name = machine.gpus[0].name
        title, why = text("plan.offer.torch_cuda"), text("plan.offer.torch_cuda.why", gpu=name)
        offers.append(Offer(title=title, why=why, command=f"{launcher} install --rebuild"))
    if gpu is not None and machine.triton_level == "absent" and recipe.limits.kernels == "auto":
        title, why = text("plan.offer.triton"), text("plan.offer.triton.why")
        offers.append(Offer(title=title, why=why, command=f"{launcher} install"))
    wants_bitsandbytes = recipe.model.quantization != "none" or recipe.optim.optimizer != "adamw"
    if wants_bitsandbytes and "bitsandbytes" not in machine.packages:
        title, why = text("plan.offer.bitsandbytes"), text("plan.offer.bitsandbytes.why")
        offers.append(Offer(title=title, why=why, command=f"{launcher} install"))
    return tuple(offers)


def _dotted(gpu: Gpu) -> str:
    return f"{gpu.capability[0]}.{gpu.capability[1]}"
