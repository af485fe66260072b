"""The wait before the first step: `first_step.py MODEL --way qlora --starts 5` takes it by the real command line.

From the moment before `launch.py --here train RECIPE --json` is started to the time of the run's first step_logged. The
first start has an empty workspace (no kept facts, compiled kernels, converted data); the others follow in the same
one. What is cached beside that is said: files of the model that were read before lie in the system's memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.make_model import SHAPES, make_model  # noqa: E402 (the folder above must be on the path first)
from benchmarks.train import WAYS, train, write_recipe  # noqa: E402

ENDS = ("train", "save", "verify")
"""Phases from whose beginning on the first step is computed, or is done."""


def time_start(recipe: Path, workspace: Path) -> dict[str, float]:
    """Run `recipe` once; return the seconds of every part until its first step, `verify`, `all` and `total`.

    Raises RuntimeError when the run did not finish.
    """
    answer, folder, started_s = train(recipe, workspace)
    if answer["state"] != "finished":
        raise RuntimeError(json.dumps(answer["diagnosis"]))
    took_s = time.time() - started_s
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    first_s = next(event["time_s"] for event in events if event["kind"] == "step_logged") - started_s
    parts = {name: value for name, value in record["timings_s"].items() if name not in ENDS}
    begun_s = next(event["time_s"] for event in events if event["kind"] == "phase_started") - started_s
    known_s = sum(value for name, value in parts.items() if name.startswith("start_"))
    # Python's own start before the first line of launch.py, and what lies between the marks.
    return {
        "start_python": begun_s - known_s,
        **parts,
        "step": first_s - begun_s - (sum(parts.values()) - known_s),
        "first_step": first_s,
        "verify": record["timings_s"]["verify"],
        "command": took_s,
    }


def tabulate(first: dict[str, float], warm: list[dict[str, float]]) -> list[str]:
    """Return the lines of a table: a part, its seconds at the first start, the median of the warm ones and each."""
    names = list(dict.fromkeys([*first, *(name for start in warm for name in start)]))
    lines = [f"{'part':18} {'first':>7} {'median':>7}   warm starts"]
    for name in names:
        values = [start.get(name, 0.0) for start in warm]
        middle = f"{statistics.median(values):7.2f}" if values else " " * 7
        each = " ".join(f"{value:6.2f}" for value in values)
        lines.append(f"{name:18} {first.get(name, 0.0):7.2f} {middle}   {each}")
    return lines


def main() -> int:
    """Measure and print; exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "model", help=f"a model's folder, or a shape to make in --models: {', '.join(SHAPES)}"
    )
    parser.add_argument("--way", choices=WAYS, default="qlora")
    parser.add_argument("--data", type=Path, help="a data set; the made model's own conversations by default")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "studio-models")
    parser.add_argument("--starts", type=int, default=5, help="warm ones, after the first")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    options = parser.parse_args()
    model = Path(options.model)
    if options.model in SHAPES:
        model = options.models / options.model
        if not (model / "config.json").is_file():
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            make_model(options.model, model, device=device, tokens=options.tokens)
    workspace = Path(tempfile.mkdtemp(prefix="studio-first-step-"))
    recipe = write_recipe(
        workspace / "recipe.json",
        model.absolute(),
        options.way,
        steps=1,
        micro_batch=options.micro_batch,
        tokens=options.tokens,
        run={},
    )
    if options.data:
        words = json.loads(recipe.read_text(encoding="utf-8"))
        words["data"]["source"] = str(options.data.absolute())
        recipe.write_text(json.dumps(words), encoding="utf-8")
    try:
        first = time_start(recipe, workspace)
        warm = [time_start(recipe, workspace) for _ in range(options.starts)]
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    if options.json:
        answer: dict[str, Any] = {"model": model.name, "way": options.way, "first": first, "warm": warm}
        answer["median_s"] = statistics.median(s["first_step"] for s in warm) if warm else None
        print(json.dumps(answer))
    else:
        print(f"{model.name}, {options.way}; seconds; the workspace was empty before the first start")
        print("\n".join(tabulate(first, warm)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
