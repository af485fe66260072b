"""Builds the training steps of the other stacks, each through its public door: HF + PEFT, Liger, Unsloth."""

from __future__ import annotations

import json
import math
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.batches import Batch, draw_rows
from benchmarks.cases import Case

RANK = ALPHA = 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED_TARGETS = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
"""Phi-3's."""
EAGER = ("gpt_oss",)
"""Families that transformers does not let use PyTorch's fused attention."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.01
B_SPREAD = 0.01
"""Deviation of the adapters' B, which is not left at zero: the gradients of A could not be compared then."""
DOCUMENTS = 2048
"""Documents given to Unsloth's trainer for packing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One training step in two halves, so that the gradients between them can be compared."""

    gradients: Callable[[Batch], torch.Tensor]
    """Forward and backward; returns the mean loss over the predicted tokens, () without a graph."""
    update: Callable[[], None]
    """The optimizer's step; the gradients are not to be read after it."""
    norm: Callable[[], float]
    """Root of the sum of the squares of the adapters' gradients; nan where they cannot be read."""
    close: Callable[[], None] = lambda: None
    """Lets go of what the step holds."""
    policy: Any = None
    """The studio's: the MemoryPolicy that its decoder follows; None where the model's own forward trains."""
    predicted_bytes: int = 0
    """The studio's: what its planner says that torch's allocator will hand out at most."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Take the whole step and return its loss."""
        loss = self.gradients(batch)
        self.update()
        return loss


def build_peer(case: Case, folder: Path, device: torch.device) -> Step:
    """Return the step of one of the other stacks on the model in `folder`."""
    model = load_unsloth(case, folder)[0] if case.stack == "unsloth" else load_hf(case, folder, device)
    draw_adapters(model)
    return plain_step(model, case, device)


def load_hf(case: Case, folder: Path, device: torch.device) -> Any:
    """Load the model with transformers, adapters by peft; with Liger's kernels for the stack `liger`."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    if case.stack == "liger":
        use_liger(read_config(folder)["model_type"])
    dtype, full = DTYPES[case.dtype], case.checkpointing == "full"
    settings: dict[str, Any] = {}
    if case.bits == 4:
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="eager" if read_config(folder)["model_type"] in EAGER else "sdpa",
        device_map={"": str(device)},
        local_files_only=True,
        **settings,
    )
    if case.bits == 4:
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=full, gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    elif full:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        bias="none",
        target_modules=targets(case, folder),
        task_type="CAUSAL_LM",
        use_dora=case.dora,
    )
    model = get_peft_model(model, config)
    model.config.use_cache = False
    return model.train()


def use_liger(family: str) -> None:
    """Let Liger change the classes of a model family."""
    import liger_kernel.transformers as liger

    {
        "llama": liger.apply_liger_kernel_to_llama,
        "qwen3": liger.apply_liger_kernel_to_qwen3,
        "mistral": liger.apply_liger_kernel_to_mistral,
        "gemma3_text": liger.apply_liger_kernel_to_gemma3_text,
        "phi3": liger.apply_liger_kernel_to_phi3,
    }[family]()


def load_unsloth(case: Case, folder: Path) -> tuple[Any, Any]:
    """Load model and tokenizer with Unsloth, whose own checkpointing is its default."""
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        str(folder),
        max_seq_length=case.tokens,
        load_in_4bit=case.bits == 4,
        dtype=DTYPES[case.dtype],
        local_files_only=True,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0,
        bias="none",
        target_modules=targets(case, folder),
        use_gradient_checkpointing="unsloth" if case.checkpointing == "full" else False,
        random_state=0,
        max_seq_length=case.tokens,
    )
    FastLanguageModel.for_training(model)
    return model, tokenizer


def read_config(folder: Path) -> dict[str, Any]:
    """Return the model's config.json."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def targets(case: Case, folder: Path) -> list[str] | str:
    """Return the names of the linear layers with adapters of the model in `folder`."""
    if case.targets:
        return case.targets.split(",") if "," in case.targets else case.targets
    return FUSED_TARGETS if read_config(folder)["model_type"] == "phi3" else TARGETS


@torch.no_grad()
def draw_adapters(model: torch.nn.Module) -> int:
    """Give every adapter weight a value that hangs on its place alone, so that all stacks start alike.

    Returns how many weights were drawn. Raises ValueError when the model has none.
    """
    drawn = 0
    for name, parameter in model.named_parameters():
        place = re.search(r"layers\.\d+\..*lora_([AB])", name)
        if place is None:
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(place[0].encode()))
        # A as peft draws it: the variance of a uniform distribution between -1 and 1 over the root of the inputs.
        spread = 1 / math.sqrt(3 * parameter.shape[1]) if place[1] == "A" else B_SPREAD
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
        drawn += parameter.numel()
    if not drawn:
        raise ValueError("the model has no adapters")
    return drawn


def plain_step(model: Any, case: Case, device: torch.device) -> Step:
    """Return the usual loop: forward with labels under autocast, backward, the case's AdamW."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = build_adamw(parameters, case.optimizer, device)
    scaler = torch.amp.GradScaler(device.type, enabled=case.dtype == "fp16" and device.type == "cuda")

    def gradients(batch: Batch) -> torch.Tensor:
        inputs: dict[str, torch.Tensor] = {"input_ids": batch.ids, "labels": batch.ids}
        if not batch.full:
            inputs |= {"labels": batch.labels(), "attention_mask": batch.mask()}
        with autocast(case.dtype, device):
            loss = model(**inputs).loss
        scaler.scale(loss).backward()
        return loss.detach()

    def update() -> None:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return Step(
        gradients=gradients, update=update, norm=lambda: gradient_norm(parameters) / scaler.get_scale()
    )


def build_adamw(
    parameters: list[torch.nn.Parameter], name: str, device: torch.device
) -> torch.optim.Optimizer:
    """Return bitsandbytes' 8-bit AdamW, or for `adamw` PyTorch's fused one."""
    settings = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    if name == "adamw":
        return torch.optim.AdamW(parameters, fused=device.type == "cuda", **settings)
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(parameters, **settings)


def autocast(dtype: str, device: torch.device) -> Any:
    """Return the autocast of a case; fp32 has none."""
    return nullcontext() if dtype == "fp32" else torch.autocast(device.type, dtype=DTYPES[dtype])


def gradient_norm(parameters: list[torch.nn.Parameter]) -> float:
    """Return the norm of all gradients together."""
    norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in parameters if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """The steps of a trainer that takes them by itself."""

    times_s: list[float]
    tokens: list[int]
    """Of each step, without padding."""
    losses: list[float]


def train_packed(case: Case, folder: Path, vocabulary: int, steps: int, tell: Callable[[], None]) -> Recorded:
    """Take `steps` steps with Unsloth's SFTTrainer, which packs documents of real lengths by itself.

    `tell` is called when the first one is done. Its step includes the trainer's own work: the next rows, the schedule,
    the norm of the gradients and the log.
    """
    model, tokenizer = load_unsloth(case, folder)
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    draw_adapters(model)
    arguments = SFTConfig(
        output_dir="out",
        packing=True,
        max_length=case.tokens,
        per_device_train_batch_size=case.batch,
        gradient_accumulation_steps=1,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        optim="adamw_8bit",
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        dataset_num_proc=1,
        seed=0,
    )
    rows = Dataset.from_dict({"input_ids": list(draw_documents(case, vocabulary))})
    trainer = SFTTrainer(model=model, processing_class=tokenizer, train_dataset=rows, args=arguments)
    tokens: list[int] = []
    times_s: list[float] = []
    losses: list[float] = []
    collate, pad = trainer.data_collator, tokenizer.pad_token_id

    def count(examples: list[Any]) -> Any:
        batch = collate(examples)
        tokens.append(int((batch["input_ids"] != pad).sum()))
        return batch

    class Clock(TrainerCallback):
        """Times each step between two synchronisations."""

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.started_s = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            times_s.append(time.perf_counter() - self.started_s)
            if len(times_s) == 1:
                tell()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    trainer.data_collator = count
    trainer.add_callback(Clock())
    trainer.train()
    return Recorded(times_s=times_s, tokens=tokens[: len(times_s)], losses=losses)


def draw_documents(case: Case, vocabulary: int) -> Iterator[list[int]]:
    """Yield the token ids of DOCUMENTS documents of the same lengths as draw_batches() packs."""
    generator = torch.Generator().manual_seed(0)
    rows = draw_rows(case)
    given = 0
    while given < DOCUMENTS:
        for length in next(rows):
            yield torch.randint(3, min(128_000, vocabulary), (length,), generator=generator).tolist()
            given += 1
