"""Times each op against its PyTorch twin, torch.compile and other projects: `python benchmarks/kernels.py --out CSV`.

Random bfloat16 data (kernel_cases.py); all contestants take turns; the L2 cache is overwritten before every run. Time
is the GPU's own, between two events, while the host runs ahead. `share` is the share of the copy rate (of the rate of
a large matrix product where products decide) that was measured in the same call: least bytes or products over time.
`error` is the largest difference from the twin as a share of its largest value; who is off by more than 5 % is not
timed. PEERS_SITE names a folder of packages that is looked through last, for those of other projects.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
sys.path += [folder for folder in [os.environ.get("PEERS_SITE", "")] if folder]

from studio_kernels import _triton  # noqa: E402 (the folders above must be on the path first)
from studio_kernels.dispatch import ERRORS  # noqa: E402

from benchmarks.kernel_cases import CASES, Call, Workload  # noqa: E402

REPEATS = 30
WARMUPS = 5
LIMIT = 0.05
RATE_ELEMENTS = 2**29
RATE_SIDE = 8192


def time_ms(call: Callable[[], object], prepare: Callable[[], object], flush: torch.Tensor) -> float:
    """One run in milliseconds; clearing `flush` takes longer than the host needs to launch the call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    prepare()
    flush.zero_()
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measure_rates(flush: torch.Tensor) -> tuple[float, float]:
    """Bytes a second of a copy and products and sums a second of a bfloat16 matrix product, on this GPU."""
    one, other = (torch.randn(RATE_ELEMENTS, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    a, b = (torch.randn(RATE_SIDE, RATE_SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copies = [time_ms(lambda: one.copy_(other), lambda: None, flush) for _ in range(REPEATS)]
    products = [time_ms(lambda: torch.mm(a, b), lambda: None, flush) for _ in range(REPEATS)]
    copy_rate = 2 * one.nbytes / statistics.median(copies) * 1e3
    return copy_rate, 2 * RATE_SIDE**3 / statistics.median(products) * 1e3


def prepare_of(workload: Workload, call: Call) -> Callable[[], object]:
    """What is done before a run of this call."""
    own = getattr(call, "prepare", None)
    return own or workload.prepare


def check(workload: Workload) -> tuple[dict[str, float], dict[str, str], dict[str, int]]:
    """Run each contestant once: errors of those to be timed, reasons why others are not, and the bytes a run takes."""
    errors: dict[str, float] = {}
    left_out: dict[str, str] = {}
    peaks: dict[str, int] = {}
    expected: list[torch.Tensor] = []
    for name in ("reference", *(name for name in workload.calls if name != "reference")):
        call = workload.calls[name]
        try:
            prepare_of(workload, call)()
            call()  # compiles, tunes
            prepare_of(workload, call)()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before_bytes = torch.cuda.memory_allocated()
            results = call()
            torch.cuda.synchronize()
        except (*ERRORS, NotImplementedError) as error:
            left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        peaks[name] = torch.cuda.max_memory_allocated() - before_bytes
        if name == "reference":
            expected = [result.clone() for result in results]
        found = [difference(*pair) for pair in zip(results, expected, strict=False)]
        error = max(
            found, default=float("nan")
        )  # nan: the contestant draws its own numbers, or gives another form
        if error > LIMIT or any(each != each for each in found):
            left_out[name] = f"off by {error:.3g}"
        else:
            errors[name] = error
    return errors, left_out, peaks


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference as a share of the largest value, without a copy of either in float32."""
    if ours.shape != theirs.shape:
        return float("nan")
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def measure(
    workload: Workload, flush: torch.Tensor, rates: tuple[float, float], skip: Sequence[str]
) -> list[dict[str, object]]:
    """The rows of one workload, one a contestant."""
    calls = {name: call for name, call in workload.calls.items() if name not in skip}
    workload = Workload(
        **{name: getattr(workload, name) for name in workload.__dataclass_fields__} | {"calls": calls}
    )
    errors, left_out, peaks = check(workload)
    times: dict[str, list[float]] = {name: [] for name in errors}
    for repeat in range(WARMUPS + REPEATS):
        for name in times:
            elapsed_ms = time_ms(calls[name], prepare_of(workload, calls[name]), flush)
            if repeat >= WARMUPS:
                times[name].append(elapsed_ms)
    rows = []
    for name, elapsed in times.items():
        median_ms = statistics.median(elapsed)
        work, rate = (workload.flops, rates[1]) if workload.flops else (workload.floor_bytes, rates[0])
        rows.append(
            {
                "op": workload.op,
                "direction": workload.direction,
                "shape": workload.shape,
                "implementation": name,
                "median_ms": f"{median_ms:.4f}",
                "fastest_ms": f"{min(elapsed):.4f}",
                "rate": f"{work / median_ms / (1e9 if workload.flops else 1e6):.0f}",
                "unit": "TFLOP/s" if workload.flops else "GB/s",
                "share": f"{work / median_ms * 1e3 / rate:.3f}",
                "times_faster": f"{statistics.median(times['reference']) / median_ms:.2f}",
                "error": f"{errors[name]:.2g}",
                "peak_mib": f"{peaks[name] / 2**20:.0f}",
            }
        )
    for name, reason in left_out.items():
        print(
            f"{workload.op} {workload.direction} {workload.shape}: {name} left out: {reason}", file=sys.stderr
        )
    return rows


def main() -> int:
    """Prints and writes the table; exit code 2 without a GPU or without Triton, 1 where our kernels were left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("kernels.csv"), help="the CSV file to write")
    parser.add_argument("--ops", nargs="*", default=list(CASES), choices=list(CASES), help="these ops only")
    parser.add_argument(
        "--skip", nargs="*", default=[], help="contestants that are left out, such as compiled"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available() or not _triton.importable().ok:
        print(f"This benchmark needs a GPU and Triton. {_triton.importable().reason}", file=sys.stderr)
        return 2
    flush_bytes = min(2 << 30, torch.cuda.get_device_properties(0).total_memory // 16)
    flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")
    rates = measure_rates(flush)
    machine = {
        "copy_gb_per_s": f"{rates[0] / 1e9:.0f}",
        "gemm_tflop_per_s": f"{rates[1] / 1e12:.0f}",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": _triton.triton.__version__,
        "cuda": torch.version.cuda or torch.version.hip,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python benchmarks/kernels.py", *sys.argv[1:]]),
    }
    torch.manual_seed(0)
    table, lost = [], 0
    for op in options.ops:
        for case in CASES[op]:
            for workload in case():
                torch.compiler.reset()  # there is a limit of variants a function
                rows = measure(workload, flush, rates, options.skip)
                lost += "triton" not in {row["implementation"] for row in rows}
                table += [row | machine for row in rows]
                for row in rows:
                    print(" ".join(str(value) for value in row.values()), flush=True)
            torch.cuda.empty_cache()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
