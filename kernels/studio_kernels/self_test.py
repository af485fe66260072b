"""Runs every op, forward and backward, against its PyTorch twin on a GPU: error and speed of each.

    python -m studio_kernels.self_test

Run it in a child process, because a broken install can hang or end its process. Prints lines `FACTS {json}`, each
overruling the ones before it: `kernel_tests`, a list with what is known so far, and at the end `triton_level`:
`launches` when one op ran, `right` when all that ran agree with their twins. An orderly refusal ends with exit code 1
and its reason as the last line of the standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from studio_kernels import _triton
from studio_kernels.dispatch import ERRORS, OPS
from studio_kernels.support import Op

ROWS, WIDTH = 33, 100
"""Neither is a power of two: masks in both directions are at work."""
LARGE_ROWS, LARGE_WIDTH = 2048, 4096
"""Some 0.3 GB with everything that the twin keeps: fits the smallest card."""
REPEATS = 10
AHEAD = 60
"""Matrix products that keep the GPU busy (10 ms on an H200) while Python queues what is measured, 0.6 ms a step."""
LIMITS = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 1e-4}
"""Largest difference between two right implementations, as a share of the largest value."""
WRONG = "wrong numbers"


def run(ops: Sequence[Op], device: torch.device, capability: tuple[int, int]) -> None:
    """Test each of `ops` on `device` and print what came of it."""
    tests: list[dict[str, Any]] = []
    for op in ops:
        # If the process ends here, this is what is known of the op.
        hand_over(kernel_tests=[*tests, {"op": op.name, "ok": False, "reason": "It ended the process."}])
        tests.append(examine(op, device, capability))
        hand_over(kernel_tests=tests)
    ran = [each for each in tests if each["ok"] or each["reason"].startswith(WRONG)]
    if ran:
        right = all(each["ok"] for each in ran)
        hand_over(triton_level="right" if right else "launches")


def examine(op: Op, device: torch.device, capability: tuple[int, int]) -> dict[str, Any]:
    """Return op, ok, error, twin_ms, kernel_ms (forward and backward together) and, where it failed, the reason."""
    worst, result = 0.0, {"op": op.name, "ok": False, "error": 0.0, "reason": ""}
    for dtype, limit in LIMITS.items():
        support = op.supports(device_type="cuda", capability=capability, dtype=dtype, width=WIDTH)
        if not support.ok:
            return result | {"reason": support.reason}
        if dtype is torch.bfloat16 and capability < (8, 0):
            continue  # emulated there, and never chosen
        try:
            error = compare(op, device, dtype)
        except ERRORS as failure:
            return result | {"reason": f"{type(failure).__name__}: {failure}"[:2000]}
        worst = max(worst, error)
        if not error < limit:  # true for NaN, too
            return result | {"error": error, "reason": f"{WRONG} in {dtype}: relative error {error:.2g}"}
    result |= {"ok": True, "error": worst}
    if device.type != "cuda":
        return result
    try:
        speeds = {f"{name}_ms": measure(op, function, device) for name, function in twins(op).items()}
    except torch.OutOfMemoryError:
        return result  # the numbers are right; another program holds the memory
    return result | speeds


def compare(op: Op, device: torch.device, dtype: torch.dtype) -> float:
    """Return the largest difference between kernel and twin, forward and gradients, as a share of the largest value."""
    results = []
    for function in twins(op).values():
        inputs, upstream = draw(op, device, dtype, ROWS, WIDTH)
        y = function(*inputs)
        results.append([y, *torch.autograd.grad(y, inputs, upstream)])
    errors = []
    for twin, ours in zip(*results, strict=True):
        twin, ours = twin.float(), ours.float()
        errors.append(((twin - ours).abs().max() / twin.abs().max()).item())
    return max(errors, key=lambda error: float("inf") if error != error else error)


def measure(op: Op, function: Callable[..., Tensor], device: torch.device) -> float:
    """Return the median milliseconds that the GPU takes for one forward and backward pass in float16."""
    inputs, upstream = draw(op, device, torch.float16, LARGE_ROWS, LARGE_WIDTH)

    def step() -> None:
        torch.autograd.grad(function(*inputs), inputs, upstream)

    step()  # compiles
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    square = torch.zeros(LARGE_WIDTH, LARGE_WIDTH, dtype=torch.float16, device=device)
    for _ in range(AHEAD):
        torch.matmul(square, square)
    for start, end in events:
        start.record()
        step()
        end.record()
    torch.cuda.synchronize(device)
    return sorted(start.elapsed_time(end) for start, end in events)[REPEATS // 2]


def twins(op: Op) -> dict[str, Callable[..., Tensor]]:
    """Return the two implementations of `op`, as functions of its tensors alone."""
    rest = {"rms_norm": (1e-6, 0, "cast_then_scale")}.get(op.name, ())
    return {
        "twin": lambda *tensors: op.reference(*tensors, *rest),
        "kernel": lambda *tensors: op.triton(*tensors, *rest),
    }


def draw(
    op: Op, device: torch.device, dtype: torch.dtype, rows: int, width: int
) -> tuple[list[Tensor], Tensor]:
    """Return the op's tensors, which want gradients, and the gradient that comes from above; the same each time."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"rms_norm": ((rows, width), (width,))}.get(op.name, ((rows, width), (rows, width)))
    tensors = [torch.randn(shape, generator=generator) for shape in (*shapes, (rows, width))]
    placed = [tensor.to(device, dtype) for tensor in tensors]
    return [tensor.requires_grad_() for tensor in placed[:-1]], placed[-1]


def hand_over(**facts: Any) -> None:
    """Print one line of facts."""
    print("FACTS " + json.dumps(facts), flush=True)


def main() -> int:
    """Test on the GPU of the highest compute capability."""
    if not _triton.importable().ok:
        raise SystemExit(_triton.importable().reason)
    if _triton.interpreted():
        raise SystemExit("TRITON_INTERPRET is set: kernels would run in Triton's slow interpreter.")
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU that Triton could use.")
    best = max(range(torch.cuda.device_count()), key=torch.cuda.get_device_capability)
    run(OPS, torch.device("cuda", best), torch.cuda.get_device_capability(best))
    return 0


if __name__ == "__main__":
    sys.exit(main())
