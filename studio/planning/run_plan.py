"""Decides what a run will really use, each choice with its reason: a pure function of facts."""

from __future__ import annotations

import dataclasses

from studio.core.facts import BackendPlan, Choice, Gpu, MachineFacts, ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.memory_policy import Calibration
from studio.core.recipe import Recipe
from studio.core.row_lengths import RowLengths
from studio.machine import versions
from studio.machine.card_abilities import dotted, has_bf16, has_fp8, old_driver, triton_words
from studio.machine.cards import choose_card, explain_card, gigabytes, number_card
from studio.machine.workspace import KERNELS_VARIABLE, MEMORY_VARIABLE
from studio.models.rope_scaling import count_positions, name_scaling
from studio.planning.backend_choice import (
    NEEDS_DOTS,
    Backend,
    choose_backend,
    runs_fast,
)
from studio.planning.decoder_shape import find_asked_ops, read_decoder, trains_magnitudes
from studio.planning.memory_estimate import estimate_calibration, predict
from studio.planning.micro_batch import choose_decoder_rows, choose_own_rows, explain
from studio.planning.quantization_choice import choose_quantization
from studio.planning.shared_prompts import choose_shared_prompts, limit_length, share_lengths
from studio.planning.slow_paths import find_slower
from studio.planning.suggestions import make_offers

OPS = tuple(NEEDS_DOTS)
USABLE_VRAM = 0.9
"""Share of a GPU's memory that a run may plan with: the desktop and fragmentation take the rest."""
DEVICE_KINDS = {"nvidia": "cuda", "amd": "cuda", "intel": "xpu", "apple": "mps"}
"""Maker of a card -> what PyTorch calls the cards that its build drives."""


def plan(
    machine: MachineFacts, recipe: Recipe, model: ModelFacts, rows: RowLengths | None = None
) -> BackendPlan:
    """Return the BackendPlan of `recipe` on `machine`. A forced value that cannot work is replaced, saying so.

    `rows`: how long they are, where the data has been read; else all count as long as the recipe lets them be.
    """
    recipe = limit_length(recipe, rows)
    device, gpu = choose_device(machine, recipe)
    backend = plan_backend(machine, recipe)
    optimizer = _choose_optimizer(machine, recipe.optim.optimizer, backend, gpu)
    # The 8-bit optimizers are bitsandbytes'.
    ops = [op for op in OPS if op != "adamw" or optimizer.value == "adamw"]
    draft = BackendPlan(
        device=device,
        dtype=_choose_dtype(recipe.model.precision, machine, gpu),
        attention=_choose_attention(recipe.model.attention, model, backend, gpu),
        quantization=choose_quantization(recipe, model, backend, gpu, bitsandbytes_reason(machine)),
        optimizer=optimizer,
        checkpointing=Choice(value=False, reason=text("plan.checkpointing.off")),
        kernels={op: choose_kernel(op, machine, backend, gpu, recipe.run.kernels) for op in ops},
        offers=make_offers(machine, backend, recipe),
        multi_gpu=_choose_multi_gpu(machine, gpu),
        rope=choose_rope(recipe, model),
        more_bits=recipe.model.more_bits,
        backend=backend.row,
    )
    fp8 = _choose_fp8(draft, recipe, model, gpu)
    for op in find_asked_ops(recipe, model, fp8=fp8.value):
        fast = choose_kernel(op, machine, backend, gpu, recipe.run.kernels)
        draft = dataclasses.replace(draft, kernels={**draft.kernels, op: fast})
    draft = dataclasses.replace(draft, fp8=fp8)
    shape = read_decoder(draft, model, recipe) if decoder_pays(gpu) else None
    shared = choose_shared_prompts(draft, model, recipe, shape, rows)
    draft = dataclasses.replace(draft, shared_prompts=shared)
    rows = share_lengths(draft, rows)
    recipe = limit_length(recipe, rows)
    done = plan_memory(draft, machine, recipe, model, gpu, rows)
    slower = find_slower(done, machine, recipe, model, gpu, decoder_pays=decoder_pays(gpu))
    return dataclasses.replace(done, slower=slower)


def plan_memory(
    draft: BackendPlan,
    machine: MachineFacts,
    recipe: Recipe,
    model: ModelFacts,
    gpu: Gpu | None,
    rows: RowLengths | None = None,
) -> BackendPlan:
    """Return `draft` with how many rows go at once, and what is kept for the backward pass.

    That is decided layer by layer where the studio's own decoder trains. `rows`: how long they are, where known.
    """
    shape = read_decoder(draft, model, recipe) if decoder_pays(gpu) else None
    if shape is None:
        return _plan_own_code(draft, machine, recipe, model, gpu)
    calibration = choose_calibration(machine, gpu)
    micro_batch, choice = choose_decoder_rows(
        draft, model, recipe, shape, *memory_budget(machine, gpu), calibration=calibration, rows=rows
    )
    recomputes, reason = any(layer.keep != "all" for layer in choice.policy.layers), choice.reason
    if choice.fits and recipe.run.activation_checkpointing != "auto":
        reason = text("plan.wanted", value=text("plan.on" if recomputes else "plan.off"))
    optimizer = draft.optimizer
    if optimizer.reason.id == "plan.optimizer.fused":
        optimizer = dataclasses.replace(optimizer, reason=text("plan.optimizer.own"))
    return dataclasses.replace(
        draft,
        memory=choice.policy,
        micro_batch=micro_batch,
        checkpointing=Choice(value=recomputes, reason=reason),
        optimizer=optimizer,
    )


def decoder_pays(gpu: Gpu | None) -> bool:
    """Return whether the studio's own decoder is used there; on a processor the model's own code is as fast."""
    return gpu is not None and DEVICE_KINDS[gpu.vendor] == "cuda"


def choose_calibration(machine: MachineFacts, gpu: Gpu | None) -> Calibration | None:
    """Return what the card takes beyond arithmetic: as an earlier run measured it, else by its size."""
    if gpu is None or DEVICE_KINDS[gpu.vendor] != "cuda":
        return None
    if machine.fragmentation:
        return Calibration(context_bytes=machine.context_bytes, fragmentation=machine.fragmentation)
    return estimate_calibration(gpu.vram_bytes)


def memory_budget(machine: MachineFacts, gpu: Gpu | None) -> tuple[int, int]:
    """Return the bytes that a run may plan with, and the free bytes of the machine beside a card (0 without one)."""
    ram_bytes, share = free_ram_bytes(machine), memory_share(machine)
    if gpu is None:
        return int(USABLE_VRAM * share * ram_bytes), 0
    has_bytes = gpu.cap_bytes or gpu.free_bytes or gpu.vram_bytes
    return min(int(USABLE_VRAM * share * gpu.vram_bytes), has_bytes), ram_bytes


def memory_share(machine: MachineFacts) -> float:
    """Return the share of the free memory that the person gives to runs; 1.0 where they did not say."""
    try:
        share = float(machine.environment.get(MEMORY_VARIABLE, "1"))
    except ValueError:
        return 1.0
    return share if 0.1 <= share <= 1.0 else 1.0


def limit_memory(machine: MachineFacts, gpu: Gpu, cap_bytes: int) -> MachineFacts:
    """Return `machine` with what torch may hold of `gpu` now, where other programs hold the rest."""
    beside_bytes = choose_calibration(machine, gpu).context_bytes
    limited = dataclasses.replace(gpu, cap_bytes=cap_bytes + beside_bytes)
    return dataclasses.replace(machine, gpus=tuple(limited if one is gpu else one for one in machine.gpus))


def free_ram_bytes(machine: MachineFacts) -> int:
    """Return the machine's own free memory as far as this process may use it, 0 where it is unknown."""
    ram_bytes = machine.ram_available_bytes or machine.ram_bytes
    return min(filter(None, (ram_bytes, machine.ram_limit_bytes)), default=0)


def plan_backend(machine: MachineFacts, recipe: Recipe | None = None) -> Backend:
    """Return the row of the table for the card that trains, or would train if it could be used."""
    forced = forced_kernels(machine, recipe)
    on_processor = recipe is not None and recipe.run.device == "cpu"
    return choose_backend(machine, None if on_processor else choose_card(machine), forced)


def forced_kernels(machine: MachineFacts, recipe: Recipe | None) -> str:
    """Return `triton` or `pytorch` where the recipe, or else the environment, decides on the kernels; "" where not."""
    if recipe is not None and recipe.run.kernels != "auto":
        return recipe.run.kernels
    setting = machine.environment.get(KERNELS_VARIABLE, "").strip().lower()
    return setting if setting in ("triton", "pytorch") else ""


def choose_device(machine: MachineFacts, recipe: Recipe) -> tuple[Choice, Gpu | None]:
    """Return the device to train on and its Gpu, None for the processor.

    `cuda:i` counts the cards of one maker in the order of MachineFacts.gpus.
    """
    cores = machine.cores
    if recipe.run.device == "cpu":
        return Choice(value="cpu", reason=text("plan.device.cpu_wanted", cores=cores)), None
    gpu, backend = choose_card(machine), choose_backend(machine, choose_card(machine))
    if gpu is None or backend.processor:
        return Choice(value="cpu", reason=_explain_processor(machine, gpu, backend.row)), None
    index, kind = number_card(machine, gpu), DEVICE_KINDS[gpu.vendor]
    value = kind if kind == "mps" else f"{kind}:{index}"
    return Choice(value=value, reason=explain_card(machine, gpu)), gpu


def _explain_processor(machine: MachineFacts, gpu: Gpu | None, row: str) -> Text:
    if row == "no_torch":
        return text("plan.device.no_torch")
    if row == "wsl_without_gpu":
        return text("plan.device.wsl_without_gpu", cores=machine.cores)
    if gpu is None:
        if machine.gpus:
            return text("plan.device.other_build", gpu=machine.gpus[0].name)
        return text("plan.device.no_gpu", cores=machine.cores)
    if row == "torch_without_gpu":
        return text("plan.device.cpu_build", gpu=gpu.name)
    if row != "driver_or_build":
        return text("plan.device.unseen", gpu=gpu.name)
    if old_driver(machine):
        has = ".".join(map(str, machine.driver_cuda))
        return text("plan.device.old_driver", gpu=gpu.name, has=has, needs=machine.torch_cuda)
    oldest, _ = versions.code_range(machine.torch_cuda, machine.packages.get("torch", ""))
    id = "plan.device.old_gpu" if gpu.capability < oldest else "plan.device.new_gpu"
    return text(id, gpu=gpu.name, capability=dotted(gpu), build=machine.torch_cuda)


def bitsandbytes_reason(machine: MachineFacts) -> str:
    """Return why bitsandbytes cannot be used, "" when it can."""
    if "bitsandbytes" not in machine.packages:
        return machine.bitsandbytes_error or "bitsandbytes is not installed."
    return machine.bitsandbytes_error


def _choose_dtype(wanted: str, machine: MachineFacts, gpu: Gpu | None) -> Choice:
    if gpu is None:
        if wanted == "fp16":
            return Choice(value="fp32", reason=text("plan.dtype.no_fp16_on_cpu"))
        if wanted != "auto":
            return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
        return Choice(value="fp32", reason=text("plan.dtype.cpu"))
    if gpu.vendor == "apple" and wanted in ("auto", "fp16"):
        return Choice(value="fp32", reason=text("plan.dtype.apple"))  # no loss scaling there
    bf16 = has_bf16(machine, gpu)
    values = {"gpu": gpu.name, "capability": gpu.architecture or dotted(gpu)}
    if wanted == "bf16" and not bf16 and gpu.vendor != "apple":
        return Choice(value="fp16", reason=text("plan.dtype.bf16_emulated", **values))
    if wanted != "auto":
        return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
    if bf16:
        return Choice(value="bf16", reason=text("plan.dtype.bf16", gpu=gpu.name))
    return Choice(value="fp16", reason=text("plan.dtype.fp16", **values))


def _choose_attention(wanted: str, model: ModelFacts, backend: Backend, gpu: Gpu | None) -> Choice:
    if model.scores_capped:
        return Choice(value="eager", reason=text("plan.attention.capped", family=model.family))
    if not model.sdpa:
        return Choice(value="eager", reason=text("plan.attention.plain", family=model.family))
    if wanted != "auto":
        return Choice(value=wanted, reason=text("plan.wanted", value=wanted))
    if gpu is not None and backend.attention != "sdpa":
        form = backend.attention.removeprefix("sdpa_")
        return Choice(value="sdpa", reason=text(f"plan.attention.{form}", gpu=gpu.name))
    return Choice(value="sdpa", reason=text("plan.attention.sdpa"))


def _choose_fp8(draft: BackendPlan, recipe: Recipe, model: ModelFacts, gpu: Gpu | None) -> Choice:
    """Return whether frozen weights are multiplied in 8 bits: only ever where it is asked for."""
    if not recipe.model.fp8:
        return Choice(value=False, reason=text("plan.fp8.off"))
    if gpu is None:
        return Choice(value=False, reason=text("plan.fp8.cpu"))
    if not has_fp8(gpu):
        capability = gpu.architecture or dotted(gpu)
        return Choice(value=False, reason=text("plan.fp8.gpu", gpu=gpu.name, capability=capability))
    if recipe.adapter.method == "full":
        return Choice(value=False, reason=text("plan.fp8.full"))
    if trains_magnitudes(recipe):
        return Choice(value=False, reason=text("plan.fp8.dora"))
    if draft.quantization.value != "none":
        return Choice(value=False, reason=text("plan.fp8.quantized", value=draft.quantization.value))
    if draft.dtype.value != "bf16":
        return Choice(value=False, reason=text("plan.fp8.dtype", value=draft.dtype.value))
    if read_decoder(draft, model, recipe) is None:
        return Choice(value=False, reason=text("plan.fp8.stock"))
    return Choice(value=True, reason=text("plan.fp8.on", gpu=gpu.name))


def _choose_optimizer(machine: MachineFacts, wanted: str, backend: Backend, gpu: Gpu | None) -> Choice:
    if wanted == "adamw":
        fused = gpu is not None and DEVICE_KINDS[gpu.vendor] == "cuda"
        return Choice(value="adamw", reason=text("plan.optimizer.fused" if fused else "plan.optimizer.adamw"))
    broken = bitsandbytes_reason(machine)
    if broken:
        reason = text("plan.optimizer.broken", value=wanted, reason=literal(broken))
        return Choice(value="adamw", reason=reason)
    if gpu is None and wanted == "paged_adamw_8bit":
        # bitsandbytes 0.50.2 runs both 8-bit optimizers on CPU tensors (measured), but pages only GPU memory.
        return Choice(value="adamw_8bit", reason=text("plan.optimizer.not_paged"))
    if gpu is not None and backend.eight_bit == "torch":
        return Choice(value="adamw", reason=text("plan.optimizer.gpu", value=wanted, gpu=gpu.name))
    return Choice(value=wanted, reason=text(f"plan.optimizer.{wanted}"))


def choose_rope(recipe: Recipe, model: ModelFacts) -> Choice:
    """Return how the model's positions are stretched, with its own limit and the new one."""
    scaling = name_scaling(recipe)
    if not scaling:
        return Choice(value="", reason=text("plan.rope.none"))
    most = f"{count_positions(model, recipe):,}"
    values = {"own": f"{model.max_positions:,}", "most": most, "kind": recipe.model.rope_scaling}
    return Choice(value=scaling, reason=text("plan.rope.stretched", **values))


def _choose_multi_gpu(machine: MachineFacts, gpu: Gpu | None) -> Choice:
    if gpu is None:
        return Choice(value="single", reason=text("plan.multi_gpu.none"))
    count = sum(one.vendor == gpu.vendor for one in machine.gpus)
    if count == 1:
        return Choice(value="single", reason=text("plan.multi_gpu.single"))
    id = "plan.multi_gpu.windows" if machine.system == "Windows" else "plan.multi_gpu.several"
    return Choice(value="single", reason=text(id, count=count))


def _plan_own_code(
    draft: BackendPlan, machine: MachineFacts, recipe: Recipe, model: ModelFacts, gpu: Gpu | None
) -> BackendPlan:
    """Return `draft` with what the model's own code takes at once, and whether its activations are computed again."""
    wanted = recipe.run.activation_checkpointing
    if not model.parameters:
        known = wanted != "auto"
        reason = text("plan.wanted", value=text("plan.on" if wanted == "on" else "plan.off"))
        unknown = Choice(
            value=gpu is not None,
            reason=text("plan.checkpointing.unknown" if gpu else "plan.checkpointing.cpu"),
        )
        return dataclasses.replace(
            draft,
            checkpointing=Choice(value=wanted == "on", reason=reason) if known else unknown,
            micro_batch=Choice(value=1, reason=text("plan.micro_batch.unknown")),
        )
    draft = dataclasses.replace(
        draft, checkpointing=Choice(value=wanted == "on", reason=draft.checkpointing.reason)
    )
    calibration, budget_bytes = choose_calibration(machine, gpu), memory_budget(machine, gpu)[0]
    count, again = choose_own_rows(
        draft,
        model,
        recipe,
        budget_bytes,
        calibration=calibration,
        may_recompute=gpu is not None and wanted == "auto",
    )
    steps = -(-recipe.optim.batch_size // count)
    draft = dataclasses.replace(
        draft,
        micro_batch=Choice(value=count, reason=explain(recipe, count, steps, stream=False, cpu=gpu is None)),
    )
    if wanted != "auto":
        value = text("plan.on" if wanted == "on" else "plan.off")
        reason = text("plan.wanted", value=value)
    elif gpu is None:
        reason = text("plan.checkpointing.cpu")
    else:
        needed = sum(predict(draft, model, recipe, calibration=calibration).values())
        values = {"needed": gigabytes(needed), "has": gigabytes(gpu.vram_bytes)}
        reason = text("plan.checkpointing.tight" if again else "plan.checkpointing.fits", **values)
    value = wanted == "on" or again
    return dataclasses.replace(draft, checkpointing=Choice(value=value, reason=reason))


def choose_kernel(
    op: str, machine: MachineFacts, backend: Backend, gpu: Gpu | None, wanted: str = "auto"
) -> Choice:
    """Return which implementation of `op` a run takes: `triton`, or its twin (`reference`), which every other op leaves
    alone. `wanted`: the recipe's run.kernels.
    """
    reference = "reference"
    if wanted == "pytorch":
        return Choice(value=reference, reason=text("plan.kernels.wanted"))
    if backend.row == "forced" and backend.kernels == "none" and gpu is not None:
        return Choice(value=reference, reason=backend.reason)
    if triton_hidden(machine, gpu):
        return Choice(value=reference, reason=text("plan.kernels.hidden", reason=triton_words(machine)))
    if gpu is None:
        return Choice(value=reference, reason=text("plan.kernels.cpu"))
    if op in machine.broken_kernels:
        reason = literal(machine.broken_kernels[op])
        return Choice(value=reference, reason=text("plan.kernels.fell_back", reason=reason))
    failed = next((test for test in machine.kernel_tests if test.op == op and not test.ok), None)
    if failed is not None:
        values = {"gpu": gpu.name, "reason": literal(failed.reason)}
        return Choice(value=reference, reason=text("plan.kernels.test_failed", **values))
    if runs_fast(backend.kernels, op):
        return Choice(value="triton", reason=backend.reason)
    if backend.kernels == "elementwise":
        return Choice(value=reference, reason=text("plan.kernels.matrix", gpu=gpu.name))
    return Choice(value=reference, reason=backend.reason)


def triton_hidden(machine: MachineFacts, gpu: Gpu | None) -> bool:
    """Whether Triton is installed but was tried in vain to be imported: it is then hidden from the other libraries."""
    return machine.triton_level == "installed" and (gpu is not None or bool(machine.triton_error))
