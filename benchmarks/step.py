"""The studio's own training step in a bare loop: the product's parts, and around them nothing but the loop."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from studio_kernels.dispatch import importable

import studio.engine.train_step as engine_step
from benchmarks.batches import Batch
from benchmarks.draft import draft_run
from benchmarks.peers import ALPHA, LEARNING_RATE, RANK, WEIGHT_DECAY, Step, draw_adapters, gradient_norm
from studio.core.facts import BackendPlan, ModelFacts
from studio.core.i18n import load_catalogue
from studio.core.memory_policy import Calibration, MemoryPolicy
from studio.core.recipe import OptimSpec, Recipe
from studio.data.sequence_packing import Example, count_trained
from studio.engine.batches import RowSizes
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives.sft import SFT
from studio.engine.optimizer import apply_gradients, build_optimizer
from studio.models.adapt import adapt, cast_by_autocast, unwrap
from studio.models.catalog import inspect_model
from studio.models.load import AUTOCAST_DTYPES, DTYPES, load_model
from studio.models.optimize_model import Fast, make_fast
from studio.models.resolve import open_packed
from studio.planning.backend_choice import NEEDS_DOTS
from studio.planning.decoder_shape import read_decoder
from studio.planning.memory_estimate import count_allocated, predict
from studio.planning.memory_planner import choose_policy
from studio.planning.run_plan import USABLE_VRAM

ALLOCATED_ONLY = Calibration(context_bytes=0, fragmentation=1.0)
"""A budget of what torch's allocator hands out: nothing for the context, nothing lost between blocks."""
RUN_STEPS = 1000
"""Of a run that the steps measured stand for."""
TURING = (7, 5)
"""Compute capability of the oldest cards that the studio knows; Triton has no matrix products for them."""


def build_step(
    folder: Path,
    *,
    bits: int,
    batch: int,
    tokens: int,
    budget_bytes: int = 0,
    policy: MemoryPolicy | None = None,
    dtype: str = "bf16",
    optimizer: str = "adamw_8bit",
    turing: bool = False,
    fp8: bool = False,
    dora: bool = False,
    targets: str = "",
    stock: bool = False,
    device: torch.device | str = "cuda:0",
) -> Step:
    """Load the model in `folder`, attach adapters and return the step that the engine would take.

    Args:
        bits: 4 (NF4) or 16, of the frozen weights.
        batch, tokens: the micro-batches are at most this large.
        budget_bytes: what torch's allocator may hand out at most; 0: as much as the card has.
        policy: what is kept for the backward pass; None: as much as the budget allows.
        turing: with what a card of compute capability 7.5 can do.
        fp8: multiply by frozen weights in 8-bit numbers; not exact.
        dora: train the lengths of weights beside their directions.
        targets: names of the linears with adapters; "": all.
        stock: train by the model's own forward, as where the studio's decoder does not match.

    Raises:
        RuntimeError: `fp8` where it is not to be had.
    """
    device = torch.device(device)
    facts = open_packed(inspect_model(str(folder)))
    plan, recipe = draft_run(
        facts, bits=bits, batch=batch, tokens=tokens, device=str(device), dtype=dtype, optimizer=optimizer,
        triton=importable().ok, fp8=fp8, dora=dora, targets=targets,
    )  # fmt: skip
    if not stock and policy is None:
        policy = plan_policy(plan, recipe, facts, budget_bytes, device)
    loaded = load_model(facts, device=str(device), dtype=dtype, quantization=plan.quantization.value)
    loaded.model.config.use_cache = False
    model = adapt(loaded.model, dataclasses.replace(recipe.adapter, rank=RANK, alpha=ALPHA))
    draw_adapters(model)
    kernels = {op: choice.value for op, choice in plan.kernels.items() if not (turing and NEEDS_DOTS.get(op))}
    fast = make_fast(
        unwrap(model),
        kernels,
        None if stock else policy,
        dtype=DTYPES[dtype],
        autocast=AUTOCAST_DTYPES.get(dtype),
        capability=TURING if turing else None,
        fp8=fp8,
    )
    lines = fast.describe() if fast.refused is None else [*fast.describe(), fast.refused]
    told = [load_catalogue("en").say(line) for line in lines]
    print(*told, sep="\n", file=sys.stderr)
    if fp8 and not fast.fp8:
        raise RuntimeError(f"no products in 8 bits: {told[-1]}")
    if fast.decoder is None and keeps_less(policy, budget_bytes):
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
    step = make_step(model, fast, loaded.tokenizer.pad_token_id, dtype, device)
    loop = put_in_loop(model, fast, step, dtype, optimizer)
    predicted = predict(plan, facts, recipe, loop.policy)
    return dataclasses.replace(loop, predicted_bytes=count_allocated(predicted))


def plan_policy(
    plan: BackendPlan, recipe: Recipe, facts: ModelFacts, budget_bytes: int, device: torch.device
) -> MemoryPolicy | None:
    """Return what the planner keeps within the budget, or within what the card has free; None without a decoder."""
    facts = dataclasses.replace(facts, max_positions=0)  # a benchmark may go beyond them
    if read_decoder(plan, facts, recipe) is None:
        return None
    ram_bytes, calibration = psutil.virtual_memory().available, ALLOCATED_ONLY
    if not budget_bytes:
        free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else ram_bytes
        budget_bytes, calibration = int(USABLE_VRAM * free_bytes), None
    return choose_policy(plan, facts, recipe, budget_bytes, ram_bytes, calibration=calibration).policy


def keeps_less(policy: MemoryPolicy | None, budget_bytes: int) -> bool:
    """Return whether the model's own forward is to keep the layers' inputs only; it knows nothing between."""
    return any(layer.keep != "all" for layer in policy.layers) if policy else bool(budget_bytes)


def make_step(model: Any, fast: Fast, pad_id: int, dtype: str, device: torch.device) -> engine_step.Step:
    """Return the engine's step of the model that `fast` was made of."""
    if fast.decoder is not None:
        return DecoderStep(fast.decoder, objective=SFT, pad_id=pad_id)
    head = LossHead(unwrap(model))
    return engine_step.StockStep(
        model, head.token_losses, objective=SFT, dtype=dtype, device=device, pad_id=pad_id
    )


def put_in_loop(model: Any, fast: Fast, step: engine_step.Step, dtype: str, optimizer: str) -> Step:
    """Return the engine's step with its optimizer, as compare.py takes every stack's."""
    device = step.device
    beside = step.beside, step.beside_undecayed
    trained = [*step.decayed, *step.undecayed, *step.beside, *step.beside_undecayed]
    spec = OptimSpec(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, max_grad_norm=0.0)
    adamw = build_optimizer(step.decayed, step.undecayed, spec, optimizer, device, step.adamw, beside)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "fp16" and device.type == "cuda")
    model.train()
    exits = ExitStack()
    exits.enter_context(cast_by_autocast(model, dtype in AUTOCAST_DTYPES))

    last_loss: list[torch.Tensor] = []
    expected = False

    def gradients(rows: Batch) -> torch.Tensor:
        nonlocal expected
        examples = make_examples(rows)
        if not expected:
            expect_more(step, examples)
            expected = True
        step.clear()
        last_loss[:] = [step.add_gradients(examples, sum(map(count_trained, examples)), scaler.scale)[0]]
        return last_loss[0]

    def update() -> None:
        if scaler.is_enabled():
            scaler.unscale_(adamw)
        apply_gradients(scaler, adamw, last_loss[0])
        scaler.update()

    return Step(
        gradients=gradients,
        update=update,
        norm=lambda: gradient_norm(trained) / scaler.get_scale(),
        close=exits.close,
        policy=fast.decoder and fast.decoder.policy,
    )


def expect_more(step: engine_step.Step, examples: Sequence[Example]) -> None:
    """Tell the step as the trainer does what comes, rows like these: by that it is decided what is recorded."""
    lengths = tuple(sorted((len(one.token_ids) for one in examples), reverse=True))
    documents = tuple(len(one.lengths) for one in examples)
    longest = (max(max(one.lengths) for one in examples),) * len(examples)
    step.expect([RowSizes(lengths, documents, longest)], RUN_STEPS)
    step.cut(examples, len(examples), lengths[0])


def make_examples(rows: Batch) -> Sequence[Example]:
    """Return the rows as the engine's examples, every token of them trained."""
    ids = rows.ids.cpu().numpy().astype(np.int32)
    return [
        Example(ids[row, : sum(lengths)], np.ones(sum(lengths), dtype=bool), lengths)
        for row, lengths in enumerate(rows.lengths)
    ]
