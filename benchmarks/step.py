"""The studio's own training step in a bare loop: what the engine does from one optimizer step to the next."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import OPS, bind, importable

from benchmarks.batches import Batch
from benchmarks.draft import draft_run
from benchmarks.peers import (
    ALPHA,
    DTYPES,
    LEARNING_RATE,
    RANK,
    WEIGHT_DECAY,
    Step,
    autocast,
    draw_adapters,
    gradient_norm,
)
from studio.core.facts import ModelFacts
from studio.core.policy import MemoryPolicy
from studio.core.recipe import AdapterSpec, OptimSpec
from studio.core.text import Text
from studio.data.pack import Example
from studio.engine.batches import collate, count_trained
from studio.engine.methods import get_method
from studio.engine.optimizer import build_optimizer
from studio.host.memory import Calibration
from studio.host.memory_planner import choose_policy
from studio.host.plan import USABLE_VRAM
from studio.models.adapt import adapt, cast_by_autocast, unwrap
from studio.models.catalog import inspect_model
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.graph import GraphedDecoder
from studio.models.decoder.probe import find_difference
from studio.models.fuse import fuse
from studio.models.load import AUTOCAST_DTYPES, load_model

GRAPHED_TOKENS = 2048
"""Micro-batches up to this size wait for launches rather than for the arithmetic, so they are recorded."""
ALLOCATED_ONLY = Calibration(context_bytes=0, fragmentation=1.0)
"""A budget of what torch's allocator hands out: nothing for the context, nothing lost between blocks."""


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
    graph: bool | None = None,
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
        graph: whether micro-steps are recorded and played; None: where they are small.
        stock: train by the model's own forward, as where the studio's decoder does not match.

    Raises:
        NotImplementedError: `fp8`.
    """
    if fp8:
        raise NotImplementedError("there are no 8-bit products yet")
    device = torch.device(device)
    facts = inspect_model(str(folder))
    if policy is None and not stock:
        policy = plan_policy(facts, bits, batch, tokens, budget_bytes, dtype, optimizer, device)
    loaded = load_model(facts, device=str(device), dtype=dtype, quantization="nf4" if bits == 4 else "none")
    loaded.model.config.use_cache = False
    model = adapt(loaded.model, AdapterSpec(rank=RANK, alpha=ALPHA))
    draw_adapters(model)
    kernels = bind(choose_kernels(device, turing))
    decoder = None if stock else prove(unwrap(model), kernels, dtype, policy)
    if decoder is None:
        return stock_step(model, dtype, optimizer, policy, bool(budget_bytes), device)
    small = batch * tokens <= GRAPHED_TOKENS and device.type == "cuda"
    return decoder_step(model, decoder, dtype, optimizer, small if graph is None else graph)


def plan_policy(
    facts: ModelFacts,
    bits: int,
    batch: int,
    tokens: int,
    budget_bytes: int,
    dtype: str,
    optimizer: str,
    device: torch.device,
) -> MemoryPolicy:
    """Return what the planner keeps within the budget, or within what the card has free."""
    plan, recipe = draft_run(
        facts, bits=bits, batch=batch, tokens=tokens, device=str(device), dtype=dtype, optimizer=optimizer,
        triton=importable().ok,
    )  # fmt: skip
    facts = dataclasses.replace(facts, max_positions=0)  # a benchmark may go beyond them
    ram_bytes, calibration = psutil.virtual_memory().available, ALLOCATED_ONLY
    if not budget_bytes:
        free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else ram_bytes
        budget_bytes, calibration = int(USABLE_VRAM * free_bytes), None
    return choose_policy(plan, facts, recipe, budget_bytes, ram_bytes, calibration=calibration).policy


def choose_kernels(device: torch.device, turing: bool) -> dict[str, str]:
    """Return which ops run by Triton: all on a card with it, none elsewhere; on Turing those without products."""
    if device.type != "cuda" or not importable().ok:
        return {}
    return {op.name: "triton" for op in OPS if not (turing and op.needs_dots)}


def prove(model: Any, kernels: Any, dtype: str, policy: MemoryPolicy | None) -> Decoder | None:
    """Return the studio's decoder once it has agreed with the model; None, saying why, where it cannot train it."""
    decoder = take_over(model, kernels, dtype=DTYPES[dtype], policy=policy)
    if isinstance(decoder, Text):
        print(f"stock forward: {decoder}", file=sys.stderr)
        return None
    difference = find_difference(model, decoder, AUTOCAST_DTYPES.get(dtype))
    if difference is None:
        return decoder
    print(f"stock forward: {difference}", file=sys.stderr)
    decoder.release()
    return None


def decoder_step(model: Any, decoder: Decoder, dtype: str, optimizer: str, graph: bool) -> Step:
    """Return the step of the studio's decoder."""
    device = decoder.device
    adamw = build_adamw(model, optimizer, device)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "fp16" and device.type == "cuda")
    one = torch.ones((), device=device)
    recorded = GraphedDecoder(decoder) if graph and not scaler.is_enabled() else None

    def gradients(rows: Batch) -> torch.Tensor:
        decoder.store.clear_gradients()
        ids, lengths, picks = flatten(rows)
        if recorded is not None:
            loss = recorded.add_gradients(ids, lengths, picks, ids[picks + 1], scale=1 / len(picks))
            return loss / len(picks)
        frame = decoder.make_rows(Documents.of(lengths, device))
        placed = torch.from_numpy(np.concatenate((ids, picks, ids[picks + 1]))).to(device, non_blocking=True)
        token_ids, chosen, targets = placed.split((len(ids), len(picks), len(picks)))
        loss = decoder.add_gradients(token_ids, frame, chosen, targets, scaler.scale(one) / len(picks))
        return loss / len(picks)

    def update() -> None:
        scaler.step(adamw)
        scaler.update()
        decoder.note_change()

    return Step(
        gradients=gradients,
        update=update,
        norm=lambda: float(torch.linalg.vector_norm(decoder.store.gradients)) / scaler.get_scale(),
        policy=decoder.policy,
    )


def flatten(rows: Batch) -> tuple[np.ndarray, tuple[int, ...], np.ndarray]:
    """Return the tokens without padding, the lengths of the documents, and the places whose next token is trained."""
    ids = rows.ids.cpu().numpy()
    lengths = tuple(chain.from_iterable(rows.lengths))
    flat = np.concatenate([ids[row, : sum(parts)] for row, parts in enumerate(rows.lengths)])
    ends = np.array(list(accumulate(lengths)), dtype=np.int64) - 1
    return flat, lengths, np.setdiff1d(np.arange(len(flat), dtype=np.int64), ends, assume_unique=True)


def stock_step(
    model: Any,
    dtype: str,
    optimizer: str,
    policy: MemoryPolicy | None,
    tight: bool,
    device: torch.device,
) -> Step:
    """Return the step by the model's own forward, with fast leaves; it keeps everything or each layer's input."""
    kept = {layer.keep for layer in policy.layers} if policy else {"input" if tight else "all"}
    if kept != {"all"}:
        unwrap(model).gradient_checkpointing_enable({"use_reentrant": False})
    if device.type == "cuda":
        fuse(unwrap(model), dict.fromkeys(("rms_norm", "glu"), "triton"), autocast=AUTOCAST_DTYPES.get(dtype))
    loss = get_method("sft").build_loss(unwrap(model))
    adamw = build_adamw(model, optimizer, device)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == "fp16" and device.type == "cuda")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.train()
    exits = ExitStack()
    exits.enter_context(cast_by_autocast(model, dtype != "fp32"))

    def gradients(rows: Batch) -> torch.Tensor:
        examples = make_examples(rows)
        data = collate(examples, 0, device, multiple=1)
        with autocast(dtype, device):
            mean = loss.sum_loss(data) / sum(map(count_trained, examples))
        scaler.scale(mean).backward()
        return mean.detach()

    def update() -> None:
        scaler.step(adamw)
        scaler.update()
        adamw.zero_grad(set_to_none=True)

    return Step(
        gradients=gradients,
        update=update,
        norm=lambda: gradient_norm(trained) / scaler.get_scale(),
        close=exits.close,
    )


def build_adamw(model: Any, optimizer: str, device: torch.device) -> torch.optim.Optimizer:
    """Return the engine's optimizer with the settings of the other stacks."""
    spec = OptimSpec(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    return build_optimizer(model, spec, optimizer, device)


def make_examples(rows: Batch) -> Sequence[Example]:
    """Return the rows as the engine's examples, every token of them trained."""
    ids = rows.ids.cpu().numpy().astype(np.int32)
    return [
        Example(ids[row, : sum(lengths)], np.ones(sum(lengths), dtype=bool), lengths)
        for row, lengths in enumerate(rows.lengths)
    ]
