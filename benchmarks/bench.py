"""The short benchmark of `launch.py bench`: this machine's rates, the ops beside their twins, and one training step.

It answers in JSON lines: {"doing": NAME} before each part and {"result": ...} at the end. On a processor no ops are
timed, and the studio trains by the model's own forward there, as its runs do. `--tiny` tries it in seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
# Without this file's own folder: libraries ask for a package called `kernels`, which is not benchmarks/kernels.py.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from studio_kernels.dispatch import importable, op_named  # noqa: E402 (the folders above must be on the path first)

from benchmarks import compare  # noqa: E402
from benchmarks.cases import Case  # noqa: E402
from benchmarks.child import ask_driver, find_lacking  # noqa: E402
from benchmarks.kernel_shapes import QUICK  # noqa: E402
from benchmarks.kernels import Clock, find_version, measure, measure_rates  # noqa: E402

SECONDS = 240.0
"""What the training may take at most; on a slow card it is the larger part."""
PACKAGES = ("transformers", "peft", "bitsandbytes", "triton")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MIB = 2**20


def tell(**values: Any) -> None:
    """Tell who started this."""
    print(json.dumps(values), flush=True)


def choose_dtype(device: torch.device) -> str:
    """Return the number format that runs on this device have: cards before Ampere have no fast bfloat16."""
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"


def read_machine(device: torch.device) -> dict[str, str]:
    """Return on what is measured: card and driver (or processor), versions, date."""
    versions = {name: find_version(name) for name in PACKAGES}
    cuda = device.type == "cuda"
    return {
        "gpu": torch.cuda.get_device_name(device) if cuda else "",
        "driver": ask_driver("driver_version") if cuda else "",
        "torch": torch.__version__,
        **{name: version for name, version in versions.items() if version},
        "date": datetime.date.today().isoformat(),
    }


def time_rates(clock: Clock, dtype: str, tiny: bool) -> tuple[float, float]:
    """Return bytes a second of a copy and operations a second of a matrix product, on arrays that any card holds."""
    elements, side = (2**16, 64) if tiny else (2**27, 4096) if clock.device.type == "cuda" else (2**24, 1024)
    return measure_rates(clock, elements, side, DTYPES[dtype])


def refuse_kernels(device: torch.device) -> str:
    """Return why no op is timed here: `processor`, `triton` or `old` (a card without bfloat16); "" where they are."""
    if device.type != "cuda":
        return "processor"
    if not importable().ok:
        return "triton"
    return "" if choose_dtype(device) == "bf16" else "old"


def time_kernels(clock: Clock, rates: tuple[float, float]) -> list[dict[str, Any]]:
    """Return for each direction of each op what ours and its PyTorch twin reach; those that fail are left out."""
    found = []
    capability = torch.cuda.get_device_capability(clock.device)
    for name, cases in QUICK.items():
        support = op_named(name).supports(
            device_type="cuda", capability=capability, dtype=torch.bfloat16, width=4096
        )
        if not support.ok:
            continue
        with torch.device(clock.device):
            for workload in (workload for case in cases for workload in case()):
                others = set(workload.calls) - {"reference", "triton"}
                rows = {row["implementation"]: row for row in measure(workload, clock, rates, others)}
                if "triton" in rows:
                    found.append(join(rows["triton"], rows["reference"]))
        torch.cuda.empty_cache()
    return found


def join(ours: dict[str, Any], twin: dict[str, Any]) -> dict[str, Any]:
    """Return one line of two rows of kernels.py."""
    same = {name: ours[name] for name in ("op", "direction", "shape", "unit")}
    numbers = {"rate": ours["rate"], "share": ours["share"], "twin_rate": twin["rate"]}
    return (
        same
        | {name: float(value) for name, value in numbers.items()}
        | {"times_faster": float(ours["times_faster"])}
    )


def make_cases(device: torch.device, dtype: str, tiny: bool) -> tuple[Case, Case]:
    """Return the same training by transformers + peft and by the studio: LoRA of rank 16, nothing recomputed by theirs.

    The studio may use as much memory as they needed. On a card with bitsandbytes the frozen weights have 4 bits and
    the optimizer's state 8.
    """
    cuda = device.type == "cuda"
    quantised = cuda and not find_lacking("hf")
    shape, batch, tokens = ("llama-3b-slice", 2, 1024) if cuda else ("smollm-slice", 1, 256)
    if tiny:
        shape, batch, tokens = "tiny", 2, 64
    theirs = Case(
        name="bench.hf",
        rows=(),
        shape=shape,
        stack="hf",
        bits=4 if quantised else 16,
        checkpointing="none",
        batch=batch,
        tokens=tokens,
        dtype=dtype,
        optimizer="adamw_8bit" if quantised else "adamw",
        warmup_steps=1 if tiny else 3,
        steps=2 if tiny else 10,
        step_s=1.0,
    )
    ours = dataclasses.replace(
        theirs,
        name="bench.ours",
        stack="ours",
        checkpointing="auto",
        stock=not cuda,
        budget_of=theirs.name if cuda else "",
    )
    return theirs, ours


def time_training(cases: Sequence[Case], device: torch.device, scratch: Path) -> dict[str, Any]:
    """Return tokens a second and peak memory of each way, every one in a process of its own.

    They take turns, so that what else the machine does disturbs all alike; one after another where one is to have the
    memory that the other needed.
    """
    options = compare.parse(
        ["--models", str(scratch), "--out", str(scratch / "bench.csv"), "--device", str(device)]
    )
    session = compare.Session(
        options=options, machine={}, memory_mib=0, command="", deadline_s=time.monotonic() + SECONDS
    )
    folder, _ = compare.make_model(cases[0].shape, session, scratch)
    ways = []
    apart = any(case.budget_of for case in cases)
    children = []
    for group in [[case] for case in cases] if apart else [cases]:
        for case in group:
            tell(doing=case.stack)
        children += compare.run_side_by_side(group, folder, session, scratch)
    for child in children:
        row = child.row
        ways.append(
            {
                "stack": child.case.stack,
                "state": row["state"],
                "error": row.get("error", ""),
                "tokens_per_s": round(statistics.median(child.rates)) if child.rates else None,
                "peak_bytes": row["peak_mib"] * MIB if row.get("peak_mib") else None,
                "first_loss": row.get("loss0"),
            }
        )
    setting = cases[0]
    names = ("shape", "bits", "batch", "tokens", "dtype", "optimizer")
    return {**{name: getattr(setting, name) for name in names}, "ways": ways}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and tell the result; exit code 1 when a way of training failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="try it with tiny arrays and a tiny model")
    options = parser.parse_args(arguments)
    begun_s = time.monotonic()
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dtype, machine = choose_dtype(device), read_machine(device)
    torch.manual_seed(0)
    tell(doing="rates")
    clock = Clock.of(device)
    rates = time_rates(clock, dtype, options.tiny)
    refused = refuse_kernels(device)
    kernels: list[dict[str, Any]] = []
    if not refused:
        tell(doing="kernels")
        kernels = time_kernels(clock, rates)
    del clock
    if device.type == "cuda":
        torch.cuda.empty_cache()
    tell(doing="model")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as scratch:
        training = time_training(make_cases(device, dtype, options.tiny), device, Path(scratch))
    result = {
        "machine": machine,
        "rates": {
            "copy_gb_per_s": round(rates[0] / 1e9, 1),
            "matrix_tflop_per_s": round(rates[1] / 1e12, 3),
            "dtype": dtype,
        },
        "kernels_left_out": refused,
        "kernels": kernels,
        "training": training,
        "seconds": round(time.monotonic() - begun_s, 1),
    }
    tell(result=result)
    return 1 if any(way["state"] != "measured" for way in training["ways"]) else 0


if __name__ == "__main__":
    sys.exit(main())
