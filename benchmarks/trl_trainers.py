"""Steps of trl's own trainers on the rows that objectives.py wrote: `python -P benchmarks/trl_trainers.py ORDER`.

One process, one model in memory. Each way (layers recomputed or not) is measured after the other; a way that runs out
of memory ends the process, and what was measured before it has been told already, a line of JSON each.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

RANK = ALPHA = 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHORT_TOKENS = 8
"""Of answers in steps that only warm up."""
MIB = 2**20
LINE = "LINE "
"""Begins what is meant for objectives.py."""


def main() -> int:
    """Measure what the order names; returns 1 after an error, which is told as a line, too."""
    order = json.loads(sys.argv[1])
    try:
        measure(order)
    except Exception as error:  # told, whatever it is: the other stacks go on
        traceback.print_exc()
        print(LINE + json.dumps({"error": f"{type(error).__name__}: {error}"[:400]}), flush=True)
        return 1
    return 0


def measure(order: dict[str, Any]) -> None:
    """Train as many steps as the ways of the order have, and tell of each way when it is done."""
    import torch
    from datasets import load_dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, BitsAndBytesConfig

    objective, cuda = order["objective"], order["device"] != "cpu"
    settings: dict[str, Any] = {"dtype": torch.bfloat16 if cuda else torch.float32}
    if order["bits"] == 4:
        settings["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=settings["dtype"],
        )
    if cuda:
        settings["device_map"] = {"": 0}
    model = load(objective, order["folder"], settings)
    tokenizer = AutoTokenizer.from_pretrained(order["folder"], local_files_only=True)
    rows = load_dataset("json", data_files=order["data"], split="train", cache_dir=order["scratch"])
    adapter = LoraConfig(
        r=order.get("rank", RANK),
        lora_alpha=order.get("alpha", ALPHA),
        target_modules=TARGETS,
        task_type="SEQ_CLS" if objective == "reward" else "CAUSAL_LM",
    )
    ways = order["ways"]
    common: dict[str, Any] = {
        "output_dir": order["scratch"],
        "max_steps": sum(warm + steps for _, warm, steps in ways),
        "learning_rate": order["learning_rate"],
        "lr_scheduler_type": order.get("schedule", "constant"),
        "per_device_train_batch_size": order["batch"],
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not cuda,
        "bf16": cuda,
        "seed": order.get("seed", 42),
        "gradient_checkpointing": ways[0][0] == "recompute",
    }
    make, more = choose_trainer(objective, order)
    arguments = make.config(**common, **more.pop("config", {}))
    given = {"model": model, "args": arguments, "train_dataset": rows, "processing_class": tokenizer}
    trainer = make.trainer(**given, peft_config=adapter, **more)
    clock = make_clock(trainer, ways, cuda)
    trainer.add_callback(clock)
    trainer.train()
    if "result" in order:
        trainer.save_model(order["result"])
        print(LINE + json.dumps({"curve": clock.logs}), flush=True)


def load(objective: str, folder: str, settings: dict[str, Any]) -> Any:
    """Return the model; for a reward model with one score."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if objective == "reward":
        return AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=1, local_files_only=True, **settings
        )
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **settings)


class Made:
    """A trainer and its configuration."""

    def __init__(self, trainer: Any, config: Any) -> None:
        self.trainer, self.config = trainer, config


def choose_trainer(objective: str, order: dict[str, Any]) -> tuple[Made, dict[str, Any]]:
    """Return trl's trainer of an objective, and what it is given beside what all are given."""
    import trl

    longest = {"max_length": order["max_length"]}
    in_order = {"train_sampling_strategy": "sequential"}
    if objective == "dpo":
        return Made(trl.DPOTrainer, trl.DPOConfig), {"config": longest | in_order}
    if objective == "kto":
        return Made(trl.KTOTrainer, trl.KTOConfig), {"config": longest}
    if objective == "reward":
        return Made(trl.RewardTrainer, trl.RewardConfig), {"config": longest | in_order}
    reward = read_reward(Path(order["reward"]))
    config = {
        "num_generations": order["group_size"],
        "max_completion_length": order["answer_tokens"],
        "gradient_accumulation_steps": order["prompts"] * order["group_size"] // order["batch"],
        "shuffle_dataset": False,
    }
    return Made(make_timed(), trl.GRPOConfig), {"reward_funcs": reward, "config": config}


def read_reward(path: Path) -> Any:
    """Return the function `reward` of a file."""
    names: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names["reward"]


def make_timed() -> type:
    """Return trl's GRPO trainer with a clock around its generation."""
    import trl

    class Timed(trl.GRPOTrainer):
        """Notes the seconds in which answers are generated and scored."""

        generating_s = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            synchronize(self.accelerator.device.type == "cuda")
            begun_s = time.perf_counter()
            found = super()._generate_and_score_completions(inputs)
            synchronize(self.accelerator.device.type == "cuda")
            self.generating_s += time.perf_counter() - begun_s
            return found

    return Timed


def synchronize(cuda: bool) -> None:
    """Wait for the card, where there is one."""
    import torch

    if cuda:
        torch.cuda.synchronize()


def make_clock(trainer: Any, ways: list[tuple[str, int, int]], cuda: bool) -> Any:
    """Return the callback that switches ways, times each step from the end of the one before, and tells of each way."""
    import torch
    from transformers import TrainerCallback

    plan = [
        (way, place, place >= warm, place + 1 == warm + steps)
        for way, warm, steps in ways
        for place in range(warm + steps)
    ]
    full = trainer.generation_config.max_new_tokens if hasattr(trainer, "generating_s") else 0

    class Clock(TrainerCallback):
        """Between two synchronisations, the fetching of rows included."""

        def __init__(self) -> None:
            self.step, self.ended_s, self.begun_s = 0, 0.0, time.perf_counter()
            self.times_s: list[float] = []
            self.generating_s: list[float] = []
            self.logs: list[dict[str, float]] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.prepare()

        def prepare(self) -> None:
            """Set up what the coming step is to be."""
            way, place, counts, _ = plan[self.step]
            if not place:
                if way == "keep":
                    trainer.model.gradient_checkpointing_disable()
                self.times_s, self.generating_s = [], []
                if cuda:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
            if full:
                trainer.generation_config.max_new_tokens = full if counts else min(SHORT_TOKENS, full)
                trainer.generating_s = 0.0
            synchronize(cuda)
            self.ended_s = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronize(cuda)
            took_s = time.perf_counter() - self.ended_s
            way, _, counts, last = plan[self.step]
            if counts:
                self.times_s.append(took_s)
                self.generating_s.append(getattr(trainer, "generating_s", 0.0))
            if last:
                self.tell(way)
            self.step += 1
            if self.step < len(plan):
                self.prepare()

        def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
            self.logs.append({name: one for name, one in logs.items() if isinstance(one, int | float)})

        def tell(self, way: str) -> None:
            """Print what a way took."""
            line: dict[str, Any] = {
                "way": way,
                "times_s": [round(one, 4) for one in self.times_s],
                "step_s": round(statistics.median(self.times_s), 4),
                "peak_mib": torch.cuda.max_memory_allocated() // MIB if cuda else 0,
            }
            if full:
                generating_s = statistics.median(self.generating_s)
                line |= {"generating_s": round(generating_s, 4)}
                line |= {"updating_s": round(line["step_s"] - generating_s, 4)}
            if self.logs:
                line["first"] = self.logs[0]
            print(LINE + json.dumps(line), flush=True)

    return Clock()


if __name__ == "__main__":
    sys.exit(main())
