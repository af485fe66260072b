"""The self-test tells right from wrong and one op's failure from another's, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from studio_kernels import self_test
from studio_kernels.dispatch import OPS
from studio_kernels.support import Op, Support

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
CPU = torch.device("cpu")


def make_op(triton, name="swiglu", ok=True) -> Op:
    reference = next(op.reference for op in OPS if op.name == name)
    return Op(
        name=name,
        reference=reference,
        triton=triton or reference,
        supports=lambda **values: Support(ok, "no"),
    )


def scaled(factor):
    return lambda gate, up: torch.nn.functional.silu(gate) * up * factor


def fails(*tensors):
    raise RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376")


def run(capsys, *ops: Op) -> list[dict]:
    """What `run` hands over, line by line."""
    self_test.run(ops, CPU, (8, 9))
    return [json.loads(line.removeprefix("FACTS ")) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "ops, level, outcomes",
    [
        ([make_op(None)], "right", [True]),
        ([make_op(scaled(1.001))], "launches", [False]),  # fp32 shows what fp16 hides
        ([make_op(scaled(float("nan")))], "launches", [False]),
        ([make_op(fails), make_op(None, "rms_norm")], "right", [False, True]),
        ([make_op(fails)], None, [False]),
        ([make_op(None, ok=False)], None, [False]),
    ],
)
def test_levels(capsys, ops, level, outcomes):
    lines = run(capsys, *ops)
    assert lines[-1].get("triton_level") == level
    tests = next(line["kernel_tests"] for line in reversed(lines) if "kernel_tests" in line)
    assert [test["ok"] for test in tests] == outcomes


def test_gradients_are_compared_too():
    def wrong_backward(gate, up):
        return torch.nn.functional.silu(gate).detach() * up + 0 * gate

    assert self_test.compare(make_op(wrong_backward), CPU, torch.float32) > 0.5
    assert self_test.compare(make_op(None), CPU, torch.float32) == 0.0


def test_an_op_is_named_before_it_can_end_the_process(capsys):
    first = run(capsys, make_op(None))[0]
    assert first["kernel_tests"] == [{"op": "swiglu", "ok": False, "reason": "It ended the process."}]


def test_every_op_can_be_drawn():
    for op in OPS:
        assert (
            self_test.compare(op.__class__(**{**fields(op), "triton": op.reference}), CPU, torch.float16)
            == 0.0
        )


def fields(op: Op) -> dict:
    return {name: getattr(op, name) for name in ("name", "reference", "triton", "supports")}


@pytest.mark.parametrize(
    "variables, reason",
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "PyTorch sees no GPU that Triton could use."),
        (
            {"TRITON_INTERPRET": "1"},
            "TRITON_INTERPRET is set: kernels would run in Triton's slow interpreter.",
        ),
    ],
)
def test_orderly_refusals(variables, reason):
    done = subprocess.run(
        [sys.executable, "-m", "studio_kernels.self_test"],
        env={**os.environ, "PYTHONPATH": str(KERNELS), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, reason)
