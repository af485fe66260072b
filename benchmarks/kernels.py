"""Times each op against its PyTorch twin, torch.compile and other projects: `python benchmarks/kernels.py --out CSV`.

Random bfloat16 data (kernel_cases.py); all contestants take turns; the L2 cache is overwritten before every run. Time
is the GPU's own, between two events, while the host runs ahead. `share` is the share of the copy rate (of the rate of
a large matrix product where products decide) that was measured in the same call: least bytes or products over time.
`error` is the largest difference from the twin as a share of its largest value; who is off by more than 5 % is not
timed. PEERS_SITE names a folder of packages that is looked through last, for those of other projects. `--rows 0`
tries tiny shapes on any machine, without Triton and torch.compile on a processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
# Without this file's own folder: libraries ask for a package called `kernels`, which is not this file.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]
sys.path += [folder for folder in [os.environ.get("PEERS_SITE", "")] if folder]

from studio_kernels import _triton  # noqa: E402 (the folders above must be on the path first)
from studio_kernels.dispatch import ERRORS  # noqa: E402

from benchmarks.child import ask_driver  # noqa: E402
from benchmarks.compare import hide_folders  # noqa: E402
from benchmarks.kernel_cases import Call, Workload  # noqa: E402
from benchmarks.kernel_shapes import CASES, TRY  # noqa: E402
from benchmarks.table import append_row  # noqa: E402

REPEATS = 30
WARMUPS = 5
LIMIT = 0.05
RATE_ELEMENTS = 2**29
RATE_SIDE = 8192
FLUSH_BYTES = 2 << 30
"""More than any cache; a card of less than 32 GB is given a sixteenth of its memory."""
COMPILED_SHARE = 0.6
"""After this share of the time torch.compile, which takes the longest by far, is left out."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Times calls on one device, each with cold caches."""

    device: torch.device
    flush: torch.Tensor
    """Written over before every call."""

    @classmethod
    def of(cls, device: torch.device) -> Clock:
        """Return the clock of a GPU, or of this processor."""
        size_bytes = 1
        if device.type == "cuda":
            size_bytes = min(FLUSH_BYTES, torch.cuda.get_device_properties(device).total_memory // 16)
        return cls(device, torch.empty(size_bytes, dtype=torch.uint8, device=device))

    def time_ms(self, call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
        """Return what one call takes, in milliseconds; on a GPU its own time, while the host runs ahead.

        Clearing `flush` takes a GPU longer than the host needs to launch the call.
        """
        prepare()
        self.flush.zero_()
        if self.device.type != "cuda":
            begun_s = time.perf_counter()
            call()
            return (time.perf_counter() - begun_s) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def take_memory(self, call: Callable[[], Sequence[torch.Tensor]]) -> tuple[Sequence[torch.Tensor], int]:
        """Return what a call returns, and the bytes that it takes meanwhile (0 on a processor)."""
        if self.device.type != "cuda":
            return call(), 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before_bytes = torch.cuda.memory_allocated()
        results = call()
        torch.cuda.synchronize()
        return results, torch.cuda.max_memory_allocated() - before_bytes


def measure_rates(
    clock: Clock,
    elements: int = RATE_ELEMENTS,
    side: int = RATE_SIDE,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[float, float]:
    """Return bytes a second of a copy of `elements`, and operations a second of a product of `side` x `side`."""
    one, other = (torch.empty(elements, device=clock.device, dtype=dtype).normal_() for _ in range(2))
    a, b = (torch.randn(side, side, device=clock.device).to(dtype) for _ in range(2))
    copies = [clock.time_ms(lambda: one.copy_(other)) for _ in range(REPEATS)]
    products = [clock.time_ms(lambda: torch.mm(a, b)) for _ in range(REPEATS)]
    copy_rate = 2 * one.nbytes / statistics.median(copies) * 1e3
    return copy_rate, 2 * side**3 / statistics.median(products) * 1e3


def prepare_of(workload: Workload, call: Call) -> Callable[[], object]:
    """What is done before a run of this call."""
    own = getattr(call, "prepare", None)
    return own or workload.prepare


def check(workload: Workload, clock: Clock) -> tuple[dict[str, float], dict[str, str], dict[str, int]]:
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
            results, peaks[name] = clock.take_memory(call)
        except (*ERRORS, NotImplementedError) as error:
            left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
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
    workload: Workload, clock: Clock, rates: tuple[float, float], skip: Collection[str]
) -> list[dict[str, object]]:
    """The rows of one workload, one a contestant."""
    calls = {name: call for name, call in workload.calls.items() if name not in skip}
    workload = dataclasses.replace(workload, calls=calls)
    errors, left_out, peaks = check(workload, clock)
    times: dict[str, list[float]] = {name: [] for name in errors}
    for repeat in range(WARMUPS + REPEATS):
        for name in times:
            elapsed_ms = clock.time_ms(calls[name], prepare_of(workload, calls[name]))
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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("kernels.csv"), help="the CSV file to append to")
    parser.add_argument("--ops", nargs="*", default=list(CASES), choices=list(CASES), help="these ops only")
    parser.add_argument(
        "--skip", nargs="*", default=[], help="contestants that are left out, such as compiled"
    )
    parser.add_argument("--seconds", type=float, default=280.0, help="time that all of it may take")
    parser.add_argument("--rows", default="10", choices=("10", "0"), help="0: a try on any machine")
    return parser.parse_args(arguments)


def read_machine(clock: Clock, rates: tuple[float, float], arguments: Sequence[str]) -> dict[str, str]:
    """Return the columns that say on what was measured, and how."""
    cuda = clock.device.type == "cuda"
    return {
        "copy_gb_per_s": f"{rates[0] / 1e9:.0f}",
        "gemm_tflop_per_s": f"{rates[1] / 1e12:.3g}",
        "gpu": torch.cuda.get_device_name() if cuda else "CPU",
        "driver": ask_driver("driver_version") if cuda else "",
        "torch": torch.__version__,
        "triton": getattr(_triton.triton, "__version__", ""),
        "cuda": torch.version.cuda or torch.version.hip or "",
        "python": platform.python_version(),
        "liger": find_version("liger-kernel"),
        "bitsandbytes": find_version("bitsandbytes"),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python benchmarks/kernels.py", *hide_folders(arguments)]),
    }


def find_version(package: str) -> str:
    """Return the version of an installed package, "" where it is not."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints and appends rows; exit code 2 without a GPU or without Triton, 1 where our kernels were left out."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse(arguments)
    tries = options.rows == "0"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not tries and (device.type == "cpu" or not _triton.importable().ok):
        print(f"This benchmark needs a GPU and Triton. {_triton.importable().reason}", file=sys.stderr)
        return 2
    skip = {*options.skip, *(("triton", "compiled") if device.type == "cpu" else ())}
    begun_s = time.monotonic()
    clock = Clock.of(device)
    rates = measure_rates(clock, *((2**16, 64) if tries else ()))
    machine = read_machine(clock, rates, arguments)
    torch.manual_seed(0)
    lost = 0
    cases = TRY if tries else CASES
    for op, case in [(name, case) for name in options.ops for case in cases[name]]:
        if time.monotonic() - begun_s > options.seconds:
            print(f"left out: {op} (time)", flush=True)
            continue
        with torch.device(device):
            for workload in case():
                torch.compiler.reset()  # there is a limit of variants a function
                late = time.monotonic() - begun_s > COMPILED_SHARE * options.seconds
                rows = measure(workload, clock, rates, skip | ({"compiled"} if late else set()))
                lost += "triton" not in {row["implementation"] for row in rows} | skip
                for row in rows:
                    append_row(options.out, row | machine)
                    print(" ".join(str(value) for value in row.values()), flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
