"""Measures training through the product's own door: `train.py llama-8b qlora --models DIR --out FILE.csv`.

Each way runs `launch.py --here train RECIPE --json` in a workspace of its own; time and memory are read from what
the run itself recorded. Step time is the median time between step events after WARMUP_STEPS steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.make_model import SHAPES, make_model  # noqa: E402 (the folder above must be on the path first)
from benchmarks.table import append_row  # noqa: E402
from studio.core.codec import from_json  # noqa: E402
from studio.core.facts import BackendPlan  # noqa: E402
from studio.core.recipe import Recipe  # noqa: E402
from studio.models.catalog import inspect_model  # noqa: E402
from studio.planning.memory_estimate import predict  # noqa: E402

WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "qlora": {"model": {"quantization": "nf4"}, "optim": {"optimizer": "adamw_8bit"}},
    "lora": {},
    "full": {"adapter": {"method": "full"}, "optim": {"learning_rate": 1e-5}},
}
WARMUP_STEPS = 2
"""Kernels compile and the allocator grows in the first step; the second lays out the optimizer."""
PACKAGES = ("torch", "triton", "transformers", "peft", "bitsandbytes")
MIB = 2**20


def write_recipe(
    path: Path, model: Path, way: str, *, steps: int, micro_batch: int, tokens: int, run: Mapping[str, str]
) -> Path:
    """Write the recipe of WAYS[way] on the model folder `model` and return `path`."""
    changes = WAYS[way]
    optim = {"max_steps": steps, "batch_size": micro_batch} | changes.get("optim", {})
    recipe = {
        "version": 2,
        "name": f"{model.name}-{way}",
        "model": {"source": str(model)} | changes.get("model", {}),
        "data": {"source": str(model / "conversations.jsonl"), "max_length": tokens, "validation_share": 0.0},
        "adapter": changes.get("adapter", {}),
        "optim": optim,
        "run": {"keep_checkpoints": 1, **run},
    }
    path.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return path


def train(recipe: Path, workspace: Path) -> tuple[dict[str, Any], Path, float]:
    """Run the recipe in a process of its own; returns the command's answer, the run's folder and when it was started.

    Raises RuntimeError when the command answered no run.
    """
    command = [sys.executable, str(ROOT / "launch.py"), "--here", "train", str(recipe), "--json"]
    started_s = time.time()
    done = subprocess.run(
        [*command, "--workspace", str(workspace)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    answer = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    if "run" not in answer:
        raise RuntimeError(f"exit code {done.returncode}: {answer.get('error', 'no answer')}")
    return answer, workspace / "runs" / answer["run"], started_s


def read_run(folder: Path, started_s: float = math.nan) -> dict[str, Any]:
    """Return the measured columns of a run: times, memory, losses, swaps, phases, versions.

    `started_s`: when its command was started, for the time until the first step was done.
    """
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    steps = [event for event in events if event["kind"] == "step_logged"]
    samples = [event for event in events if event["kind"] == "gpu_sampled"]
    tokens = next((event["facts"]["tokens"] for event in events if event["kind"] == "data_prepared"), 0)
    swaps = next((event["swaps"] for event in events if event["kind"] == "run_planned"), [])
    gaps_s = [after["time_s"] - before["time_s"] for before, after in zip(steps, steps[1:], strict=False)]
    step_s = statistics.median(gaps_s[WARMUP_STEPS - 1 :] or [math.nan])
    recipe = from_json(Recipe, json.loads((folder / "recipe.json").read_text(encoding="utf-8")))
    predicted = predict(from_json(BackendPlan, plan), inspect_model(recipe.model.source), recipe)
    # The context lies outside torch's allocator, whose peak is what the run records.
    predicted_bytes = sum(predicted.values()) - predicted["context"]
    rows = tokens / max(1, next(e["facts"]["rows_used"] for e in events if e["kind"] == "data_prepared"))
    losses = [step["loss"] for step in steps]
    return {
        "state": record["state"],
        "steps": record["steps"],
        "step_s": f"{step_s:.4f}",
        "tokens_per_s": f"{recipe.optim.batch_size * rows / step_s:.0f}",
        "first_step_after_s": f"{steps[0]['time_s'] - started_s:.1f}" if steps else "",
        "peak_mib": round(record["peak_vram_bytes"] / MIB),
        "predicted_mib": round(predicted_bytes / MIB),
        "driver_peak_mib": round(max((s["memory_bytes"] for s in samples), default=0) / MIB),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "losses_finite": bool(losses) and all(isinstance(x, float) and math.isfinite(x) for x in losses),
        "artifact": record["artifact"],
        "dtype": plan["dtype"]["value"],
        "quantization": plan["quantization"]["value"],
        "optimizer": plan["optimizer"]["value"],
        "recompute": plan["checkpointing"]["value"],
        "kernels": " ".join(f"{op}={choice['value']}" for op, choice in plan["kernels"].items()),
        "swaps": " ".join(
            f"{swap['values'].get('op', swap['id'])}x{swap['values'].get('count', '')}" for swap in swaps
        ),
        "phases_s": " ".join(f"{name}={took}" for name, took in record["timings_s"].items()),
        "gpu": record["gpu"] or "CPU",
        **{name: record["packages"].get(name, "") for name in PACKAGES},
    }


def split_start(folder: Path, started_s: float) -> dict[str, float]:
    """Return how long each phase of a run took until its first step was done, in seconds, in their order.

    `start` is what passed before the run's first phase: Python, the supervisor, looking at the machine; `first_step`
    what is left of the time when all phases are taken from it.
    """
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    step_s = next((event["time_s"] for event in events if event["kind"] == "step_logged"), math.nan)
    phases = {"start": events[0]["time_s"] - started_s}
    for name, took_s in record["timings_s"].items():
        if name in ("train", "save", "verify"):
            break
        if not name.startswith("start_"):  # the parts of `start`
            phases[name] = took_s
    return phases | {"first_step": step_s - started_s - sum(phases.values())}


def main() -> int:
    """Measure the ways named; exit code 1 when one did not end well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("ways", nargs="+", choices=WAYS)
    parser.add_argument("--models", type=Path, required=True, help="folder that holds the models, or will")
    parser.add_argument("--workspace", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("train.csv"), help="the CSV file to append to")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048, help="length of a row")
    parser.add_argument("--recompute", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--kernels", choices=("auto", "pytorch"), default="auto")
    options = parser.parse_args()
    model = options.models / options.shape
    if not (model / "model.safetensors.index.json").is_file():
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        make_model(options.shape, model, device=device, tokens=options.tokens)
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="studio-bench-"))
    run = {"activation_checkpointing": options.recompute, "kernels": options.kernels}
    command = " ".join(["python benchmarks/train.py", *sys.argv[1:]])
    failed = False
    for way in options.ways:
        sizes = {"steps": options.steps, "micro_batch": options.micro_batch, "tokens": options.tokens}
        recipe = write_recipe(options.models / f"{options.shape}-{way}.json", model, way, run=run, **sizes)
        answer, folder, started_s = train(recipe, workspace)
        row = {"shape": options.shape, "way": way, **sizes, **read_run(folder, started_s)}
        row |= {"date": datetime.date.today().isoformat(), "command": command}
        append_row(options.out, row)
        print(json.dumps(row), flush=True)
        if answer["state"] != "finished":
            print(json.dumps(answer["diagnosis"]), flush=True)
        failed |= answer["state"] != "finished" or not row["losses_finite"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
