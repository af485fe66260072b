"""What a result loses when its fp32 weights are stored in bf16: to the nearest, and stochastically as the studio does.

`rounding.py MODEL CHATS --way full --steps 60` trains real conversations by a plain loop and prints the held-out loss
of what was trained, in fp32 and rounded. An adapter is merged first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.real_loop import Loop, load_trained, score  # noqa: E402 (the folder above must be on the path first)
from benchmarks.real_rows import pick_rows, read_examples, write_examples  # noqa: E402
from studio.core.recipe import OptimSpec  # noqa: E402
from studio.engine.batches import StepOrder  # noqa: E402
from studio.engine.learning_rate import learning_rate  # noqa: E402
from studio.models.adapt import round_stochastically  # noqa: E402

RATES = {"full": 2e-5, "lora": 2e-4}
SEEDS = (0, 1)


def main() -> None:
    """Train, round and print a line for each way of storing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("chats", type=Path, help="a ShareGPT file")
    parser.add_argument("--way", choices=RATES, default="full")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=4, help="rows of a step")
    parser.add_argument("--longest", type=int, default=192, help="tokens")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        count = options.rows * options.steps
        pick_rows(options.chats, options.model, folder, train=count, held_out=100, longest=options.longest)
        rows = read_examples(write_examples(folder, options.model, options.longest, 0))
    model = load_trained(options.model, options.way, device, 0)
    print(f"before training {score(model.eval(), rows['held_out']):.4f}", flush=True)
    train(model, rows["train"], RATES[options.way], options)
    if options.way == "lora":
        model = model.merge_and_unload().float()
    print(f"fp32            {score(model.eval(), rows['held_out']):.4f}", flush=True)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    store(model, {name: weight.bfloat16() for name, weight in kept.items()})
    print(f"to the nearest  {score(model, rows['held_out']):.4f}", flush=True)
    for seed in SEEDS:
        draw = torch.Generator(device).manual_seed(seed)
        store(model, {name: round_stochastically(weight, draw) for name, weight in kept.items()})
        print(f"stochastically  {score(model, rows['held_out']):.4f}", flush=True)


def train(model: Any, rows: Any, rate: float, options: argparse.Namespace) -> None:
    """Take the steps of one epoch."""
    spec = OptimSpec(learning_rate=rate)
    loop = Loop(model.train(), rows, StepOrder(len(rows), options.rows, 0), spec)
    for step in range(options.steps):
        loss = loop.take(step, options.rows, learning_rate(spec, step, options.steps))
        if step % 10 == 0:
            print(f"step {step}: {loss:.4f}", file=sys.stderr, flush=True)


@torch.no_grad()
def store(model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Give the model, which stays fp32, the values of `weights`."""
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


if __name__ == "__main__":
    main()
