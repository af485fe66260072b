"""Times each kernel against its PyTorch twin on this machine's GPU: `python benchmarks/kernels.py --out FILE.csv`.

Forward, and forward with backward; random bfloat16 data; both sides alternate; the L2 cache is overwritten before
every run. Time is the GPU's own, between two events, while the host runs ahead. `gb_per_s` divides the bytes that an
ideal kernel would move by the time.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from studio_kernels import _triton  # noqa: E402 (the folder above must be on the path first)
from studio_kernels.dispatch import IMPLEMENTATIONS, bind  # noqa: E402

REPEATS = 30
WARMUPS = 5
BYTES = 2
"""Of one bfloat16 element."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One op on one shape; `accesses` are the elements read and written per element, (forward, with backward)."""

    op: str
    rows: int
    width: int
    weight_trained: bool
    accesses: tuple[int, int]


WORKLOADS = (
    *(
        Workload(op="rms_norm", rows=rows, width=width, weight_trained=trained, accesses=(2, 5))
        for rows, width in ((131072, 128), (4096, 2304), (4096, 4096), (16384, 4096), (4096, 8192))
        for trained in (False, True)
    ),
    *(
        Workload(op="swiglu", rows=rows, width=width, weight_trained=False, accesses=(3, 8))
        for rows, width in ((1024, 3072), (4096, 11008), (4096, 14336), (16384, 14336))
    ),
)


def calls(workload: Workload, implementation: str) -> dict[str, Callable]:
    """Direction -> a function that runs it once; the same data for each implementation."""
    generator = torch.Generator("cuda").manual_seed(0)
    kernels = bind({workload.op: implementation})

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()

    a, b = draw(workload.rows, workload.width), draw(workload.rows, workload.width)
    dy = draw(workload.rows, workload.width).detach()
    if workload.op == "rms_norm":
        weight = draw(workload.width).requires_grad_(workload.weight_trained)
        inputs = (a, weight) if workload.weight_trained else (a,)

        def forward():
            return kernels.rms_norm(a, weight, 1e-6, 0, "cast_then_scale")
    else:
        inputs = (a, b)

        def forward():
            return kernels.swiglu(a, b)

    return {"forward": forward, "forward+backward": lambda: torch.autograd.grad(forward(), inputs, dy)}


def check(both: dict[str, dict[str, Callable]]) -> None:
    """Nothing is timed that computes something else.

    Raises:
        ValueError: a gradient is off by more than bfloat16 explains.
    """
    gradients = [both[implementation]["forward+backward"]() for implementation in IMPLEMENTATIONS]
    for one, other in zip(*gradients, strict=True):
        error = ((one - other).abs().max() / one.abs().max()).item()
        if not error < 0.05:
            raise ValueError(f"the implementations disagree by {error:.3g}")


def time_ms(call: Callable, flush: torch.Tensor) -> float:
    """One run in milliseconds; clearing `flush` takes longer than the host needs to launch the call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measure(workload: Workload, flush: torch.Tensor) -> list[dict[str, object]]:
    """The rows of one workload, both directions and implementations."""
    both = {implementation: calls(workload, implementation) for implementation in IMPLEMENTATIONS}
    check(both)
    rows = []
    for direction, accesses in zip(("forward", "forward+backward"), workload.accesses, strict=True):
        times: dict[str, list[float]] = {implementation: [] for implementation in IMPLEMENTATIONS}
        for repeat in range(WARMUPS + REPEATS):
            for implementation in IMPLEMENTATIONS:
                elapsed_ms = time_ms(both[implementation][direction], flush)
                if repeat >= WARMUPS:
                    times[implementation].append(elapsed_ms)
        ideal_bytes = accesses * workload.rows * workload.width * BYTES
        for implementation, elapsed in times.items():
            median_ms = statistics.median(elapsed)
            rows.append(
                {
                    "op": workload.op,
                    "direction": direction,
                    "rows": workload.rows,
                    "width": workload.width,
                    "dtype": "bfloat16",
                    "weight_trained": workload.weight_trained,
                    "implementation": implementation,
                    "median_ms": f"{median_ms:.4f}",
                    "fastest_ms": f"{min(elapsed):.4f}",
                    "gb_per_s": f"{ideal_bytes / median_ms / 1e6:.0f}",
                    "times_faster": f"{statistics.median(times['reference']) / median_ms:.2f}",
                }
            )
    return rows


def main() -> int:
    """Prints and writes the table; exit code 2 without a GPU or without Triton."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("kernels.csv"), help="the CSV file to write")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not _triton.importable().ok:
        print(f"This benchmark needs a GPU and Triton. {_triton.importable().reason}", file=sys.stderr)
        return 2
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": _triton.triton.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/kernels.py --out {options.out.name}",
    }
    flush_bytes = min(2 << 30, torch.cuda.get_device_properties(0).total_memory // 16)
    flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")
    table = []
    for workload in WORKLOADS:
        for row in measure(workload, flush):
            table.append(row | machine)
            print(" ".join(str(value) for value in row.values()), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
