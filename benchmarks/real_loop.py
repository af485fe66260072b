"""The loop that a person would write with transformers and peft, and the scorer that its and the studio's results meet.

Rows of a step are padded to the longest of those that go at once, shorter ones beside each other; forward with labels
under autocast, AdamW, gradients clipped. How many go at once is tried before: the fastest that fits trains.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from studio.core.recipe import OptimSpec
from studio.data.sequence_packing import Example
from studio.engine.batches import StepOrder
from studio.engine.learning_rate import learning_rate
from studio.models.load import set_evaluation

WARMUP_STEPS = 5
"""Not counted in the speed of a training: the allocator grows, libraries choose their kernels."""
TRY_STEPS, TRY_WARMUP_STEPS = 4, 2
RANK, ALPHA = 16, 32
"""The studio's defaults."""
MIB = 2**20
IGNORED = -100
SCORED_TOKENS = 2**13
"""Tokens, padding included, that are scored at once."""


def load_base(folder: Path, way: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the model of `folder`, in NF4 for the way `qlora`."""
    settings: dict[str, Any] = {}
    if way == "qlora":
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="sdpa",
        device_map={"": str(device)},
        local_files_only=True,
        **settings,
    )


def load_trained(folder: Path, way: str, device: torch.device, seed: int) -> Any:
    """Return the model with what is trained: an adapter on frozen 16-bit or NF4 weights, or all weights in fp32."""
    frozen = torch.bfloat16 if device.type == "cuda" else torch.float32  # processors are slow in 16 bits
    model = load_base(folder, way, device, torch.float32 if way == "full" else frozen)
    model.config.use_cache = False
    if way == "full":
        return model.train()
    if way == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    torch.manual_seed(seed)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear"
    )
    return get_peft_model(model, config).train()


def pad(rows: Sequence[Example], device: torch.device) -> dict[str, torch.Tensor]:
    """Return the rows as a batch for model.forward, (B, S) int64 each, padded to the longest."""
    width = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    labels, mask = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
    for place, row in enumerate(rows):
        length = len(row.token_ids)
        ids[place, :length] = torch.from_numpy(row.token_ids).long()
        mask[place, :length] = 1
        labels[place, :length][torch.from_numpy(row.trained)] = ids[place, :length][
            torch.from_numpy(row.trained)
        ]
    return {
        name: tensor.to(device)
        for name, tensor in (("input_ids", ids), ("labels", labels), ("attention_mask", mask))
    }


def count_trained(rows: Sequence[Example]) -> int:
    """Return how many tokens of the rows are predicted with a loss."""
    return sum(int(row.trained[1:].sum()) for row in rows)


class Loop:
    """A model, its optimizer and the steps of one epoch."""

    def __init__(self, model: Any, rows: Sequence[Example], order: StepOrder, spec: OptimSpec) -> None:
        self.model, self.rows, self.order, self.spec = model, rows, order, spec
        self.device = next(model.parameters()).device
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.reset()

    def reset(self) -> None:
        """Begin with an optimizer that knows nothing; the weights stay."""
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.trained if p.ndim >= 2], "weight_decay": self.spec.weight_decay},
                {"params": [p for p in self.trained if p.ndim < 2], "weight_decay": 0.0},
            ],
            betas=(self.spec.beta1, self.spec.beta2),
            eps=self.spec.epsilon,
            fused=self.device.type == "cuda",
        )

    def draw(self, step: int) -> list[Example]:
        """Return the rows of a step, longest first."""
        rows = [self.rows[i] for i in self.order.indices(step)]
        return sorted(rows, key=lambda row: len(row.token_ids), reverse=True)

    def take(self, step: int, at_once: int, rate: float) -> float:
        """Take a step with `at_once` rows at once and return its loss; waits for the device."""
        rows = self.draw(step)
        trained = count_trained(rows)
        total = torch.zeros((), device=self.device)
        for start in range(0, len(rows), at_once):
            batch = pad(rows[start : start + at_once], self.device)
            with autocast(self.device):
                loss = self.model(**batch, num_items_in_batch=trained).loss
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.trained, self.spec.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(total)

    def try_out(self, at_once: int) -> float:
        """Return the tokens/s of the first steps with a learning rate of 0; 0 where memory does not suffice."""
        try:
            for step in range(TRY_WARMUP_STEPS):
                self.take(step, at_once, 0.0)
            begun_s = time.perf_counter()
            steps = range(TRY_WARMUP_STEPS, TRY_WARMUP_STEPS + TRY_STEPS)
            for step in steps:
                self.take(step, at_once, 0.0)
            took_s = time.perf_counter() - begun_s
        except torch.OutOfMemoryError:
            return 0.0
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self.reset()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return sum(count_tokens(self.draw(step)) for step in steps) / took_s


def count_tokens(rows: Sequence[Example]) -> int:
    """Return the tokens of the rows, without padding."""
    return sum(len(row.token_ids) for row in rows)


def autocast(device: torch.device) -> Any:
    """Return bfloat16 on a card; a processor is tried in fp32, where it is as fast."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device.type == "cuda" else nullcontext()


def train_plain(
    folder: Path,
    rows: Sequence[Example],
    way: str,
    spec: OptimSpec,
    target: Path,
    *,
    rows_a_step: int,
    at_once: Sequence[int],
    steps: int,
    seed: int,
    device: torch.device,
    until_s: Callable[[], float],
) -> dict[str, Any]:
    """Train by the plain loop, save the result in `target` and return what was measured.

    `steps` 0: one epoch. `until_s()`: seconds that are left; where they end the training ends, and its steps are told.
    """
    started_s = time.perf_counter()
    model = load_trained(folder, way, device, seed)
    order = StepOrder(len(rows), rows_a_step, seed)
    total = steps or order.steps_per_epoch
    loop = Loop(model, rows, order, spec)
    loaded_s = time.perf_counter() - started_s
    tried = {size: loop.try_out(size) for size in at_once if size <= rows_a_step}
    best = max(tried, key=tried.__getitem__)
    if not tried[best]:
        raise RuntimeError("memory suffices for none of the batches that were tried")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses, warm_s, begun_s = [], 0.0, time.perf_counter()
    for step in range(total):
        if until_s() <= 0:
            break
        losses.append(loop.take(step, best, learning_rate(spec, step, total)))
        if step + 1 == min(WARMUP_STEPS, total - 1):
            warm_s = time.perf_counter()
    ended_s = time.perf_counter()
    warm = min(WARMUP_STEPS, total - 1)
    tokens = sum(count_tokens(loop.draw(step)) for step in range(warm, len(losses)))
    model.save_pretrained(target)
    return {
        "batch": best,
        "tried": " ".join(f"{size}={rate:.0f}" for size, rate in tried.items()),
        "steps": len(losses),
        "tokens_per_s": round(tokens / (ended_s - warm_s)) if warm_s else 0,
        "train_s": round(ended_s - begun_s, 1),
        "load_s": round(loaded_s, 1),
        "loss_first": round(losses[0], 4),
        "loss_last": round(losses[-1], 4),
        "peak_mib": torch.cuda.max_memory_allocated() // MIB if device.type == "cuda" else 0,
    }


@torch.no_grad()
def score(model: Any, rows: Sequence[Example]) -> float:
    """Return the mean loss of `model` over the trained tokens of all rows; the softmax in fp32."""
    device = next(model.parameters()).device
    ordered = sorted(rows, key=lambda row: len(row.token_ids))
    total, start = 0.0, 0
    while start < len(ordered):
        end = start + 1
        while end < len(ordered) and (end + 1 - start) * len(ordered[end].token_ids) <= SCORED_TOKENS:
            end += 1
        batch = pad(ordered[start:end], device)
        labels = batch.pop("labels")[:, 1:]
        logits = model(**batch, use_cache=False).logits[:, :-1]
        picked = labels != IGNORED
        total += float(cross_entropy(logits[picked].float(), labels[picked], reduction="sum"))
        start = end
    return total / count_trained(ordered)


def score_result(
    base: Path, result: Path | None, way: str, rows: Sequence[Example], device: torch.device, dtype: str
) -> float:
    """Return the held-out loss of a result: an adapter on its base (on NF4 for `qlora`), or a whole model's folder.

    `result` None: of the base itself.
    """
    numbers = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    whole = result is not None and (result / "config.json").is_file()
    model = load_base(result if whole else base, "lora" if whole else way, device, numbers)
    if result is not None and not whole:
        model = PeftModel.from_pretrained(model, result, local_files_only=True)
    set_evaluation(model)
    return score(model, rows)
