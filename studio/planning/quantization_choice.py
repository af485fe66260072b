"""In which form a run holds the weights that it does not train, and why not in the one that was asked for."""

from __future__ import annotations

from studio.core.facts import Choice, Gpu, ModelFacts
from studio.core.i18n import literal, text
from studio.core.recipe import Recipe
from studio.machine import versions
from studio.planning.backend_choice import Backend
from studio.planning.memory_estimate import NF4_BYTES, count_linear_parameters, count_quantized


def choose_quantization(
    recipe: Recipe, model: ModelFacts, backend: Backend, gpu: Gpu | None, broken: str
) -> Choice:
    """Return how the frozen weights are held: as the recipe asks, where the base, the method and the card allow it.

    `broken`: why bitsandbytes does not work here, "" where it does.
    """
    wanted = recipe.model.quantization
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
    # On a processor it only saves memory, so it is done where it is asked for though no row proposes it.
    old = gpu is not None and gpu.vendor == "nvidia" and gpu.capability < versions.gate("int8")
    if gpu is not None and (backend.four_bit == "off" or (wanted == "int8" and old)):
        return Choice(value="none", reason=text("plan.quantization.gpu", value=wanted, gpu=gpu.name))
    reached = count_quantized(wanted, model)
    if model.expert_parameters and reached == count_linear_parameters(model):
        return Choice(value=wanted, reason=text("plan.quantization.experts", value=wanted))
    if model.expert_parameters and wanted == "nf4":
        share = 100 * reached / model.parameters
        held = {"share": f"{share:.1f}", "rest": f"{100 - share:.1f}"}
        return Choice(value=wanted, reason=text("plan.quantization.nf4_experts", **held))
    if wanted == "mixed":
        packed = count_linear_parameters(model) * NF4_BYTES
        held, more = f"{packed / 1e6:,.1f}", recipe.model.more_bits * packed / 1e6
        if not more:
            return Choice(value=wanted, reason=text("plan.quantization.mixed", mb=held))
        return Choice(
            value=wanted, reason=text("plan.quantization.mixed.more", mb=held, more_mb=f"{more:,.1f}")
        )
    return Choice(value=wanted, reason=text(f"plan.quantization.{wanted}"))
