"""Trains what a run of Finetune Studio trained, with TRL and PEFT alone: the same rows in the same order."""

# %% The same start, the same rows in the same order, with TRL and PEFT alone.
import json
import math
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

HERE = Path(globals().get("__file__", "train.ipynb")).resolve().parent
SETTINGS = json.loads((HERE / "settings.json").read_text(encoding="utf-8"))


# %% The rows: token ids, and labels that are -100 where nothing is learned.
def read_rows(name):
    with (HERE / name).open(encoding="utf-8") as file:
        return Dataset.from_list([json.loads(line) for line in file])


def pad_rows(rows):
    """Return a batch of rows, padded on the right to the longest."""
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": tokenizer.pad_token_id or 0, "labels": -100}
    batch = {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in fill.items()
    }
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch["attention_mask"] = (torch.arange(longest)[None] < lengths[:, None]).long()
    return batch


train = read_rows("rows.jsonl")
validation = read_rows("validation.jsonl") if (HERE / "validation.jsonl").exists() else None

# %% The model, and the adapter as it was before the first step.
tokenizer = AutoTokenizer.from_pretrained(HERE / "tokenizer")
bits = SETTINGS["bits"]
model = AutoModelForCausalLM.from_pretrained(
    SETTINGS["base"],
    revision=SETTINGS["revision"] or None,
    dtype=getattr(torch, SETTINGS["dtype"]),
    device_map=SETTINGS["device"],
    attn_implementation=SETTINGS["attention"],
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, SETTINGS["dtype"]),
    )
    if bits
    else None,
)
if SETTINGS["adapter"]:
    model = PeftModel.from_pretrained(model, HERE / "start", is_trainable=True)
    for parameter in model.parameters():  # as in the run: what is trained is held in 32 bits
        if parameter.requires_grad:
            parameter.data = parameter.data.float()

# %% The optimizer and its learning rate at each step.
optim = SETTINGS["optim"]
total = SETTINGS["total_steps"]
warmup = optim["warmup_steps"] or math.ceil(optim["warmup_share"] * total)


def rate_share(step):
    """Return the share of the learning rate at a step, counted from 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(1, total - warmup)
    if optim["schedule"] == "linear":
        return max(0.0, 1 - done)
    if optim["schedule"] == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
    if optim["schedule"] == "wsd":
        return min(1.0, (total - step) / max(1, math.ceil(optim["decay_share"] * total)))
    return 1.0


trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(
    [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": optim["weight_decay"]},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ],
    lr=optim["learning_rate"],
    betas=(optim["beta1"], optim["beta2"]),
    eps=optim["epsilon"],
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_share)


# %% The order of the rows: each epoch a permutation drawn from seed and epoch.
class RowOrder(torch.utils.data.Sampler):
    def __init__(self, rows, seed):
        self.rows, self.seed, self.epoch = rows, seed, 0

    def __len__(self):
        return self.rows

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        self.epoch += 1
        return iter(order.tolist())


class Trainer(SFTTrainer):
    def _get_train_sampler(self, *_):
        return RowOrder(len(train), SETTINGS["seed"])


# %% Training.
trainer = Trainer(
    model=model,
    args=SFTConfig(
        output_dir=str(HERE / "out"),
        max_steps=total,
        per_device_train_batch_size=SETTINGS["rows_at_once"],
        gradient_accumulation_steps=SETTINGS["accumulated"],
        max_grad_norm=optim["max_grad_norm"] or 1e9,
        seed=SETTINGS["seed"],
        bf16=SETTINGS["dtype"] == "bfloat16",
        fp16=SETTINGS["dtype"] == "float16",
        gradient_checkpointing=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=SETTINGS["device"] == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=train,
    eval_dataset=validation,
    data_collator=pad_rows,
    processing_class=tokenizer,
    optimizers=(optimizer, schedule),
)
trainer.train()

# %% What came of it, beside the run.
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
told = {"loss": losses[-1], "loss_of_the_run": SETTINGS["losses"][-1]}
told["largest_difference"] = max(abs(a - b) for a, b in zip(losses, SETTINGS["losses"], strict=True))
model.save_pretrained(HERE / "out" / "result")
tokenizer.save_pretrained(HERE / "out" / "result")
print(json.dumps(told))
