"""Trained weights learn from pairs of real answers, and from tasks with a reward: what comes out, beside trl.

    real_preference.py pairs --source sharegpt.json --model DIR --data FOLDER    pick pairs (needs no card)
    real_preference.py tasks --data FOLDER                                      make tasks (needs reasoning_gym)
    real_preference.py dpo --model DIR --data FOLDER --out FILE.jsonl           train by both, score both
    real_preference.py grpo --model DIR --data FOLDER --out FILE.jsonl

A pair is what was answered to a question in a real chat, and what was answered to another, as long as it. A task is a
sum or a greatest common divisor; the reward is 1 where the last number said is the right one. Both stacks take the same
rows in the same order with the same seed, rate and rank. One scorer, transformers and peft alone, looks at both results
and at the model before: the share of held-out pairs whose better answer gained more (and its mean margin), or the share
of held-out tasks that are solved, greedily. JSON lines: a curve of the steps, then the scores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.objectives import (  # noqa: E402 (the folder above must be on the path first)
    FAR,
    MIB,
    SEED,
    describe_machine,
    run_recipe,
    run_trl,
    write_lines,
)
from benchmarks.trl_trainers import ALPHA, RANK  # noqa: E402

LEAST_ANSWER, MOST_ANSWER, MOST_PROMPT = 16, 256, 256
"""Tokens of what pairs are made of."""
ASK = "Answer with the number alone."
TASKS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 60},
}
"""Of reasoning-gym, with their settings; both are answered by a number."""
REWARD = """
import re


def reward(completions, answer, **columns):
    said = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    numbers = [re.findall(r"-?\\d+", one.replace(",", "")) for one in said]
    return [float(bool(found) and found[-1] == right) for found, right in zip(numbers, answer, strict=True)]
"""
"""1 where the last number is the answer."""
SETTINGS: dict[str, dict[str, Any]] = {
    "dpo": {"rows": 8, "steps": 100, "rate": 5e-5, "max_length": MOST_PROMPT + MOST_ANSWER + 64},
    "grpo": {"rows": 8, "steps": 40, "rate": 5e-5, "max_length": 512, "group_size": 8, "answer_tokens": 48},
}
CURVE = (
    "loss", "rewards/accuracies", "rewards/margins", "logps/chosen", "reward", "frac_reward_zero_std",
    "completions/mean_length",
)  # fmt: skip
LEAST_S = 30.0
"""What is not begun with less time left."""


def pick_pairs(source: Path, model: Path, folder: Path, *, train: int, held_out: int) -> None:
    """Write pairs of real chats' first questions and answers. Raises ValueError where there are too few.

    The worse answer is another question's of nearly the same length, of the same file: length tells nothing.
    """
    from benchmarks.real_rows import read_list, read_messages
    from studio.models.catalog import inspect_model
    from studio.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(inspect_model(str(model)))
    found: dict[str, tuple[int, str]] = {}
    for row in read_list(source):
        talk = [one for one in read_messages(row) or [] if one["role"] != "system"]
        if not talk or len(talk[0]["content"]) + len(talk[1]["content"]) > 8 * (MOST_PROMPT + MOST_ANSWER):
            continue
        asked, said = (len(tokenizer(one["content"])["input_ids"]) for one in talk[:2])
        if asked <= MOST_PROMPT and LEAST_ANSWER <= said <= MOST_ANSWER:
            found.setdefault(talk[0]["content"], (said, talk[1]["content"]))
        if len(found) >= 2 * (train + held_out):
            break
    if len(found) < train + held_out:
        raise ValueError(f"{len(found)} chats are short enough, {train + held_out} are wanted")
    chats = [(asked, *said) for asked, said in found.items()]
    random.Random(SEED).shuffle(chats)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("held_out", chats[:held_out]), ("train", chats[held_out : held_out + train])):
        by_length = sorted(part, key=lambda chat: chat[1])
        rows = [
            {
                "prompt": say("user", asked),
                "chosen": say("assistant", good),
                "rejected": say("assistant", bad),
            }
            for (asked, _, good), (_, _, bad) in zip(by_length, by_length[1:] + by_length[-2:-1], strict=True)
        ]
        random.Random(SEED).shuffle(rows)
        write_rows(folder / f"pairs_{name}.jsonl.gz", rows)


def make_tasks(folder: Path, *, train: int, held_out: int) -> None:
    """Write tasks of both kinds, as many of each, none of them in both files."""
    import reasoning_gym

    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name, settings in TASKS.items():
        known: dict[str, str] = {}
        made = reasoning_gym.create_dataset(name, size=4 * (train + held_out), seed=SEED, **settings)
        for one in made:
            known.setdefault(one["question"], one["answer"])
            if len(known) >= (train + held_out) // 2:
                break
        rows += [
            {"prompt": say("user", f"{asked}\n{ASK}"), "answer": right, "task": name}
            for asked, right in known.items()
        ]
    random.Random(SEED).shuffle(rows)
    write_rows(folder / "tasks_held_out.jsonl.gz", rows[:held_out])
    write_rows(folder / "tasks_train.jsonl.gz", rows[held_out:])


def say(role: str, words: str) -> list[dict[str, str]]:
    """Return one turn."""
    return [{"role": role, "content": words}]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write packed JSON lines."""
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of such a file."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def write_data(objective: str, options: argparse.Namespace, scratch: Path) -> None:
    """Write the rows for both stacks: ours in their order, trl's in that of our steps."""
    from studio.engine.batches import StepOrder

    settings = SETTINGS[objective]
    rows = read_rows(options.data / f"{'pairs' if objective == 'dpo' else 'tasks'}_train.jsonl.gz")
    rows = rows[: settings["rows"] * options.steps]  # nothing is computed of rows that no step takes
    order = StepOrder(len(rows), settings["rows"], SEED)
    write_lines(scratch / "ours.jsonl", rows)
    taken = [rows[i] for step in range(options.steps) for i in order.indices(step)]
    write_lines(scratch / "trl.jsonl", taken)
    (scratch / "reward.py").write_text(REWARD, encoding="utf-8")


def train_ours(objective: str, options: argparse.Namespace, scratch: Path, limit_s: float) -> dict[str, Any]:
    """Train by `launch.py train`; return its curve, and under `result` the adapter's folder, or `error`."""
    settings = SETTINGS[objective]
    recipe: dict[str, Any] = {
        "version": 3,
        "name": f"real-{objective}",
        "seed": SEED,
        "objective": objective,
        "model": {"source": str(options.model)},
        "data": {
            "source": str(scratch / "ours.jsonl"), "validation_share": 0.0, "max_length": settings["max_length"],
        },
        "adapter": {"rank": RANK, "alpha": ALPHA},
        "optim": {
            "learning_rate": options.rate, "schedule": "constant", "warmup_share": 0.0, "weight_decay": 0.0,
            "batch_size": settings["rows"], "max_steps": options.steps,
        },
        "run": {
            "eval_every": FAR, "save_every": FAR, "samples": 0, "device": "cpu" if options.device == "cpu" else "auto",
        },
    }  # fmt: skip
    if objective == "grpo":
        recipe["sampling"] = {
            "group_size": settings["group_size"], "answer_tokens": settings["answer_tokens"], "epsilon_high": 0.2,
        }  # fmt: skip
        recipe["rewards"] = [{"name": f"file:{scratch / 'reward.py'}", "insist": True}]
    return run_recipe(recipe, scratch, scratch / "workspace", limit_s, read_run)[0]


def read_run(run: Path) -> dict[str, Any]:
    """Return the curve of a run, its time and its result."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [event for event in events if event["kind"] == "step_logged"]
    return {
        "curve": [{"loss": step["loss"]} | step["metrics"] for step in steps],
        "steps_s": round(steps[-1]["time_s"] - steps[0]["time_s"], 2),
        "peak_mib": record["peak_vram_bytes"] // MIB,
        "swaps": [
            said["id"] for event in events if event["kind"] == "run_planned" for said in event["swaps"]
        ],
        "result": str(run / record["artifact"]),
    }


def train_trl(objective: str, options: argparse.Namespace, scratch: Path, limit_s: float) -> dict[str, Any]:
    """Train by trl; return what train_ours() does."""
    settings = SETTINGS[objective]
    rows, group = settings["rows"], settings.get("group_size", 0)
    order = {
        "objective": objective,
        "folder": str(options.model),
        "bits": 16,
        "data": str(scratch / "trl.jsonl"),
        "scratch": str(scratch / "trl"),
        "device": options.device,
        "ways": [("keep", 0, options.steps)],
        "learning_rate": options.rate,
        "seed": SEED,
        "max_length": settings["max_length"],
        "batch": group or rows,
        "prompts": rows,
        "group_size": group,
        "answer_tokens": settings.get("answer_tokens", 0),
        "reward": str(scratch / "reward.py"),
        "result": str(scratch / "result"),
    }
    found: dict[str, Any] = {}
    for line in run_trl(order, limit_s, scratch / "trl.log"):
        found |= line
    if "curve" in found:
        found["curve"] = [one for one in found["curve"] if "loss" in one]
        found |= {"steps_s": round(sum(found["times_s"][1:]), 2), "result": order["result"]}
    return found


STACKS = {"ours": train_ours, "trl": train_trl}


def compare(objective: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train by both and yield the curves, then what the model before and both results are worth on held-out rows."""
    deadline_s = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix="studio-preference-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        write_data(objective, options, scratch)
        results: dict[str, str] = {}
        for stack in options.stacks:
            left_s = deadline_s - time.monotonic() - LEAST_S
            if left_s < LEAST_S:
                yield {"stack": stack, "error": "no time is left"}
                continue
            found = STACKS[stack](objective, options, scratch, left_s)
            if "result" in found:
                results[stack] = found.pop("result")
            curve = found.pop("curve", [])
            for name in ("times_s", "first", "way"):
                found.pop(name, None)
            points = {
                name: [round(point[name], 5) for point in curve]
                for name in CURVE
                if curve and name in curve[0]
            }
            yield {"stack": stack, **found, "curve": points}
        yield from score(objective, options, results)


def score(objective: str, options: argparse.Namespace, results: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the scores of held-out rows: of the model before, where they have one, and of each result."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    kind = "pairs" if objective == "dpo" else "tasks"
    rows = read_rows(options.data / f"{kind}_held_out.jsonl.gz")[: options.held_out]
    tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    dtype = torch.float32 if objective == "dpo" or options.device == "cpu" else torch.bfloat16
    before: Any = None
    for stack in ("before", *results):
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, local_files_only=True)
        if stack != "before":
            model = PeftModel.from_pretrained(model, results[stack], local_files_only=True)
        model = model.to(options.device).eval()
        if objective == "dpo":
            sums = torch.stack([sum_answers(model, tokenizer, row) for row in rows])
            before = sums if stack == "before" else before
            gained = sums - before
            right = (gained[:, 0] > gained[:, 1]).float().mean()
            line = {
                "accuracy": round(float(right), 4) if stack != "before" else None,
                "margin": round(float((gained[:, 0] - gained[:, 1]).mean()), 4),
                "prefers": round(float((sums[:, 0] > sums[:, 1]).float().mean()), 4),
                "chosen": round(float(sums[:, 0].mean()), 3),
            }
        else:
            line = {"accuracy": solve(model, tokenizer, rows)}
        yield {"stack": stack, "held_out": len(rows), **line}
        del model


def sum_answers(model: Any, tokenizer: Any, row: dict[str, Any]) -> Any:
    """Return (2,) fp32 on the processor: the log-probabilities of the better and the worse answer."""
    import torch

    asked = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    sums = []
    for name in ("chosen", "rejected"):
        ids = tokenizer.apply_chat_template(row["prompt"] + row[name], return_dict=True)["input_ids"]
        ids = torch.tensor([ids], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(asked) - 1 : -1].float()
        picked = logits.log_softmax(-1).gather(1, ids[0, len(asked) :, None])
        sums.append(picked.sum().cpu())
    return torch.stack(sums)


def solve(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]], at_once: int = 64) -> dict[str, float]:
    """Return the share of tasks that greedy answers solve: of all, and of each kind."""
    import torch

    from benchmarks.trl_trainers import read_reward

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reward.py")
        path.write_text(REWARD, encoding="utf-8")
        reward = read_reward(path)
    tokenizer.padding_side = "left"
    given: list[str] = []
    for start in range(0, len(rows), at_once):
        asked = [
            tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
            for row in rows[start : start + at_once]
        ]
        batch = tokenizer(asked, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        with torch.no_grad():
            drawn = model.generate(
                **batch, max_new_tokens=SETTINGS["grpo"]["answer_tokens"], do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        given += tokenizer.batch_decode(drawn[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    scores = reward(given, [row["answer"] for row in rows])
    found = {"all": round(sum(scores) / len(scores), 4)}
    for name in TASKS:
        own = [one for one, row in zip(scores, rows, strict=True) if row["task"] == name]
        found[name] = round(sum(own) / max(1, len(own)), 4)
    return found


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("part", choices=("pairs", "tasks", *SETTINGS))
    parser.add_argument("--source", type=Path, help="pairs: the ShareGPT file, whole or cut off")
    parser.add_argument("--model", type=Path, help="the model's folder")
    parser.add_argument("--data", type=Path, help="the folder of rows")
    parser.add_argument("--train", type=int, default=800, help="pairs, tasks: rows to train on")
    parser.add_argument("--held-out", type=int, default=200, help="rows to score")
    parser.add_argument("--stacks", default="ours,trl")
    parser.add_argument("--steps", type=int, default=0, help="0: 100 of dpo, 40 of grpo")
    parser.add_argument("--rate", type=float, default=0.0, help="0: 5e-5")
    parser.add_argument("--seconds", type=float, default=400.0, help="time that all of it may take")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--out", type=Path, help="the file to append to")
    options = parser.parse_args(words)
    options.stacks = options.stacks.split(",")
    if unknown := set(options.stacks) - STACKS.keys():
        parser.error(f"no stack is called {', '.join(unknown)}; there are {', '.join(STACKS)}")
    if options.part in SETTINGS:
        options.model = options.model.resolve()
        options.steps = options.steps or SETTINGS[options.part]["steps"]
        options.rate = options.rate or SETTINGS[options.part]["rate"]
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Do the part that the command line names; returns 1 when a stack said an error."""
    options = parse(words)
    if options.part == "pairs":
        pick_pairs(
            options.source, options.model, options.data, train=options.train, held_out=options.held_out
        )
    elif options.part == "tasks":
        make_tasks(options.data, train=options.train, held_out=options.held_out)
    else:
        return run(options)
    return 0


def run(options: argparse.Namespace) -> int:
    """Train and score by what the options say; returns 1 when a stack said an error."""
    failed = False
    about = {
        "objective": options.part,
        "model": options.model.name,
        "steps": options.steps,
        "rate": options.rate,
    }
    about |= {"seed": SEED, "rows_a_step": SETTINGS[options.part]["rows"], **describe_machine()}
    for line in compare(options.part, options):
        failed |= "error" in line
        print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | about) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
