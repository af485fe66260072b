"""Before step 1: two micro-steps of made-up tokens show what the card takes beyond arithmetic on shapes.

What torch holds is more than what it hands out, and the driver holds some, too: both hang on the card, on torch and on
its settings. Two sizes tell them apart (planning/memory_estimate.py, fit_calibration), and what is kept is planned anew
with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import ERRORS

from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.i18n import Text, text
from studio.core.memory_policy import Calibration, LayerPolicy, MemoryPolicy
from studio.core.recipe import Recipe, change_recipe
from studio.engine.decoder_step import DecoderStep
from studio.engine.oom_fallback import is_out_of_memory, let_go, release_memory
from studio.engine.trainer import Trainer, read_generators, write_generators
from studio.models.decoder.decoder import Decoder
from studio.planning.decoder_shape import DecoderShape, count_sequences, longest_document, read_decoder
from studio.planning.memory_estimate import (
    CALIBRATIONS,
    count_allocated,
    count_rows,
    count_tokens,
    fit_calibration,
    is_recorded,
    predict_decoder,
)
from studio.planning.memory_planner import MemoryChoice, choose_policy
from studio.planning.run_plan import choose_device, memory_budget

TRY_OPERATIONS = 1e14
"""The larger micro-step takes at most as many: 0.2 s on an H200, 0.8 on a 4090; 2,300 tokens of an 8B model."""
MOST_BESIDE_BYTES = 2**30
"""What driver and libraries hold beside torch, 0.4 to 0.85 GiB; more belongs to other programs and will not stay."""
LENGTH_STEP = 128
"""Made-up documents are of such multiples, halves of them of half of that."""
NOTHING_LOST = Calibration(context_bytes=0, fragmentation=1.0)


class MemoryMeter(Protocol):
    """Tells how much of a card is taken."""

    def begin(self) -> None:
        """Give back what is not used, and count from here."""

    def read_peak(self) -> int:
        """Return the most bytes that were taken since begin(), as the driver counts them."""


class CardMeter:
    """The memory of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self) -> None:
        """See MemoryMeter."""
        release_memory()
        torch.cuda.reset_peak_memory_stats(self.device)

    def read_peak(self) -> int:
        """See MemoryMeter."""
        torch.cuda.synchronize(self.device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.device)
        beside_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(self.device)
        return min(beside_bytes, MOST_BESIDE_BYTES) + torch.cuda.max_memory_reserved(self.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """What was measured, and what is kept accordingly."""

    calibration: Calibration
    choice: MemoryChoice
    reason: Text
    """What was measured beside what had been predicted."""


def keep_what_fits(
    trainer: Trainer,
    plan: BackendPlan,
    model: ModelFacts,
    machine: MachineFacts,
    note: Callable[[Calibration], None],
    *,
    cap_bytes: int,
) -> Text | None:
    """Calibrate where it was not done before on this card and torch, `note` it, and keep what fits by it.

    Returns what was measured where that changes what is kept. A resumed run keeps what it began with.
    """
    if machine.fragmentation or trainer.state.step:
        return None
    budget_bytes, ram_bytes = memory_budget(machine, choose_device(machine, trainer.recipe)[1])
    budgets = {"budget_bytes": budget_bytes, "ram_bytes": ram_bytes, "cap_bytes": cap_bytes}
    found = calibrate(trainer, plan, model, **budgets)
    if found is None:
        return None
    note(found.calibration)
    decoder = trainer.step.decoder
    if found.choice.policy == decoder.policy:
        return None
    decoder.follow(found.choice.policy)
    return found.reason


def calibrate(
    trainer: Trainer,
    plan: BackendPlan,
    model: ModelFacts,
    *,
    budget_bytes: int,
    ram_bytes: int,
    cap_bytes: int = 0,
    meter: MemoryMeter | None = None,
) -> Calibrated | None:
    """Take two micro-steps on made-up tokens, and plan what is kept with what they needed; the caller follows it.

    Weights, gradients, the optimizer, random generators and the decoder's policy are left as found.

    Args:
        budget_bytes, ram_bytes: what a run may plan with of the card and of the machine (plan.memory_budget).
        cap_bytes: what torch's allocator may hold at most; 0: no limit.
        meter: None for the GPU that trains.

    Returns:
        None where nothing is to be learned: without a GPU or the studio's decoder, with micro-steps that are recorded
        as graphs (their memory is no concern), or when a step did not come to its end.
    """
    step = trainer.step
    if not isinstance(step, DecoderStep) or (meter is None and step.device.type != "cuda"):
        return None
    # The most tokens of an example are those of all its sequences, a recipe's are those of each.
    longest_tokens = math.ceil(trainer.longest_tokens / count_sequences(trainer.recipe))
    sizes = {
        "optim.micro_batch": trainer.state.micro_batch,
        "data.max_length": min(longest_tokens, trainer.recipe.data.max_length),
    }
    recipe = change_recipe(trainer.recipe, sizes)
    shape, tokens = read_decoder(plan, model, recipe), count_tokens(model, recipe)
    if shape is None or is_recorded(shape, tokens, step.decoder.policy, step.capability):
        return None
    sizes = _choose_sizes(shape, model, recipe)
    if sizes is None:
        return None
    tried = _choose_policy_to_try(step.decoder, plan, model, sizes[1], shape, budget_bytes)
    meter = meter or CardMeter(step.device)
    has_moments = bool(trainer.optimizer.state)
    points = _measure(step, plan, model, sizes, tried, shape, has_moments, meter)
    if points is None:
        return None
    calibration = fit_calibration(points)
    if cap_bytes:
        budget_bytes = min(budget_bytes, cap_bytes + calibration.context_bytes)
    choice = choose_policy(plan, model, recipe, budget_bytes, ram_bytes, calibration=calibration)
    reason = _explain(points[1], choice.policy == step.decoder.policy)
    return Calibrated(calibration=calibration, choice=choice, reason=reason)


def _choose_sizes(shape: DecoderShape, model: ModelFacts, recipe: Recipe) -> tuple[Recipe, Recipe] | None:
    """Return the recipe with micro-batches of T and of 2 T tokens; None where they are too short for that."""
    sequences = count_sequences(recipe)
    most = min(count_tokens(model, recipe), int(TRY_OPERATIONS / (6 * shape.weights_a_token))) // sequences
    length = min(longest_document(model, recipe), most) // LENGTH_STEP * LENGTH_STEP
    if not length:
        return None
    rows = max(1, min(count_rows(recipe), most // length))
    small, large = (
        change_recipe(recipe, {"data.max_length": size, "optim.micro_batch": rows, "optim.batch_size": rows})
        for size in (length // 2, length)
    )
    return small, large


def _choose_policy_to_try(
    decoder: Decoder,
    plan: BackendPlan,
    model: ModelFacts,
    size: Recipe,
    shape: DecoderShape,
    budget_bytes: int,
) -> MemoryPolicy:
    """Return one that keeps all, where there is room: the more the two steps differ, the more they tell."""
    cached = decoder.policy.cached_layers
    whole = MemoryPolicy(layers=(LayerPolicy(),) * shape.layers, cached_layers=cached)
    parts = predict_decoder(plan, model, size, whole, shape, CALIBRATIONS["cuda"])
    return whole if sum(parts.values()) <= budget_bytes else decoder.policy


def _measure(
    step: DecoderStep,
    plan: BackendPlan,
    model: ModelFacts,
    sizes: tuple[Recipe, Recipe],
    policy: MemoryPolicy,
    shape: DecoderShape,
    has_moments: bool,
    meter: MemoryMeter,
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return (predicted, measured) bytes of both sizes; None when memory ran out or a kernel failed."""
    decoder, points, generators = step.decoder, [], read_generators()
    before, gradients = decoder.policy, decoder.store.gradients
    held = gradients.to("cpu", copy=True) if gradients.any() else None
    step.drop_graphs()  # of the first short rows: their memory would count
    try:
        decoder.follow(policy)
        for size in sizes:
            meter.begin()
            _take_step(decoder, size, model.vocabulary)
            points.append((_predict(plan, model, size, policy, shape, has_moments), meter.read_peak()))
    # Whatever ends such a step, the run's own steps know a way on: their kernels have twins, their memory a ladder.
    except (*ERRORS, RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            let_go(error)
        return None
    finally:
        decoder.follow(before)
        gradients.zero_() if held is None else gradients.copy_(held)
        write_generators(generators)
    return points[0], points[1]


def _predict(
    plan: BackendPlan,
    model: ModelFacts,
    size: Recipe,
    policy: MemoryPolicy,
    shape: DecoderShape,
    has_moments: bool,
) -> int:
    """Return what torch is predicted to hand out in such a micro-step; without moments the optimizer comes later."""
    parts = predict_decoder(plan, model, size, policy, shape, NOTHING_LOST)
    # Nothing is recorded here, so the gradients are there once.
    parts["gradients"] = 4 * shape.trained_parameters
    return count_allocated(parts) - (0 if has_moments else parts["optimizer"])


def _take_step(decoder: Decoder, size: Recipe, vocabulary: int) -> None:
    """Take one micro-step of made-up rows, every token of them trained."""
    length, device = size.data.max_length, decoder.device
    rows = size.optim.micro_batch * count_sequences(size)
    draw = np.random.default_rng(0)
    ids = torch.from_numpy(draw.integers(0, vocabulary, length * rows)).to(device)
    picks = torch.arange(length * rows, device=device).view(rows, length)[:, :-1].reshape(-1)
    drops = any(group.dropout for layer in decoder.layers for group in layer.groups)
    seed = torch.zeros((), dtype=torch.int64, device=device) if drops else None
    frame = decoder.make_rows(Documents.of((length,) * rows, device), seed)
    decoder.add_gradients(ids, frame, picks, ids[picks + 1], 1 / len(picks))


def _explain(point: tuple[int, int], same: bool) -> Text:
    predicted, measured = point
    usual = CALIBRATIONS["cuda"]
    expected = usual.context_bytes + usual.fragmentation * predicted
    sizes = {"measured": f"{measured / 2**30:.1f}", "predicted": f"{expected / 2**30:.1f}"}
    return text("plan.memory.confirmed" if same else "plan.memory.measured", **sizes)
