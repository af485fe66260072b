"""Decides how much a run keeps for its backward pass, and where: the fastest that fits, before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from dataclasses import dataclass

from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import Text, text
from studio.core.memory_policy import KEEP_LEVELS, Calibration, Keep, LayerPolicy, MemoryPolicy
from studio.core.recipe import FOUR_BITS, Recipe, change_recipe
from studio.planning.decoder_shape import DecoderShape, longest, longest_document, read_decoder
from studio.planning.layer_flops import slowdown
from studio.planning.layer_memory import peak_of_layers
from studio.planning.memory_estimate import (
    CALIBRATIONS,
    count_allocated,
    count_tokens,
    predict,
    predict_decoder,
    settle_rows,
)
from studio.planning.policy_candidates import (
    AWAY,
    HEAD_PORTIONS,
    LEAST_CHUNK_TOKENS,
    ON_CARD,
    Candidate,
    MemoryLoad,
    leanest_policy,
    list_candidates,
)

STEP_DOWN_SHARE = 0.2
"""Share of what is kept that one step down gives up: enough to matter, little enough not to overshoot."""
REST_SHARE = 1.1
"""What all layers keep, as a multiple of their inputs, below which a step down leaves the inputs alone."""
KEPT_WIDTHS: dict[Keep, float] = {"input": 1.0, "attention": 3.0, "qkv": 4.5, "all": 11.5}
"""What each level keeps, in widths of the residual stream, for the shapes of Llama 3: weighs the steps down."""
TOKENS_STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChoice:
    """A policy, why, and the peak that is predicted for it by part (memory_estimate.predict)."""

    policy: MemoryPolicy
    reason: Text
    parts: dict[str, int]
    fits: bool


def choose_policy(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    budget_bytes: int,
    ram_bytes: int,
    *,
    calibration: Calibration | None = None,
) -> MemoryChoice:
    """Return the fastest policy whose predicted peak is at most `budget_bytes`, else the leanest and what to change.

    `ram_bytes`: the machine's own free memory, of which half may hold what layers keep. A recipe that wants its
    activations recomputed, or not, is obeyed. Raises ValueError for a run that the decoder cannot do.
    """
    recipe = settle_rows(plan, recipe)
    load = _read_load(plan, model, recipe, ram_bytes)
    calibration = calibration or _calibration(plan)
    sum_peak = _Sum(load, plan, model, recipe, calibration)
    best = min(
        (one for one in list_candidates(load) if sum_peak(one) <= budget_bytes),
        key=lambda one: (one.work, one.peak_bytes),
        default=None,
    )
    policy = _leanest(load) if best is None else best.policy
    parts = predict_decoder(plan, model, recipe, policy, load.shape, calibration)
    if best is None:
        reason = text(
            "plan.memory.too_large_kept" if load.recompute == "off" else "plan.memory.too_large",
            needed=_gigabytes(sum(parts.values())),
            has=_gigabytes(budget_bytes),
            advice=advise(recipe, model),
        )
    else:
        reason = _explain(load.shape, model, recipe, policy, budget_bytes)
    return MemoryChoice(policy=policy, reason=reason, parts=parts, fits=best is not None)


def advise(recipe: Recipe, model: ModelFacts) -> Text:
    """Return the change that makes a run fit at the least cost."""
    if recipe.run.activation_checkpointing == "off":
        return text("check.memory.checkpointing")
    if recipe.adapter.method == "full":
        return text("check.memory.lora")
    if recipe.model.quantization not in FOUR_BITS and model.quantization == "none":
        return text("check.memory.nf4")
    if longest(model, recipe) > 512:
        return text("check.memory.max_length")
    return text("check.memory.smaller_model")


class _Sum:
    """Sums up what predict_decoder() predicts of a candidate, without predicting anew what all have in common."""

    def __init__(
        self, load: MemoryLoad, plan: BackendPlan, model: ModelFacts, recipe: Recipe, calibration: Calibration
    ) -> None:
        away = MemoryPolicy(layers=AWAY[:1] * load.shape.layers)
        parts = predict_decoder(plan, model, recipe, away, load.shape, calibration)
        kept, needed = peak_of_layers(load.shape, load.tokens, away)
        self.common = count_allocated(parts) - kept - needed
        self.calibration = calibration
        opened = sum(rows * columns for rows, columns in (g.shape for g in load.shape.groups.values()))
        self.opened_bytes = load.shape.element_bytes * opened

    def __call__(self, one: Candidate) -> int:
        allocated = self.common + one.peak_bytes + one.cached_layers * self.opened_bytes
        lost = int((self.calibration.fragmentation - 1) * allocated)
        return allocated + lost + self.calibration.context_bytes


def longest_context(
    plan: BackendPlan,
    model: ModelFacts,
    recipe: Recipe,
    budget_bytes: int,
    ram_bytes: int = 0,
    *,
    calibration: Calibration | None = None,
) -> int:
    """Return the most tokens that a micro-batch may hold on this card, a multiple of 64, 0 when none fit.

    With the leanest policy that the recipe allows where the decoder trains (`plan` has one), else with activations
    recomputed, unless it forbids that. What the model can read is no limit here: see ModelFacts.max_positions.
    """
    model = dataclasses.replace(model, max_positions=0)
    if recipe.run.activation_checkpointing != "off":
        plan = dataclasses.replace(plan, checkpointing=dataclasses.replace(plan.checkpointing, value=True))

    def needed(tokens: int) -> int:
        one = change_recipe(recipe, {"data.max_length": tokens, "optim.micro_batch": 1})
        policy = None
        if plan.memory is not None and read_decoder(plan, model, one) is not None:
            policy = _leanest(_read_load(plan, model, one, ram_bytes))
        return sum(predict(plan, model, one, policy, calibration=calibration).values())

    most = 1
    while needed(2 * most * TOKENS_STEP) <= budget_bytes and most < 2**20:
        most *= 2
    return TOKENS_STEP * (
        bisect_right(range(2 * most), budget_bytes, lo=1, key=lambda count: needed(count * TOKENS_STEP)) - 1
    )


def step_down(
    policy: MemoryPolicy, tokens: int = 0, most_offloaded: int | None = None
) -> MemoryPolicy | None:
    """Return the next cheaper policy, None when there is none: taken when memory ran out in spite of the prediction.

    Opened weights go first; then what layers keep on the card, a fifth of all at a time, from the first layers on; then
    their inputs wait in the machine's own memory (of `most_offloaded` layers at most, None: all); then the layers that
    waited there with more do so with their inputs alone, of which two at a time stand on the card; then MLP and loss
    head go in portions. `tokens`: those of the micro-batch, where known. Results stay the same.
    """
    layers = policy.layers
    if policy.cached_layers:
        return dataclasses.replace(policy, cached_layers=0)
    if any(layer.keep != "input" for layer in layers if not layer.offload):
        return dataclasses.replace(policy, layers=_lower(layers))
    most = len(layers) if most_offloaded is None else most_offloaded
    free = max(0, most - sum(layer.offload for layer in layers))
    there = [place for place, layer in enumerate(layers) if not layer.offload][:free]
    if there:
        away = tuple(AWAY[0] if place in there else layer for place, layer in enumerate(layers))
        return dataclasses.replace(policy, layers=away)
    if any(layer.keep != "input" for layer in layers):
        return dataclasses.replace(
            policy, layers=tuple(dataclasses.replace(layer, keep="input") for layer in layers)
        )
    chunk = _halve(policy.mlp_chunk_tokens or tokens or 16 * LEAST_CHUNK_TOKENS)
    if chunk >= LEAST_CHUNK_TOKENS:
        return dataclasses.replace(policy, mlp_chunk_tokens=chunk)
    for rows, columns in HEAD_PORTIONS[1:]:
        if (policy.head_rows or math.inf) > rows:
            return dataclasses.replace(policy, head_rows=rows, head_columns=columns)
    return None


def _lower(layers: tuple[LayerPolicy, ...]) -> tuple[LayerPolicy, ...]:
    """Take layers on the card one level down, of the highest level first and there the first layer first."""
    lowered = list(layers)
    there = [place for place, layer in enumerate(layers) if not layer.offload]
    kept = sum(KEPT_WIDTHS[layers[place].keep] for place in there)
    target = (1 - STEP_DOWN_SHARE) * kept
    # What a last layer or two still keep is not worth a step of its own.
    while kept > target or kept < REST_SHARE * len(there):
        level = max(KEEP_LEVELS.index(lowered[place].keep) for place in there)
        if not level:
            break
        place = next(place for place in there if lowered[place].keep == KEEP_LEVELS[level])
        lowered[place] = LayerPolicy(keep=KEEP_LEVELS[level - 1])
        kept -= KEPT_WIDTHS[KEEP_LEVELS[level]] - KEPT_WIDTHS[KEEP_LEVELS[level - 1]]
    return tuple(lowered)


def _halve(tokens: int) -> int:
    """Return the largest power of two below `tokens`."""
    return 1 << ((tokens - 1).bit_length() - 1) if tokens > 1 else 0


def _explain(
    shape: DecoderShape, model: ModelFacts, recipe: Recipe, policy: MemoryPolicy, budget_bytes: int
) -> Text:
    repeated = sum(layer.keep != "all" for layer in policy.layers)
    away = [layer for layer in policy.layers if layer.offload]
    values = {
        "layers": repeated,
        "total": shape.layers,
        "has": _gigabytes(budget_bytes),
        "offloaded": len(away),
    }
    if not repeated:
        if away:
            return text("plan.memory.offload_all", **values)
        if policy.head_rows:
            return text("plan.memory.portions_all", **values)
        kept = "scaled" if shape.magnitudes else "opened"
        return text(f"plan.memory.{kept if policy.cached_layers else 'all'}", layers=policy.cached_layers)
    values["percent"] = max(1, round(100 * slowdown(shape, policy, longest_document(model, recipe))))
    id = "portions" if policy.mlp_chunk_tokens or policy.head_rows else "offload" if away else "some"
    if away and id == "portions":
        id = "portions_offload"
    if any(layer.keep != "input" for layer in away):
        id += "_more"
    return text(f"plan.memory.{id}", **values)


def _leanest(load: MemoryLoad) -> MemoryPolicy:
    """Return the policy that needs least among those that the recipe allows."""
    if load.recompute != "off":
        return leanest_policy(load)
    rows, columns = HEAD_PORTIONS[-1]
    return MemoryPolicy(layers=ON_CARD[-1:] * load.shape.layers, head_rows=rows, head_columns=columns)


def _read_load(plan: BackendPlan, model: ModelFacts, recipe: Recipe, ram_bytes: int) -> MemoryLoad:
    shape = read_decoder(plan, model, recipe)
    if shape is None:
        raise ValueError("The model's own forward trains here: it has no policy.")
    return MemoryLoad(
        shape=shape,
        tokens=count_tokens(model, recipe),
        document_tokens=longest_document(model, recipe),
        ram_bytes=ram_bytes,
        recompute=recipe.run.activation_checkpointing,
        opened=plan.quantization.value in FOUR_BITS or shape.magnitudes,
    )


def _on_gpu(plan: BackendPlan) -> bool:
    return str(plan.device.value).startswith("cuda")


def _calibration(plan: BackendPlan) -> Calibration:
    return CALIBRATIONS["cuda" if _on_gpu(plan) else "cpu"]


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
