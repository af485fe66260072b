"""Trained weights and real conversations: the studio as it comes beside the loop that a person would write.

    real.py rows --source sharegpt.json --model DIR --data FOLDER     pick conversations (needs no card)
    real.py model --gguf FILE --out DIR                               open a model that travels as one file
    real.py all --model DIR --data FOLDER --out FILE.csv              loop, studio and score, for each of --ways
    real.py shape --shape llama-8b --model DIR --data FOLDER --like FOLDER   an 8B shape, rows of real lengths
    real.py table --out FILE.csv                                      the ratios

`loop`, `studio` and `score` do one part each; `all` runs them in processes of their own. Nothing needs a network. Both
sides train the same tokens in the same order, as the studio prepared them, with the same rows a step, adapter, masks,
learning rate and schedule; the studio cuts a step as it likes, the loop as is fastest of --batches. A result's held-out
loss is computed by one scorer, plain transformers, from what was saved. Tokens are counted without padding.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.table import append_row, read_rows  # noqa: E402 (the folder above must be on the path first)
from studio.core.recipe import OptimSpec  # noqa: E402

SEED = 42
LEARNING_RATES = {"lora": 2e-4, "qlora": 2e-4, "full": 2e-5}
WAYS: dict[str, dict[str, Any]] = {
    "lora": {},
    "qlora": {"model": {"quantization": "nf4"}},
    "full": {"adapter": {"method": "full"}},
}
WARMUP_STEPS = 5
"""Not counted in the studio's speed, as in the loop's."""
MUST = {"lora": 5.0, "full": 3.0, "qlora": 2.0}
"""Least ratio of the studio's tokens/s to the loop's."""
MOST_APART = 0.003
"""Held-out losses may differ by so much."""
LEAST_S = {"loop": 40.0, "studio": 40.0, "score": 20.0}
"""What is not started with less time left."""
MIB = 2**20
COLUMNS = (
    "way stack model data rows rows_a_step batch tried steps tokens_per_s train_s load_s wall_s first_step_s held_out"
    " held_out_before loss_first loss_last peak_mib computed_by gpu torch transformers peft date command"
).split()


def size_step(rows_a_step: int) -> dict[str, int]:
    """Return the recipe's settings for so many rows a step: none for 8, which is what the studio has unasked."""
    return {} if rows_a_step == 8 else {"batch_size": rows_a_step}


def write_recipe(path: Path, options: argparse.Namespace) -> Path:
    """Write the studio's recipe: its defaults, but for the model, the data, one epoch and the learning rate."""
    changes = WAYS[options.way]
    recipe = {
        "version": 2,
        "name": f"{options.model.name}-{options.way}",
        "seed": SEED,
        "model": {"source": str(options.model.resolve()), **changes.get("model", {})},
        "data": {
            "validation_share": 0.0,
            "source": str((options.data / "train.jsonl.gz").resolve()),
            "max_length": options.longest,
        },
        "adapter": changes.get("adapter", {}),
        "optim": {
            "learning_rate": LEARNING_RATES[options.way],
            "epochs": 1.0,
            "max_steps": options.steps,
            **size_step(options.rows_a_step),
        },
        "run": {"device": "auto" if options.device.startswith("cuda") else "cpu"},
    }
    path.write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return path


def run_loop(options: argparse.Namespace) -> dict[str, Any]:
    """Train by the plain loop and return its row."""
    import torch

    from benchmarks.real_loop import train_plain
    from benchmarks.real_rows import read_examples

    deadline_s = time.monotonic() + options.seconds
    rows = read_examples(find_examples(options))["train"]
    spec = OptimSpec(learning_rate=LEARNING_RATES[options.way], epochs=1.0, max_steps=options.steps)
    return train_plain(
        options.model,
        rows,
        options.way,
        spec,
        options.result,
        rows_a_step=options.rows_a_step,
        at_once=options.batches,
        steps=options.steps,
        seed=SEED,
        device=torch.device(options.device),
        until_s=lambda: deadline_s - time.monotonic(),
    ) | {"rows": len(rows), "computed_by": "transformers + peft"}


def run_studio(options: argparse.Namespace) -> dict[str, Any]:
    """Train by `launch.py train` and return its row; the result is moved to options.result."""
    from benchmarks.train import split_start, train

    path = write_recipe(options.result.with_suffix(".json"), options)
    workspace = options.workspace or Path(tempfile.mkdtemp(prefix="studio-real-"))
    answer, run, started_s = train(path, workspace)
    if answer["state"] != "finished":
        raise RuntimeError(f"the run is {answer['state']}: {answer.get('diagnosis')}")
    found = read_run(run, find_examples(options), options.rows_a_step, started_s)
    phases = split_start(run, started_s)
    found["load_s"] = round(phases.get("load", 0.0), 1)
    (run / found.pop("artifact")).rename(options.result)
    return found


def read_run(run: Path, examples: Path, rows_a_step: int, started_s: float) -> dict[str, Any]:
    """Return what a run of the studio tells of itself; tokens are those of the examples in the run's order.

    Raises ValueError where the run trained on other rows than those of `examples`.
    """
    from benchmarks.real_rows import read_examples
    from studio.engine.batches import StepOrder

    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [event for event in events if event["kind"] == "step_logged"]
    (prepared,) = [event for event in events if event["kind"] == "data_prepared"]
    planned = next(event for event in events if event["kind"] == "run_planned")
    rows = read_examples(examples)["train"]
    tokens = sum(len(row.token_ids) for row in rows)
    if (prepared["facts"]["rows_used"], prepared["facts"]["tokens"]) != (len(rows), tokens):
        raise ValueError(f"the run has {prepared['facts']['tokens']} tokens, the loop {tokens}")
    order = StepOrder(len(rows), rows_a_step, SEED)
    warm = min(WARMUP_STEPS, len(steps) - 1)
    counted = sum(len(rows[i].token_ids) for step in range(warm, len(steps)) for i in order.indices(step))
    begun_s = next(
        event["time_s"] for event in events if event["kind"] == "phase_started" and event["phase"] == "train"
    )
    took_s = steps[-1]["time_s"] - (steps[warm - 1]["time_s"] if warm else begun_s)
    if record["total_steps"] != order.steps_per_epoch and len(steps) > order.steps_per_epoch:
        raise ValueError(f"{record['total_steps']} steps, the loop takes {order.steps_per_epoch}")
    decoders = [said for said in planned["swaps"] if said["id"] in ("run.decoder", "run.no_decoder")]
    return {
        "rows": len(rows),
        "steps": len(steps),
        "tokens_per_s": round(counted / took_s),
        "train_s": round(steps[-1]["time_s"] - begun_s, 1),
        "first_step_s": round(steps[0]["time_s"] - started_s, 1),
        "loss_first": round(steps[0]["loss"], 4),
        "loss_last": round(steps[-1]["loss"], 4),
        "peak_mib": record["peak_vram_bytes"] // MIB,
        "computed_by": describe(decoders[0]) if decoders else "the model's own code",
        "artifact": record["artifact"],
    }


def describe(said: dict[str, Any]) -> str:
    """Return in words what computed the run: our decoder, or why not."""
    from studio.core.codec import from_json
    from studio.core.i18n import Text, load_catalogue

    return load_catalogue("en").say(from_json(Text, said))


def run_score(options: argparse.Namespace) -> dict[str, Any]:
    """Return the held-out loss of every result that is named, `base` for the model before the training."""
    import torch

    from benchmarks.real_loop import score_result
    from benchmarks.real_rows import read_examples

    rows = read_examples(find_examples(options))["held_out"]
    found = {}
    for name in options.results:
        result = None if name == "base" else Path(name)
        loss = score_result(
            options.model, result, options.way, rows, torch.device(options.device), options.dtype
        )
        found[name] = round(loss, 5)
    return found


def find_examples(options: argparse.Namespace) -> Path:
    """Return the file of tokens beside the rows, made at the first call."""
    from benchmarks.real_rows import write_examples

    path = options.data / "examples.npz"
    if not path.is_file():
        write_examples(options.data, options.model, options.longest, SEED)
    return path


def run_all(options: argparse.Namespace) -> int:
    """Run loop, studio and score of every way, as long as the time lasts; return 1 when a part failed."""
    deadline_s, failed = time.monotonic() + options.seconds, False
    find_examples(options)
    shared = ["--model", options.model, "--data", options.data, "--steps", options.steps]
    shared += ["--rows-a-step", options.rows_a_step, "--device", options.device, "--longest", options.longest]
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="studio-real-", ignore_cleanup_errors=True) as scratch:
        for way in options.ways:
            results: dict[str, Path] = {}
            measured: dict[str, dict[str, Any]] = {}
            for stack in options.stacks:
                left_s = deadline_s - time.monotonic()
                if left_s < LEAST_S[stack]:
                    print(f"{way} by {stack} left out: {left_s:.0f} s are left", flush=True)
                    continue
                result = Path(scratch, f"{way}-{stack}")
                words = [stack, *shared, "--way", way, "--result", result]
                words += ["--seconds", left_s - LEAST_S["score"]] if stack == "loop" else []
                words += ["--batches", ",".join(map(str, options.batches))] if stack == "loop" else []
                words += ["--workspace", options.workspace] if stack == "studio" and options.workspace else []
                started_s = time.monotonic()
                row = call(words, left_s)
                failed |= row is None
                if row is not None:
                    measured[stack] = row | {"wall_s": round(time.monotonic() - started_s, 1)}
                    results[stack] = result
            left_s = deadline_s - time.monotonic()
            names = ["base", *map(str, results.values())]
            words = ["score", *shared, "--way", way, "--results", *names, "--dtype", options.dtype]
            losses = call(words, left_s) if results and left_s > LEAST_S["score"] and options.score else {}
            failed |= losses is None
            for stack, row in measured.items():
                row |= {"way": way, "stack": stack, "model": options.model.name, "data": options.data.name}
                row |= {"rows_a_step": options.rows_a_step, "command": options.command, **machine}
                row |= {"held_out": (losses or {}).get(str(results[stack]), "")}
                row |= {"held_out_before": (losses or {}).get("base", "")}
                append_row(options.out, row, COLUMNS)
    print_table(options.out)
    return 1 if failed else 0


def call(words: Sequence[object], limit_s: float) -> dict[str, Any] | None:
    """Run a part in a process of its own and return what it measured, None when it failed or took too long."""
    from benchmarks.child import OFFLINE

    print("$ real.py " + " ".join(map(str, words)), flush=True)
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__)), *map(str, words)],
            stdout=subprocess.PIPE,
            env={**os.environ, **OFFLINE},
            encoding="utf-8",
            timeout=max(1.0, limit_s),
        )
    except subprocess.TimeoutExpired:
        print(f"not done after {limit_s:.0f} s", flush=True)
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        print(f"exit code {done.returncode}: {done.stdout[-2000:]}", flush=True)
        return None
    print(lines[-1], flush=True)
    return json.loads(lines[-1].removeprefix("RESULT "))


def describe_machine() -> dict[str, str]:
    """Return the card, the versions and the day."""
    from benchmarks.child import ask_driver
    from benchmarks.measure import versions

    found = {name: version for name, version in versions().items() if name in COLUMNS}
    return {"gpu": ask_driver("name") or "CPU", "date": datetime.date.today().isoformat(), **found}


def print_table(path: Path) -> None:
    """Print the last measurement of every case, and the ratios of the studio to the loop."""
    last: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read_rows(path):
        last[row["model"], row["data"], row["way"], row["rows_a_step"], row["stack"]] = row
    print("model, data, way, rows a step: stack: tokens/s, held-out loss, peak MiB, training s, first step s")
    for key, row in last.items():
        values = (row[name] for name in ("tokens_per_s", "held_out", "peak_mib", "train_s", "first_step_s"))
        print(f"{' '.join(key[:-1])}: {key[-1]}: {', '.join(value or '-' for value in values)}")
    for key in dict.fromkeys(key[:-1] for key in last):
        if (*key, "loop") in last and (*key, "studio") in last:
            print(f"{' '.join(key)}: {compare(last[*key, 'loop'], last[*key, 'studio'])}")


def compare(loop: dict[str, str], studio: dict[str, str]) -> str:
    """Return in words how the studio's run relates to the loop's, and whether that holds."""
    ratio = float(studio["tokens_per_s"]) / max(1.0, float(loop["tokens_per_s"]))
    must = MUST[studio["way"]]
    said = f"{ratio:.2f} times the loop's tokens/s (must be >= {must:g}: {'yes' if ratio >= must else 'NO'})"
    if studio["held_out"] and loop["held_out"]:
        apart = float(studio["held_out"]) - float(loop["held_out"])
        holds = "yes" if abs(apart) <= MOST_APART else "NO"
        same = studio["steps"] == loop["steps"]
        said += f", held-out loss {apart:+.4f} (within {MOST_APART}: {holds})" + (
            "" if same else ", of other steps"
        )
    return said


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("rows", "model", "shape", "loop", "studio", "score", "all", "table"))
    parser.add_argument("--source", type=Path, help="rows: the ShareGPT file, whole or cut off")
    parser.add_argument("--gguf", type=Path, help="model: the file")
    parser.add_argument("--shape", default="llama-8b", help="shape: one of make_model.py")
    parser.add_argument("--like", type=Path, help="shape: the folder of rows whose lengths are taken")
    parser.add_argument("--model", type=Path, help="the model's folder")
    parser.add_argument("--data", type=Path, help="the folder of train.jsonl.gz and held_out.jsonl.gz")
    parser.add_argument("--train", type=int, default=4000, help="rows, shape: rows to train on")
    parser.add_argument("--held-out", type=int, default=300, help="rows, shape: rows to score")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of the longest row")
    parser.add_argument("--ways", default="lora,full", help="all: lora,full,qlora")
    parser.add_argument("--stacks", default="loop,studio", help="all: loop,studio")
    parser.add_argument("--way", choices=WAYS, default="lora")
    parser.add_argument("--rows-a-step", type=int, default=8)
    parser.add_argument("--batches", default="2,4,8,16", help="loop: rows at once to try, up to a step's")
    parser.add_argument("--steps", type=int, default=0, help="steps of both; 0: one epoch")
    parser.add_argument("--seconds", type=float, default=290.0, help="time that all of it may take")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="the scorer's")
    parser.add_argument("--no-score", dest="score", action="store_false", help="all: no held-out losses")
    parser.add_argument("--result", type=Path, help="loop, studio: where the result goes")
    parser.add_argument("--results", nargs="+", default=[], help="score: folders, and `base`")
    parser.add_argument("--workspace", type=Path, help="studio: its workspace; a new one where none is named")
    parser.add_argument("--out", type=Path, default=Path("real.csv"), help="the CSV file, or model's folder")
    options = parser.parse_args(words)
    for name in ("ways", "stacks"):
        setattr(options, name, [part for part in getattr(options, name).split(",") if part])
    options.batches = [int(part) for part in options.batches.split(",")]
    options.command = " ".join(["python benchmarks/real.py", *words])
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Do the part that the command line names."""
    options = parse(sys.argv[1:] if words is None else words)
    if options.part == "all":
        return run_all(options)
    if options.part == "table":
        print_table(options.out)
    elif options.part == "model":
        from benchmarks.gguf_model import open_gguf

        print(open_gguf(options.gguf, options.out))
    elif options.part == "rows":
        from benchmarks.real_rows import pick_rows

        sizes = {"train": options.train, "held_out": options.held_out, "longest": options.longest}
        pick_rows(options.source, options.model, options.data, **sizes)
    elif options.part == "shape":
        make_shape(options)
    else:
        parts = {"loop": run_loop, "studio": run_studio, "score": run_score}
        print("RESULT " + json.dumps(parts[options.part](options)), flush=True)
    return 0


def make_shape(options: argparse.Namespace) -> None:
    """Write the model of a shape with random weights, and rows as long as real ones."""
    import torch

    from benchmarks.make_model import make_model
    from benchmarks.real_rows import shape_rows

    if not (options.model / "config.json").is_file():
        make_model(options.shape, options.model, device="cuda" if torch.cuda.is_available() else "cpu")
    shape_rows(options.like / "examples.npz", options.data, train=options.train, held_out=options.held_out)


if __name__ == "__main__":
    sys.exit(main())
