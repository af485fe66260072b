"""`launch.py bench --tune`: finds tile sizes and warps that are faster on this GPU than the rules in the ops' files.

It answers in JSON lines: {"doing": "tune", "op": OP} before each op and {"result": ...} at the end, and writes what it
found to `--out` (studio_kernels/tuned_configs.py reads it). A candidate goes the way of the file that it would stand
in: it is written to one of its own, checked against the op's PyTorch twin, and timed in turns with the rule. The
fastest is timed once more against the rule alone, so that the best of several draws of chance is not taken for a gain.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
# Without this file's own folder: libraries ask for a package called `kernels`, which is not benchmarks/kernels.py.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != ROOT / "benchmarks"]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from studio_kernels import self_test, tuned_configs  # noqa: E402 (the folders above must be on the path first)
from studio_kernels.dispatch import ERRORS, op_named  # noqa: E402
from studio_kernels.dropout import HALVES, LANES  # noqa: E402
from studio_kernels.op import Op  # noqa: E402

from benchmarks.bench import refuse_kernels, tell  # noqa: E402
from benchmarks.kernel_cases import (  # noqa: E402
    Workload,
    dequantisations,
    dropouts,
    gates,
    heads,
    norms,
    plain_norms,
    ropes,
    updates,
)
from benchmarks.kernels import Clock  # noqa: E402
from studio.core.atomic_files import replace_file  # noqa: E402

SECONDS = 150.0
"""No bucket is begun later, and no candidate of one."""
GAIN = 1.03
"""Less is not told from chance."""
TURNS, FINAL_TURNS = 9, 25
WARMUPS = 2

SPAN = HALVES * LANES
BUCKETS: tuple[tuple[str, int, Callable[[], Iterator[Workload]], tuple[Mapping[str, int], ...]], ...] = (
    *(
        ("rms_norm", width, partial(norms, 4096, width), ({"width": width}, {"width": width * 5 // 8}))
        for width in (1024, 2048, 4096, 8192)
    ),
    ("rms_norm", 128, partial(plain_norms, 131072, 128), ({"width": 128}, {"width": 80})),
    *(
        ("glu", width, partial(gates, 2048, width, "silu"), ({"width": width}, {"width": width * 5 // 8}))
        for width in (8192, 16384)
    ),
    ("rope", 128, partial(ropes, 4096, 32, 8, 128), ({"width": 1024}, {"width": 1024, "norms": True})),
    ("nf4", 4096, partial(dequantisations, 4096, 4096), ({"width": 4096}, {"width": 2560})),
    ("nf4", 16384, partial(dequantisations, 2048, 16384), ({"width": 16384}, {"width": 14336})),
    ("dropout", SPAN, partial(dropouts, 4096, 4096), ({"width": 4096}, {"width": 1000})),
    ("adamw", tuned_configs.bucket_of(4096), partial(updates, 8_388_608), ({"width": 4096}, {"width": 1001})),
    # Hidden states of 64: the tiles of logits, not the products, take the time.
    *(
        (
            "linear_cross_entropy",
            words,
            partial(heads, 1024, 64, words),
            ({"width": 64, "vocabulary": words}, {"width": 64, "vocabulary": words * 3 // 4 + 1}),
        )
        for words in (32768, 131072)
    ),
)
"""Op, bucket, the workloads that are timed, and the samples (of 257 rows) on which a candidate must be right. 128,256
words lie in the bucket of 131,072. Cards of 4 GB have room for each."""


def write(path: Path, entries: tuned_configs.Entries, device: torch.device) -> None:
    """Put the file there whole; without entries there is none. Raises OSError."""
    if not entries:
        path.unlink(missing_ok=True)
        return
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(tuned_configs.spell(entries, tuned_configs.describe(device)), encoding="utf-8")
    replace_file(beside, path)


class Trial:
    """Makes one entry, or none, the one that ops on this GPU take."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.folder, self.device, self.paths = folder, device, {}

    def take(self, op: str, bucket: int, options: Mapping[str, int] | None) -> None:
        """Let `op` use `options` for `bucket` from now on; None is the rule."""
        path = ""
        if options is not None:
            key = op, bucket, *options.values()
            if key not in self.paths:
                self.paths[key] = self.folder / f"{len(self.paths)}.json"
                write(self.paths[key], {op: {bucket: dict(options)}}, self.device)
            path = str(self.paths[key])
        os.environ[tuned_configs.VARIABLE] = path
        tuned_configs.forget()


def is_right(op: Op, samples: Sequence[self_test.Run]) -> bool:
    """Whether the kernels as they stand agree with their twin in every sample; what does not launch does not."""
    try:
        errors = [self_test.compare(op, sample) for sample in samples]
    except ERRORS:  # shared memory, registers, a compiler's limit: a candidate that this card does not take
        return False
    return all(self_test.judge(error, torch.bfloat16, 0.0)["ok"] for error in errors)


def time_in_turns(
    clock: Clock, workloads: Sequence[Workload], ways: Sequence[Callable[[], None]], turns: int
) -> list[float]:
    """Return for each of `ways` (it makes itself the one in use) the milliseconds of all workloads, by medians."""
    total = [0.0] * len(ways)
    for workload in workloads:
        times: list[list[float]] = [[] for _ in ways]
        for turn in range(WARMUPS + turns):
            for way, found in zip(ways, times, strict=True):
                way()
                elapsed_ms = clock.time_ms(workload.calls["triton"], workload.prepare)
                if turn >= WARMUPS:
                    found.append(elapsed_ms)
        total = [sum_ms + statistics.median(found) for sum_ms, found in zip(total, times, strict=True)]
    return total


def tune(
    clock: Clock, trial: Trial, op: str, bucket: int, case: Callable[[], Iterator[Workload]],
    shapes: Sequence[Mapping[str, int]], until_s: float,
) -> dict[str, Any] | None:  # fmt: skip
    """Return one line of the table, with the `options` that are kept ({} where the rule is); None where nothing ran."""
    with torch.device(clock.device):
        workloads = list(case())
    draw = partial(op_named(op).sample, rows=257, dtype=torch.bfloat16, device=clock.device)
    samples = [draw(**shape) for shape in shapes]
    trial.take(op, bucket, None)
    if not workloads or not is_right(op_named(op), samples):
        return None
    right = []
    for options in tuned_configs.candidates(op, bucket):
        if time.monotonic() > until_s:
            break
        trial.take(op, bucket, options)
        if is_right(op_named(op), samples):
            right.append(options)
    ways = [partial(trial.take, op, bucket, options) for options in (None, *right)]
    before_ms, *found_ms = time_in_turns(clock, workloads, ways, TURNS)
    kept, after_ms = {}, before_ms
    if right and min(found_ms) * GAIN <= before_ms:
        best = found_ms.index(min(found_ms))
        before_ms, best_ms = time_in_turns(clock, workloads, [ways[0], ways[1 + best]], FINAL_TURNS)
        kept, after_ms = (right[best], best_ms) if best_ms * GAIN <= before_ms else ({}, before_ms)
    line = {"op": op, "bucket": bucket, "shape": workloads[0].shape, "candidates": len(right)}
    times = {"before_ms": round(before_ms, 4), "after_ms": round(after_ms, 4)}
    return line | times | {"gain": round(before_ms / after_ms - 1, 4), "options": kept}


def tune_all(clock: Clock, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the lines of the table, and the ops with buckets that were left out: for time, or as they do not run."""
    capability = torch.cuda.get_device_capability(clock.device)
    begun_s, trial, lines, left_out = time.monotonic(), Trial(folder, clock.device), [], []
    for op, bucket, case, shapes in BUCKETS:
        support = op_named(op).supports(
            device_type="cuda", capability=capability, dtype=torch.bfloat16, width=bucket
        )
        line = None
        if support.ok and time.monotonic() - begun_s < SECONDS:
            tell(doing="tune", op=op)
            try:
                line = tune(clock, trial, op, bucket, case, shapes, begun_s + SECONDS)
            except torch.OutOfMemoryError:
                line = None  # another program holds the card: this bucket keeps its rule
            torch.cuda.empty_cache()
        if line is None:
            left_out.append(f"{op} {bucket}")
        else:
            lines.append(line)
    return lines, left_out


def entries_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, dict[str, int]]]:
    """Return what is to be used of the table."""
    entries: dict[str, dict[int, dict[str, int]]] = {}
    for line in lines:
        if line["options"]:
            entries.setdefault(line["op"], {})[line["bucket"]] = line["options"]
    return entries


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, write the file and tell the result; exit code 0, also where nothing can be tuned here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    refused = refuse_kernels(device)
    if refused:
        tell(result={"refused": refused})
        return 0
    torch.manual_seed(0)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tune-", ignore_cleanup_errors=True) as folder:
        lines, left_out = tune_all(Clock.of(device), Path(folder))
    write(options.out, entries_of(lines), device)
    seconds = round(time.monotonic() - begun_s, 1)
    machine = tuned_configs.describe(device) | {"capability": list(torch.cuda.get_device_capability(device))}
    tell(result={"refused": "", "machine": machine, "ops": lines, "left_out": left_out, "seconds": seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
