"""Whether a machine can train a model, by which way, and what that takes: the planner's own prediction for each way."""

from __future__ import annotations

from dataclasses import dataclass

from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.planning.memory_estimate import predict
from studio.planning.run_plan import choose_calibration, choose_device, memory_budget, plan

JUDGED_TOKENS = 2048
"""Tokens of the one example at a time for which models are judged; the card of a run judges what is really set."""
TIGHT_SHARE = 0.9
"""Share of the memory that may be used above which a model fits tightly: a longer example may not fit any more."""
METHODS = {"lora": "none", "qlora": "nf4", "int8": "int8"}
"""Way of training -> model.quantization. In the order of what is advised: 8-bit weights save less than those in 4 bits
and are trained by the model's own, slower code."""
PROCESSOR_PARAMETERS = 1_000_000_000
"""A processor trains a larger model only in days, whatever fits into its memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodFit:
    """What one way of training a model needs here."""

    method: str
    """lora (16 bits), qlora (4 bits) or int8 (8 bits)."""
    quantization: str
    """What `model.quantization` must say for it."""
    verdict: str
    """fits, tight or no."""
    dtype: str
    """Of the arithmetic: bf16, fp16 or, on a processor, fp32."""
    needed_bytes: int
    """Predicted peak with activations recomputed, for one example of JUDGED_TOKENS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFit:
    """Whether a model can be trained on this machine, by the best way that fits."""

    verdict: str
    """fits, tight, no or unknown."""
    reason: Text
    needed_bytes: int = 0
    has_bytes: int = 0
    """What a run may plan with; of a card's memory 90 % at most."""
    method: str = ""
    methods: tuple[MethodFit, ...] = ()


UNKNOWN = ModelFit(verdict="unknown", reason=text("fit.unknown"))


def judge_model(machine: MachineFacts, facts: ModelFacts) -> ModelFit:
    """Return whether `machine` can train a model: a pure function of facts."""
    if not knows_shape(facts):
        return UNKNOWN
    methods = tuple(filter(None, (judge_method(machine, facts, method) for method in METHODS)))
    gpu = choose_device(machine, judged_recipe("none"))[1]
    has_bytes = memory_budget(machine, gpu)[0]
    if not methods:
        return UNKNOWN
    best = next((one for one in methods if one.verdict == "fits"), None) or next(
        (one for one in methods if one.verdict == "tight"), min(methods, key=lambda one: one.needed_bytes)
    )
    id = f"fit.{best.verdict}"
    if gpu is None and best.verdict != "no" and facts.parameters > PROCESSOR_PARAMETERS:
        id = "fit.slow"
    reason = text(
        id,
        needed=f"{best.needed_bytes / 2**30:.1f}",
        has=f"{has_bytes / 2**30:.1f}",
        method=name_method(best),
    )
    return ModelFit(
        verdict=best.verdict,
        reason=reason,
        needed_bytes=best.needed_bytes,
        has_bytes=has_bytes,
        method=best.method,
        methods=methods,
    )


def knows_shape(facts: ModelFacts) -> bool:
    """Return whether enough is known of a model, and fits together, for the planner to predict its memory."""
    numbers = (facts.parameters, facts.hidden_size, facts.layers, facts.vocabulary)
    return min(numbers) > 0 and len(facts.windowed_layers) in (0, facts.layers)


def count_active(facts: ModelFacts) -> int:
    """Return the parameters that one token meets: all, but of experts only the chosen ones."""
    _, count, chosen = facts.experts
    return facts.parameters - (facts.expert_parameters * (count - chosen) // count if count else 0)


def name_method(one: MethodFit) -> Text:
    """Return what people call a way of training."""
    wide = one.method == "lora" and one.dtype == "fp32"
    return text("fit.method.lora_wide" if wide else f"fit.method.{one.method}")


def judge_method(machine: MachineFacts, facts: ModelFacts, method: str) -> MethodFit | None:
    """Return what one of METHODS needs on `machine`; None where it cannot be done there, or with such weights."""
    stored = facts.quantization
    if stored != "none" and METHODS[method] != {"fp4": "nf4"}.get(stored, stored):
        return None
    recipe = judged_recipe(METHODS[method] if stored == "none" else "none")
    chosen = plan(machine, recipe, facts)
    if chosen.quantization.value != (recipe.model.quantization if stored == "none" else stored):
        return None
    gpu = choose_device(machine, recipe)[1]
    parts = predict(chosen, facts, recipe, calibration=choose_calibration(machine, gpu))
    needed_bytes = sum(parts.values())
    return MethodFit(
        method=method,
        quantization=recipe.model.quantization,
        verdict=judge_peak(chosen, needed_bytes, memory_budget(machine, gpu)[0]),
        dtype=chosen.dtype.value,
        needed_bytes=needed_bytes,
    )


def judge_peak(chosen: BackendPlan, needed_bytes: int, budget_bytes: int) -> str:
    """Return fits, tight or no for a plan in which activations are recomputed, whose predicted peak is `needed_bytes`.

    It is tight, too, when layers have to wait in the machine's own memory, or the MLP to be computed in portions.
    """
    policy = chosen.memory
    squeezed = policy is not None and (
        policy.mlp_chunk_tokens > 0 or any(layer.offload for layer in policy.layers)
    )
    if needed_bytes > budget_bytes:
        return "no"
    return "tight" if squeezed or needed_bytes > TIGHT_SHARE * budget_bytes else "fits"


def judged_recipe(quantization: str) -> Recipe:
    """Return the recipe by which models are judged: one example of JUDGED_TOKENS at a time, activations recomputed."""
    recipe = Recipe(
        model=ModelChoice(source="-", quantization=quantization),
        data=DatasetSpec(source="-", max_length=JUDGED_TOKENS),
    )
    return change_recipe(recipe, {"optim.micro_batch": 1, "run.activation_checkpointing": "on"})
