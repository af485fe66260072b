"""The plan and the recipe that a benchmark's bare step stands for: what the planner and its predictions ask for."""

from __future__ import annotations

from typing import Any

from studio.core.facts import BackendPlan, Choice, ModelFacts
from studio.core.i18n import literal
from studio.core.recipe import AdapterSpec, DatasetSpec, ModelChoice, OptimSpec, Recipe
from studio.planning.decoder_shape import find_asked_ops
from studio.planning.run_plan import OPS


def draft_run(
    model: ModelFacts,
    *,
    bits: int,
    batch: int,
    tokens: int,
    device: str,
    recompute: bool = False,
    dtype: str = "bf16",
    optimizer: str = "adamw_8bit",
    triton: bool = True,
    fp8: bool = False,
    dora: bool = False,
    targets: str = "",
) -> tuple[BackendPlan, Recipe]:
    """Return both for LoRA (or DoRA) of rank 16, micro-batches of `batch` rows of `tokens` tokens.

    `targets`: names of the linears with adapters; "": all.
    """

    def choose(value: Any) -> Choice:
        return Choice(value=value, reason=literal("benchmark"))

    quantization = "nf4" if bits == 4 else "none"
    recipe = Recipe(
        model=ModelChoice(source=model.source, quantization=quantization),
        data=DatasetSpec(source="", max_length=tokens, validation_share=0.0),
        adapter=AdapterSpec(dora=dora, target_modules=targets or "all-linear"),
        optim=OptimSpec(batch_size=batch, optimizer=optimizer),
    )
    ops = [*OPS, *find_asked_ops(recipe, model, fp8=fp8)]
    plan = BackendPlan(
        device=choose(device),
        dtype=choose(dtype),
        attention=choose("sdpa"),
        quantization=choose(quantization),
        optimizer=choose(optimizer),
        checkpointing=choose(recompute),
        kernels={op: choose("triton" if triton and device != "cpu" else "reference") for op in ops},
        fp8=choose(fp8),
    )
    return plan, recipe
