"""Puts together what a run trains: the loaded model with its adapter, made fast, and the step that computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from studio.core.events import RunEvent, Warned
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import Text
from studio.core.recipe import Recipe
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives.objective import Objective
from studio.engine.objectives.reward import REWARD
from studio.engine.rng_state import seed_all
from studio.engine.stop_tokens import set_ends
from studio.engine.train_step import Step, StockStep
from studio.models.adapt import adapt, note_beside, note_parts, unwrap
from studio.models.decoder.probe_states import sample_ids
from studio.models.load import AUTOCAST_DTYPES, DTYPES, Loaded, load_model
from studio.models.new_tokens import make_room
from studio.models.optimize_model import Fast, make_fast
from studio.models.score_head import ScoreHead, add_score, free_score
from studio.models.weights import Weights

if TYPE_CHECKING:
    from studio.models.mixed_base import BaseWish


def load_fast(
    recipe: Recipe,
    facts: ModelFacts,
    plan: BackendPlan,
    tokenizer: Any = None,
    weights: Weights | None = None,
    proved: Callable[[], bool] = lambda: False,
    base: BaseWish | None = None,
    stay: Text | None = None,
) -> tuple[Loaded, Fast]:
    """Load, attach what is trained, and make it as fast as the plan says.

    `tokenizer`: where it is loaded already. `weights`: as in load_model. `proved`: as in make_fast. `base`: what a
    `mixed` base is to be; without it such a one is plain NF4. `stay`: why the model's own code is to compute
    the steps, whether or not the decoder can.
    """
    seed_all(recipe.seed)
    if plan.device.value.startswith("cuda"):
        torch.cuda.init()
    full = recipe.adapter.method == "full"
    loaded = load_model(
        facts,
        device=plan.device.value,
        # Full fine-tuning keeps fp32 master weights: 16-bit ones lose corrections below 1/256 of a weight.
        dtype="fp32" if full else plan.dtype.value,
        quantization=plan.quantization.value,
        attention=plan.attention.value,
        tokenizer=tokenizer,
        weights=weights,
        rope=plan.rope.value,
    )
    held: tuple[Text, ...] = ()
    if base is not None and plan.quantization.value == "mixed":
        from studio.models.mixed_base import describe_base, settle_base  # imports bitsandbytes

        held = (describe_base(settle_base(loaded.model, facts.folder, DTYPES[plan.dtype.value], base)),)
    if plan.device.value.startswith("cuda"):
        # Neither what an earlier run needed counts, nor what was read ahead of its turn.
        torch.cuda.reset_peak_memory_stats(plan.device.value)
    loaded.model.config.use_cache = False
    set_ends(loaded.model, loaded.tokenizer)
    notes = note_parts(loaded.model, recipe.adapter, recipe.model.adapter)
    tokens = make_room(loaded.model, facts, recipe.adapter)
    model = adapt(loaded.model, recipe.adapter, recipe.model.adapter, tokens)
    notes = (*held, *notes, *note_beside(model, recipe.optim.modules_rate))
    if recipe.objective == REWARD.name:
        # After the adapter, which would take the score for one of the model's linears.
        add_score(unwrap(model))
        free_score(model)
    fast = make_fast(
        unwrap(model),
        {op: choice.value for op, choice in plan.kernels.items()},
        None if stay else plan.memory,
        dtype=DTYPES[plan.dtype.value],
        autocast=AUTOCAST_DTYPES.get(plan.dtype.value),
        fp8=plan.fp8.value,
        texts=sample_ids(loaded.tokenizer),
        proved=proved,
    )
    if stay is not None and plan.memory is not None:
        fast.refused = stay
    if fast.decoder is None and plan.checkpointing.value:
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
    return Loaded(model, loaded.tokenizer, notes), fast


def make_step(
    loaded: Loaded,
    plan: BackendPlan,
    objective: Objective,
    fast: Fast,
    emit: Callable[[RunEvent], None],
    *,
    packing: bool = True,
) -> Step:
    """Return how micro-batches of the loaded model are computed for `objective`."""
    pad_id = loaded.tokenizer.pad_token_id
    if fast.decoder is not None:
        return DecoderStep(
            fast.decoder,
            objective=objective,
            pad_id=pad_id,
            packing=packing,
            shares_prompts=bool(plan.shared_prompts.value),
        )
    model = unwrap(loaded.model)
    head = ScoreHead(model) if objective.scores else LossHead(model, objective.temperature)
    if isinstance(head, LossHead) and head.note:
        emit(Warned(message=head.note))
    device, dtype = torch.device(plan.device.value), plan.dtype.value
    return StockStep(
        loaded.model, head.token_losses, objective=objective, dtype=dtype, device=device, pad_id=pad_id
    )
