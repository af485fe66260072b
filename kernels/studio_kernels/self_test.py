"""Runs every op, forward and backward, against its PyTorch twin on a GPU: error and speed of each.

    python -m studio_kernels.self_test

Run it in a child process, because a broken install can hang or end its process. Prints lines `FACTS {json}`, each
overruling the ones before it: `kernel_tests`, a list with what is known so far, and at the end `triton_level`:
`launches` when one op ran, `right` when one agrees with its twin: what is wrong with another concerns that op alone,
which takes its twin. An orderly refusal ends with exit code 1 and its reason as the last line of the standard error.

The first time every op is compiled, on one core. So forked helpers go through a share of the ops each and say nothing:
what they compiled lies in Triton's cache when this process comes to those ops.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from studio_kernels import BEGUN, TESTED_ALONE, _triton
from studio_kernels.dispatch import ERRORS, OPS
from studio_kernels.op import Implementation, Op

ROWS, WIDTH = 33, 100
"""Neither is a power of two: masks in both directions are at work."""
LARGE_ROWS, LARGE_WIDTH = 2048, 4096
"""Some 0.3 GB with everything that the twin keeps: fits the smallest card."""
BUDGET_S = 40.0
"""No op is begun later: the caller waits for 60 s, and a slow machine compiles for a second a kernel. What is left out
is still proved by `fuse` and the decoder before it is used."""
HELPERS = 4
"""Each takes 0.5 GB of the card for its context, and 0.3 for what it computes."""
CORES_A_HELPER = 3
REPEATS = 10
AHEAD = 60
"""Matrix products that keep the GPU busy (10 ms on an H200) while Python queues what is measured, 0.6 ms a step."""
LIMITS = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 1e-4}
"""Largest difference between two right implementations, as a share of the largest value."""
WRONG = "wrong numbers"

Run = Callable[[Implementation], dict[str, torch.Tensor]]


def run(
    ops: Sequence[Op],
    device: torch.device,
    capability: tuple[int, int],
    begin: Callable[[Op], None] = lambda op: None,
) -> None:
    """Test each of `ops` on `device`, print what came of it, then how fast they are; `begin` is called before each."""
    tests: list[dict[str, Any]] = []
    begun_s = time.monotonic()
    for op in ops:
        if op.needs_dots and device.type == "cuda" and capability < _triton.LOWEST_WITH_DOTS:
            continue  # such a card is never given this op: not a defect
        if time.monotonic() - begun_s > BUDGET_S:
            break
        begin(op)
        # If the process ends here, this is what is known of the op.
        hand_over(kernel_tests=[*tests, {"op": op.name, "ok": False, "reason": BEGUN}])
        tests.append(examine(op, device, capability))
        hand_over(kernel_tests=tests)
    if device.type == "cuda":  # when the helpers are done, which would keep the card busy
        by_name = {op.name: op for op in ops}
        timed = [
            each | (time_op(by_name[each["op"]], device, capability) if each["ok"] else {}) for each in tests
        ]
        if timed:
            places = {op.name: place for place, op in enumerate(OPS)}
            hand_over(kernel_tests=sorted(timed, key=lambda each: places[each["op"]]))
    ran = [each for each in tests if each["ok"] or each["reason"].startswith(WRONG)]
    if ran:
        hand_over(triton_level="right" if any(each["ok"] for each in ran) else "launches")


def examine(op: Op, device: torch.device, capability: tuple[int, int]) -> dict[str, Any]:
    """Return op, ok, error and, where it failed, the reason.

    float32 shows small errors and odd sizes; what is timed, in the 16-bit dtype that the card computes in, is compared,
    too: each kernel is compiled twice.
    """
    result: dict[str, Any] = {"op": op.name, "ok": False, "error": 0.0, "reason": ""}
    half = choose_half(capability)
    answers = {
        dtype: op.supports(device_type="cuda", capability=capability, dtype=dtype, width=WIDTH)
        for dtype in (torch.float32, half)
    }
    if not any(answer.ok for answer in answers.values()):
        return result | {"reason": answers[half].reason}
    try:
        if answers[torch.float32].ok:
            small = op.sample(rows=ROWS, width=WIDTH, dtype=torch.float32, device=device)
            result |= judge(compare(op, small), torch.float32, result["error"])
        if answers[half].ok and not result["reason"]:
            result |= examine_large(op, device, half, result["error"])
    except ERRORS as failure:
        return result | {"ok": False, "reason": f"{type(failure).__name__}: {failure}"[:2000]}
    return result


def examine_large(op: Op, device: torch.device, dtype: torch.dtype, worst: float) -> dict[str, Any]:
    """Compare on much data; where another program holds the memory, or without a GPU, on little."""
    try:
        rows, width = (LARGE_ROWS, LARGE_WIDTH) if device.type == "cuda" else (ROWS, WIDTH)
        sample = op.sample(rows=rows, width=width, dtype=dtype, device=device)
        return judge(compare(op, sample), dtype, worst)
    except torch.OutOfMemoryError:
        return judge(compare(op, op.sample(rows=ROWS, width=WIDTH, dtype=dtype, device=device)), dtype, worst)


def time_op(op: Op, device: torch.device, capability: tuple[int, int]) -> dict[str, float]:
    """Return twin_ms and kernel_ms, forward and backward together; nothing where memory is short or it cannot run."""
    dtype = choose_half(capability)
    if not op.supports(device_type="cuda", capability=capability, dtype=dtype, width=WIDTH).ok:
        return {}
    try:
        sample = op.sample(rows=LARGE_ROWS, width=LARGE_WIDTH, dtype=dtype, device=device)
        speeds = {"twin_ms": op.reference, "kernel_ms": op.triton}
        return {name: measure(sample, each, device) for name, each in speeds.items()}
    except torch.OutOfMemoryError:
        return {}


def choose_half(capability: tuple[int, int]) -> torch.dtype:
    """Return the 16-bit dtype that a card of this capability computes in."""
    return torch.bfloat16 if capability >= (8, 0) else torch.float16


def judge(error: float, dtype: torch.dtype, worst: float) -> dict[str, Any]:
    """What an error means; `worst` is that of earlier comparisons."""
    if error < LIMITS[dtype]:  # false for NaN, too
        return {"ok": True, "error": max(worst, error)}
    return {"ok": False, "error": error, "reason": f"{WRONG} in {dtype}: relative error {error:.2g}"}


def compare(op: Op, sample: Run) -> float:
    """Return the largest difference of kernel and twin in any output or gradient, as a share of its largest value."""
    theirs, ours = sample(op.reference), sample(op.triton)
    errors = []
    for name, twin in theirs.items():
        difference = (twin.double() - ours[name].double()).abs().max()
        errors.append((difference / twin.double().abs().max().clamp_min(1e-30)).item())
    return max(errors, key=lambda error: float("inf") if error != error else error)


def measure(sample: Run, implementation: Implementation, device: torch.device) -> float:
    """Return the median milliseconds that the GPU takes for one forward and backward pass."""
    sample(implementation)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    square = torch.zeros(LARGE_WIDTH, LARGE_WIDTH, dtype=torch.float16, device=device)
    for _ in range(AHEAD):
        torch.matmul(square, square)
    for start, end in events:
        start.record()
        sample(implementation)
        end.record()
    torch.cuda.synchronize(device)
    return sorted(start.elapsed_time(end) for start, end in events)[REPEATS // 2]


def hand_over(**facts: Any) -> None:
    """Print one line of facts."""
    print("FACTS " + json.dumps(facts), flush=True)


@contextmanager
def helpers(
    shares: Sequence[Sequence[Op]], work: Callable[[Sequence[Op]], None]
) -> Iterator[Callable[[Op], None]]:
    """Let a forked process do `work` on each of `shares`; gives a function that waits for the one that has an op.

    Whatever becomes of one is no answer: this process comes to its ops, too. None may have touched the GPU before: a
    fork cannot use it then.
    """
    running: dict[str, int] = {}
    sys.stdout.flush()
    for share in shares:
        child = os.fork()
        if not child:
            try:
                signal.alarm(round(BUDGET_S))  # ends it wherever it stands
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1), os.dup2(quiet, 2)
                work(share)
            finally:
                os._exit(0)
        running |= {op.name: child for op in share}

    def wait(op: Op) -> None:
        child = running.get(op.name)
        if child is not None:
            os.waitpid(child, 0)
            for name in [name for name, one in running.items() if one == child]:
                del running[name]

    try:
        yield wait
    finally:
        for child in set(running.values()):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def count_helpers() -> int:
    """Return how many helpers are worth while: none where the system cannot fork or all is to be compiled anew."""
    if not hasattr(os, "fork") or os.environ.get("TRITON_ALWAYS_COMPILE") == "1":
        return 0
    return min(HELPERS, (os.cpu_count() or 1) // CORES_A_HELPER)


def run_on_best_card(ops: Sequence[Op], begin: Callable[[Op], None] = lambda op: None) -> None:
    """Test `ops` on the GPU of the highest compute capability. Raises SystemExit where there is none."""
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU that Triton could use.")
    best = max(range(torch.cuda.device_count()), key=torch.cuda.get_device_capability)
    run(ops, torch.device("cuda", best), torch.cuda.get_device_capability(best), begin)


def order_ops() -> list[Op]:
    """Return the ops that runs use, first those that a caller in a hurry must wait for."""
    return sorted((op for op in OPS if op.used), key=lambda op: op.name not in TESTED_ALONE)


def main() -> int:
    """Test all ops that runs use, with helpers."""
    if not _triton.importable().ok:
        raise SystemExit(_triton.importable().reason)
    if _triton.interpreted():
        raise SystemExit("TRITON_INTERPRET is set: kernels would run in Triton's slow interpreter.")
    parts = count_helpers() + 1
    ordered = order_ops()
    shares = [ordered[start::parts] for start in range(parts)]
    with helpers(shares[1:], run_on_best_card) as wait:
        run_on_best_card([op for share in shares for op in share], wait)
    return 0


if __name__ == "__main__":
    sys.exit(main())
