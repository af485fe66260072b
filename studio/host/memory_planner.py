"""Decides how much a run keeps for its backward pass: as much as fits, layer by layer, before anything is loaded."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from studio.core.facts import BackendPlan, ModelFacts
from studio.core.policy import KEEP_LEVELS, Keep, LayerPolicy, MemoryPolicy
from studio.core.recipe import Recipe, change_recipe
from studio.core.text import Text, text
from studio.host.layer_memory import DecoderShape, kept_bytes, read_decoder
from studio.host.memory import (
    CALIBRATIONS,
    Calibration,
    count_tokens,
    longest,
    predict,
    predict_decoder,
)

LEAST_CHUNK_TOKENS = 1024
"""Fewer tokens at a time leave a GPU's processors idle."""
HEAD_PORTIONS = ((1024, 8192), (512, 4096))
"""Smaller portions of the loss head, (rows, columns): 84 and 17 MB of workspace for a width of 4,096."""
PINNED_SHARE = 0.5
"""Share of the machine's free memory that may wait there for the card; pinned memory cannot be swapped out."""
ATTENTION_SLOWNESS = 1.3
"""Time of one FLOP of attention in FLOPs of a matrix product: 540 against 680 TFLOP/s on an H200."""
STEP_DOWN_SHARE = 0.2
"""Share of what is kept that one step down gives up: enough to matter, little enough not to overshoot."""
REST_SHARE = 1.1
"""What all layers keep, as a multiple of their inputs, below which a step down leaves the inputs alone."""
KEPT_WIDTHS: dict[Keep, float] = {"input": 1.0, "attention": 3.0, "qkv": 4.5, "all": 11.5}
"""What each level keeps, in widths of the residual stream, for the shapes of Llama 3: weighs the steps down."""
TOKENS_STEP = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryChoice:
    """A policy, why, and the peak that is predicted for it by part (memory.predict)."""

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

    `ram_bytes`: the machine's own free memory, of which half may hold offloaded inputs. A recipe that wants its
    activations recomputed, or not, is obeyed. Raises ValueError for a run that the decoder cannot do.
    """
    shape = _read(plan, model, recipe)
    steps = list(list_policies(shape, plan, model, recipe, ram_bytes))
    calibration = calibration or _calibration(plan)

    def total(policy: MemoryPolicy) -> int:
        return sum(predict_decoder(plan, model, recipe, policy, shape, calibration).values())

    # Each step is at least as fast and needs at least as much as the one before: the last that fits is the fastest.
    place = bisect_right(steps, budget_bytes, key=total) - 1
    policy = steps[max(0, place)]
    parts = predict_decoder(plan, model, recipe, policy, shape, calibration)
    if place < 0:
        reason = text(
            "plan.memory.too_large",
            needed=_gigabytes(sum(parts.values())),
            has=_gigabytes(budget_bytes),
            advice=_advise(recipe, model),
        )
    else:
        reason = _explain(shape, model, recipe, policy, budget_bytes)
    return MemoryChoice(policy=policy, reason=reason, parts=parts, fits=place >= 0)


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

    With the leanest policy where the decoder trains (`plan` has one), else with activations recomputed. What the model
    can read is no limit here: see ModelFacts.max_positions.
    """
    model = dataclasses.replace(model, max_positions=0)
    if recipe.limits.activation_checkpointing != "off":
        plan = dataclasses.replace(plan, checkpointing=dataclasses.replace(plan.checkpointing, value=True))

    def needed(tokens: int) -> int:
        one = change_recipe(recipe, {"data.max_length": tokens, "optim.micro_batch": 1})
        shape = read_decoder(plan, model, one)
        policy = None
        if plan.memory is not None and shape is not None:
            policy = next(list_policies(shape, plan, model, one, ram_bytes))
        return sum(predict(plan, model, one, policy, calibration=calibration).values())

    most = 1
    while needed(2 * most * TOKENS_STEP) <= budget_bytes and most < 2**20:
        most *= 2
    return TOKENS_STEP * (
        bisect_right(range(2 * most), budget_bytes, lo=1, key=lambda count: needed(count * TOKENS_STEP)) - 1
    )


def list_policies(
    shape: DecoderShape, plan: BackendPlan, model: ModelFacts, recipe: Recipe, ram_bytes: int
) -> Iterator[MemoryPolicy]:
    """Yield policies from the leanest to the fastest; each needs at least as much memory as the one before.

    First come the ways to do with less than every layer's input: small portions of the loss head, of the MLP, and
    inputs of the first layers in the machine's own memory. Then every layer keeps its input, and more is kept step by
    step (_order_steps). Last, 4-bit weights stay opened.
    """
    tokens, wanted = count_tokens(model, recipe), recipe.limits.activation_checkpointing
    whole = (LayerPolicy(keep="all"),) * shape.layers
    if wanted != "off":
        yield from _lean_policies(shape, tokens, ram_bytes)
        layers = [LayerPolicy(keep="input")] * shape.layers
        if wanted == "on":
            yield MemoryPolicy(layers=tuple(layers))
            return
        for layer, keep in [(0, "input"), *_order_steps(shape, longest(model, recipe))]:
            layers[layer] = LayerPolicy(keep=keep)
            yield MemoryPolicy(layers=tuple(layers))
    else:
        yield MemoryPolicy(layers=whole)
    if plan.quantization.value == "nf4":
        for count in range(1, shape.layers + 1):
            yield MemoryPolicy(layers=whole, cached_layers=count)


def _lean_policies(shape: DecoderShape, tokens: int, ram_bytes: int) -> Iterator[MemoryPolicy]:
    input_bytes = tokens * shape.element_bytes * shape.hidden
    most = min(shape.layers, int(PINNED_SHARE * ram_bytes) // max(1, input_bytes))

    def offload(count: int) -> tuple[LayerPolicy, ...]:
        first = LayerPolicy(keep="input", offload=True)
        return (first,) * count + (LayerPolicy(keep="input"),) * (shape.layers - count)

    chunks = [
        LEAST_CHUNK_TOKENS << power for power in range(32) if LEAST_CHUNK_TOKENS << power < max(tokens, 2)
    ]
    leanest_chunk = chunks[0] if chunks else 0
    for rows, columns in reversed(HEAD_PORTIONS):
        yield MemoryPolicy(
            layers=offload(most), mlp_chunk_tokens=leanest_chunk, head_rows=rows, head_columns=columns
        )
    for chunk in chunks:
        yield MemoryPolicy(layers=offload(most), mlp_chunk_tokens=chunk)
    # The last layers' inputs stay on the card as long as possible: the backward pass wants them first.
    for count in range(most, 0, -1):
        yield MemoryPolicy(layers=offload(count))


def _order_steps(shape: DecoderShape, document_tokens: int) -> list[tuple[int, Keep]]:
    """Return (layer, level) in the order in which keeping more pays: by the work that a byte saves, then from the last.

    Every matrix product's result saves H FLOPs a byte, attention's S / 2 and more: it comes first in long documents.
    Within a layer a step that pays less than the one after it is taken together with that one. The last layers come
    first because what they keep is given back first: the peak lasts shortest, and by the time that layers with much to
    compute again need room for it, much is free.
    """
    order: list[tuple[float, int, int]] = []
    for layer in range(shape.layers):
        works = _repeated_work(shape, layer, document_tokens)
        sizes = [kept_bytes(shape, keep) for keep in KEEP_LEVELS]
        level = 0
        while level < len(KEEP_LEVELS) - 1:
            gains = [
                (works[level] - works[top]) / (sizes[top] - sizes[level])
                for top in range(level + 1, len(KEEP_LEVELS))
            ]
            # The steps up to the best of the levels above; the highest of equals.
            best = max(range(len(gains)), key=lambda i: (gains[i], i))
            order += [(-gains[best], -layer, above) for above in range(level + 1, level + best + 2)]
            level += best + 1
    return [(-layer, KEEP_LEVELS[level]) for _, layer, level in sorted(order)]


def _repeated_work(shape: DecoderShape, layer: int, document_tokens: int) -> tuple[float, ...]:
    """Return what each level leaves to be computed again, FLOPs a token."""
    window, groups = shape.windows[layer], shape.groups
    seen = document_tokens / 2
    if 0 < window < document_tokens:
        seen = window - window**2 / (2 * document_tokens)
    attention = ATTENTION_SLOWNESS * 4 * shape.queries * seen
    output, qkv, gate_up = (
        2 * groups[name].inputs * groups[name].outputs for name in ("output", "qkv", "gate_up")
    )
    return attention + output + qkv + gate_up, qkv + gate_up, gate_up, 0.0


def repeated_share(shape: DecoderShape, policy: MemoryPolicy, document_tokens: int) -> float:
    """Return the work that `policy` does twice as a share of a micro-step that does nothing twice.

    Such a step takes two matrix products for each of the frozen weights (forward, and the gradient of its input), and
    attention's backward pass two and a half times what its forward takes.
    """
    repeated = total = 0.0
    for number, layer in enumerate(policy.layers):
        works = _repeated_work(shape, number, document_tokens)
        repeated += works[KEEP_LEVELS.index(layer.keep)]
        down = 2 * shape.groups["down"].inputs * shape.groups["down"].outputs
        output = 2 * shape.groups["output"].inputs * shape.groups["output"].outputs
        attention = works[0] - works[1] - output
        total += 2 * (works[0] + down) + 1.5 * attention
    return repeated / (total + 4 * shape.hidden * shape.vocabulary)


def step_down(
    policy: MemoryPolicy, tokens: int = 0, most_offloaded: int | None = None
) -> MemoryPolicy | None:
    """Return the next cheaper policy, None when there is none: taken when memory ran out in spite of the prediction.

    Opened weights go first; then what the first layers keep, a fifth of all at a time; then inputs wait in the
    machine's own memory (of `most_offloaded` layers at most, None: all); then MLP and loss head go in portions.
    `tokens`: those of the micro-batch, where known. Results stay the same.
    """
    if policy.cached_layers:
        return dataclasses.replace(policy, cached_layers=0)
    if any(layer.keep != "input" for layer in policy.layers):
        return dataclasses.replace(policy, layers=_lower(policy.layers))
    count = len(policy.layers) if most_offloaded is None else min(most_offloaded, len(policy.layers))
    if sum(layer.offload for layer in policy.layers) < count:
        away = (LayerPolicy(keep="input", offload=True),) * count
        return dataclasses.replace(policy, layers=away + policy.layers[count:])
    chunk = _halve(policy.mlp_chunk_tokens or tokens or 16 * LEAST_CHUNK_TOKENS)
    if chunk >= LEAST_CHUNK_TOKENS:
        return dataclasses.replace(policy, mlp_chunk_tokens=chunk)
    for rows, columns in HEAD_PORTIONS:
        if (policy.head_rows or math.inf) > rows:
            return dataclasses.replace(policy, head_rows=rows, head_columns=columns)
    return None


def _lower(layers: tuple[LayerPolicy, ...]) -> tuple[LayerPolicy, ...]:
    """Take layers one level down, of the highest level first and there the first layer first."""
    lowered = list(layers)
    kept = sum(KEPT_WIDTHS[layer.keep] for layer in layers)
    target = (1 - STEP_DOWN_SHARE) * kept
    # What a last layer or two still keep is not worth a step of its own.
    while kept > target or kept < REST_SHARE * len(layers):
        level = max(KEEP_LEVELS.index(layer.keep) for layer in lowered)
        if not level:
            break
        place = next(i for i, layer in enumerate(lowered) if layer.keep == KEEP_LEVELS[level])
        lowered[place] = LayerPolicy(keep=KEEP_LEVELS[level - 1])
        kept -= KEPT_WIDTHS[KEEP_LEVELS[level]] - KEPT_WIDTHS[KEEP_LEVELS[level - 1]]
    return tuple(lowered)


def _halve(tokens: int) -> int:
    """Return the largest power of two below `tokens`."""
    return 1 << ((tokens - 1).bit_length() - 1) if tokens > 1 else 0


def _explain(
    shape: DecoderShape, model: ModelFacts, recipe: Recipe, policy: MemoryPolicy, budget_bytes: int
) -> Text:
    repeated = [layer for layer in policy.layers if layer.keep != "all"]
    offloaded = sum(layer.offload for layer in policy.layers)
    if not repeated:
        id = "plan.memory.opened" if policy.cached_layers else "plan.memory.all"
        return text(id, layers=policy.cached_layers)
    share = repeated_share(shape, policy, longest(model, recipe))
    values = {"layers": len(repeated), "total": shape.layers, "percent": max(1, round(100 * share))}
    values |= {"has": _gigabytes(budget_bytes), "offloaded": offloaded}
    if policy.mlp_chunk_tokens or policy.head_rows:
        return text("plan.memory.portions_offload" if offloaded else "plan.memory.portions", **values)
    return text("plan.memory.offload" if offloaded else "plan.memory.some", **values)


def _advise(recipe: Recipe, model: ModelFacts) -> Text:
    """Return what makes the run fit at the least cost."""
    if recipe.optim.micro_batch > 1:
        return text("check.memory.micro_batch")
    if recipe.model.quantization != "nf4" and model.quantization == "none":
        return text("check.memory.nf4")
    if longest(model, recipe) > 512:
        return text("check.memory.max_length")
    return text("check.memory.smaller_model")


def _read(plan: BackendPlan, model: ModelFacts, recipe: Recipe) -> DecoderShape:
    shape = read_decoder(plan, model, recipe)
    if shape is None:
        raise ValueError("The model's own forward trains here: it has no policy.")
    return shape


def _calibration(plan: BackendPlan) -> Calibration:
    return CALIBRATIONS["cuda" if str(plan.device.value).startswith("cuda") else "cpu"]


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"
