"""Compares predicted with measured peak memory: `memory.py --models DIR --out FILE.csv`, 12 cases in as many processes.

Predicted by studio.planning.memory_estimate, measured by torch's allocator and by NVML,
on the bare training step of step.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.cases import MAKE_S  # noqa: E402 (the folder above must be on the path first)
from benchmarks.child import ask_driver, make_environment  # noqa: E402
from benchmarks.draft import draft_run  # noqa: E402
from benchmarks.table import append_row  # noqa: E402
from studio.core.facts import ModelFacts  # noqa: E402
from studio.core.memory_policy import Calibration, LayerPolicy, MemoryPolicy  # noqa: E402
from studio.models.catalog import inspect_model  # noqa: E402
from studio.planning.memory_estimate import count_allocated, estimate_calibration, predict  # noqa: E402

MIB = 2**20
STEPS = 3
"""The second one has the optimizer's moments; the third is for safety."""
CASE_S = 30
"""Expected of one case's process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCase:
    """One prediction to check."""

    shape: str
    bits: int
    keep: str
    """What every layer keeps for its backward pass: a level of studio.core.memory_policy."""
    batch: int = 2
    tokens: int = 2048


CASES = tuple(
    MemoryCase(shape=shape, bits=bits, keep=keep)
    for shape in ("qwen3-0.6b", "gemma3-4b", "llama-8b")
    for bits in (4, 16)
    for keep in ("all", "input")
)


TRY = (MemoryCase(shape="tiny", bits=16, keep="input", tokens=64),)
"""A try of the benchmark itself on any machine."""


def make_policy(case: MemoryCase, model: ModelFacts) -> MemoryPolicy:
    """Return what the case keeps of each layer."""
    return MemoryPolicy(layers=(LayerPolicy(keep=case.keep),) * model.layers)


def predict_parts(
    case: MemoryCase,
    model: ModelFacts,
    device: str,
    followed: MemoryPolicy | None,
    calibration: Calibration | None = None,
) -> dict[str, int]:
    """Return what is predicted by part, in bytes; `followed` is the step's policy, None for the stock forward."""
    recompute = case.keep != "all"
    plan, recipe = draft_run(
        model, bits=case.bits, batch=case.batch, tokens=case.tokens, device=device, recompute=recompute
    )
    return dict(predict(plan, model, recipe, followed, calibration=calibration))


def measure(case: MemoryCase, folder: Path, device: str) -> dict[str, Any]:
    """Take STEPS steps in this process; returns the columns that were measured and predicted."""
    from studio.machine.nvml import sample_gpu

    before = sample_gpu(0)
    import torch

    from benchmarks.batches import draw_batches
    from benchmarks.cases import Case
    from benchmarks.step import build_step

    model = inspect_model(str(folder))
    policy = make_policy(case, model)
    step = build_step(
        folder, bits=case.bits, batch=case.batch, tokens=case.tokens, policy=policy, device=device
    )
    like = Case(
        name="memory", rows=(8,), shape=case.shape, stack="ours", bits=case.bits, checkpointing="auto",
        batch=case.batch, tokens=case.tokens,
    )  # fmt: skip
    batches = draw_batches(like, model.vocabulary, torch.device(device))
    cuda = device != "cpu"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        begun_s = time.perf_counter()
        loss = float(step(next(batches)))
        step_s = time.perf_counter() - begun_s
    after = sample_gpu(0)
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    reserved = torch.cuda.max_memory_reserved() if cuda else 0
    # As a first run on the card plans; a later one knows what was measured.
    vram_bytes = torch.cuda.get_device_properties(device).total_memory if cuda else 0
    calibration = estimate_calibration(vram_bytes) if cuda else None
    parts = predict_parts(case, model, device, step.policy, calibration)
    total, allocated = sum(parts.values()), count_allocated(parts)
    shown = after[1] - before[1] if before and after else 0
    return {
        **dataclasses.asdict(case),
        "predicted_mib": round(allocated / MIB),
        "peak_mib": round(peak / MIB),
        "error": f"{allocated / peak - 1:.4f}" if peak else "0",
        "predicted_total_mib": round(total / MIB),
        "nvml_mib": round(shown / MIB),
        "total_error": f"{total / shown - 1:.4f}" if shown else "0",
        "reserved_mib": round(reserved / MIB),
        "step_s": f"{step_s:.4f}",
        "loss": f"{loss:.4f}",
        "parts": " ".join(f"{part}={size / MIB:.0f}" for part, size in parts.items()),
        "torch": torch.__version__,
    }


def run(case: MemoryCase, options: argparse.Namespace) -> dict[str, Any] | str:
    """Measure a case in a process of its own; returns its columns, or the last line that the process said."""
    order = json.dumps(dataclasses.asdict(case))
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            __file__,
            "--models",
            str(options.models),
            "--device",
            options.device,
            "--one",
            order,
        ],
        env=make_environment("ours"),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return json.loads(found[-1])


def make_missing(shape: str, models: Path) -> None:
    """Write the model of a shape where it is not there. Raises CalledProcessError when that fails."""
    if not (models / shape / "model.safetensors.index.json").is_file():
        subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "make_model.py"), shape, str(models / shape)],
            env=make_environment("ours"),
            check=True,
        )


def main(arguments: Sequence[str] | None = None, cases: Sequence[MemoryCase] = CASES) -> int:
    """Check what fits into the time; exit code 1 when a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder that holds the models, or will")
    parser.add_argument("--shapes", default="", help="only these: qwen3-0.6b,llama-8b")
    parser.add_argument("--seconds", type=float, default=550.0, help="time that all of it may take")
    parser.add_argument("--out", type=Path, default=Path("memory.csv"), help="the CSV file to append to")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--rows", default="8", choices=("8", "0"), help="0: a try on any machine")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        case = MemoryCase(**json.loads(options.one))
        print(json.dumps(measure(case, options.models / case.shape, options.device)))
        return 0
    deadline_s = time.monotonic() + options.seconds
    gpu, driver = (*ask_driver("name,driver_version").split(", "), "")[:2]
    command = f"python benchmarks/memory.py --models DIR --out {options.out.name}"
    machine = {
        "gpu": gpu or "CPU",
        "driver": driver,
        "date": datetime.date.today().isoformat(),
        "command": command,
    }
    failed = False
    for case in TRY if options.rows == "0" else cases:
        if options.shapes and case.shape not in options.shapes.split(","):
            continue
        new = not (options.models / case.shape).is_dir()
        if deadline_s - time.monotonic() < CASE_S + new * MAKE_S[case.shape]:
            print(f"left out: {case}", flush=True)
            continue
        make_missing(case.shape, options.models)
        row = run(case, options)
        failed |= isinstance(row, str)
        print(f"{case.shape} {case.bits} {case.keep}: {row}", flush=True)
        if not isinstance(row, str):
            append_row(options.out, row | machine)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
