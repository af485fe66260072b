"""Two cards, one of them held by another program: does the run take the idle one, say so, and lose nothing by it.

    python benchmarks/two_cards.py MODEL [--held 118] [--steps 12] [--card 0]

A child holds `--held` GiB of card `--card`; then `plan`, `doctor` and a run of `launch.py train` (QLoRA, packed demo
rows) are asked which card they take. Prints one line each; exit code 1 when one of them takes the card that is held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOLD = "import sys, torch; held = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"  # noqa: E501
EVENT = '{"kind"'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--held", type=float, default=118.0)
    parser.add_argument("--card", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    alone = dict(os.environ, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES=str(options.card))
    command = [sys.executable, "-c", HOLD, str(options.held)]
    holder = subprocess.Popen(
        command, env=alone, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert holder.stdout.readline().strip() == "held", "the card has not that much memory free"
        return look(options)
    finally:
        holder.terminate()


def look(options: argparse.Namespace) -> int:
    """Ask all three, print what they say, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.json")
        data = {"source": "demo", "max_length": 2048, "fill": True}
        run = {"trial": False, "samples": 0}
        settings = {"data": data, "optim": {"max_steps": options.steps}, "run": run}
        model = {"source": options.model, "quantization": "nf4"}
        recipe.write_text(json.dumps({"version": 2, "model": model} | settings), encoding="utf-8")

        def launch(*words: str) -> subprocess.CompletedProcess:
            command = [sys.executable, str(ROOT / "launch.py"), "--here", *words, "--workspace", folder]
            return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)

        planned = json.loads(launch("plan", str(recipe), "--json").stdout)["plan"]["device"]
        report = json.loads(launch("doctor", "--json").stdout)
        checks = [check["evidence"] for check in report["checks"] if check["id"] == "card"]
        told = launch("train", str(recipe), "--events").stderr.splitlines()
        events = [json.loads(line) for line in told if line.startswith(EVENT)]
        ran = next(event for event in events if event["kind"] == "run_planned")["plan"]["device"]["value"]
        speeds = [event["tokens_per_s"] for event in events if event["kind"] == "step_logged"]
    print(f"plan    {planned['value']}  {planned['reason']}")
    print(f"doctor  {' '.join(checks)}")
    print(f"run     {ran}  {sorted(speeds)[len(speeds) // 2] if speeds else 0:,.0f} tokens/s")
    return int(f"cuda:{options.card}" in (planned["value"], ran))


if __name__ == "__main__":
    sys.exit(main())
