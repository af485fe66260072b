"""The self-test tells right from wrong and one op's failure from another's, without a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from studio_kernels import TESTED_ALONE, self_test
from studio_kernels.dispatch import OPS, op_named
from studio_kernels.op import Op, Support

from studio.planning.backend_choice import NEEDS_DOTS

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
CPU = torch.device("cpu")


def make_op(forward=None, name="glu", ok=True) -> Op:
    """An op whose kernels are its own twin, but for another `forward`."""
    op = op_named(name)
    triton = dataclasses.replace(op.reference, forward=forward or op.reference.forward)
    return dataclasses.replace(op, triton=triton, supports=lambda **values: Support(ok, "no"))


def scaled(factor):
    return lambda gate, up, kind, out=None: torch.nn.functional.silu(gate) * up * factor


def fails(*tensors, **options):
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
        ([make_op(scaled(2.0)), make_op(None, "rms_norm")], "right", [False, True]),
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
    op = make_op()
    sample = op.sample(rows=33, width=100, dtype=torch.float32, device=CPU)
    wrong = dataclasses.replace(op.triton, backward=lambda dh, gate, up, kind, h=None: (dh * up, dh, h))
    assert self_test.compare(dataclasses.replace(op, triton=wrong), sample) > 0.5
    assert self_test.compare(op, sample) == 0.0


def test_an_op_of_matrix_products_is_left_out_where_it_is_never_used(capsys):
    card = torch.device("cuda")
    self_test.run([dataclasses.replace(make_op(), needs_dots=True)], card, (7, 5))
    assert capsys.readouterr().out == ""


def test_an_op_is_named_before_it_can_end_the_process(capsys):
    first = run(capsys, make_op(None))[0]
    assert first["kernel_tests"] == [{"op": "glu", "ok": False, "reason": "It ended the process."}]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_can_be_drawn(op):
    twin = dataclasses.replace(op, triton=op.reference, supports=lambda **values: Support(True, ""))
    assert self_test.examine(twin, CPU, (8, 9)) == {"op": op.name, "ok": True, "error": 0.0, "reason": ""}


def test_no_op_is_begun_when_the_time_is_up(capsys, monkeypatch):
    monkeypatch.setattr(self_test, "BUDGET_S", -1.0)
    assert run(capsys, make_op()) == []


def test_a_full_card_is_tested_on_little_data_and_not_timed():
    op = make_op()

    def sample(*, rows, **options):
        if rows > 33:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return op.sample(rows=rows, **options | {"device": "cpu"})

    full, card = dataclasses.replace(op, sample=sample), torch.device("cuda")
    assert self_test.examine(full, card, (8, 9)) == {"op": "glu", "ok": True, "error": 0.0, "reason": ""}
    assert self_test.time_op(full, card, (8, 9)) == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only on systems that fork")
def test_helpers_are_waited_for_before_their_ops_and_none_is_left(tmp_path):
    first, second, third = op_named("glu"), op_named("rope"), op_named("lora")
    begun = tmp_path / "third"

    def work(share):
        if share[0] is third:
            begun.touch()
            time.sleep(60)  # ended with the others
        if share[0] is second:
            raise RuntimeError("a helper that fails")
        time.sleep(0.3)
        (tmp_path / "done").touch()

    # a worker's other tests may have children of their own, of which some still end
    others = {child.pid for child in psutil.Process().children()}
    started_s = time.monotonic()
    with self_test.helpers([[first], [second], [third]], work) as wait:
        own = {child.pid for child in psutil.Process().children()} - others
        assert len(own) == 3
        wait(op_named("rms_norm"))  # this process's own
        wait(first)
        assert (tmp_path / "done").exists()
        wait(second)
        while not begun.exists():
            time.sleep(0.01)
    assert time.monotonic() - started_s < 30
    for pid in own:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_helpers_only_where_they_help(monkeypatch):
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    for cores, count in ((1, 0), (2, 0), (4, 1), (16, 4), (64, 4)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert self_test.count_helpers() == (count if hasattr(os, "fork") else 0)
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    assert self_test.count_helpers() == 0


@pytest.mark.computing
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


def test_what_no_run_uses_is_not_tested_on_a_persons_card():
    """Every op that a plan chooses is; layer_norm waits for a decoder that has one."""
    tested = [op.name for op in self_test.order_ops()]
    assert set(NEEDS_DOTS) <= set(tested) and "layer_norm" not in tested
    assert tested[: len(TESTED_ALONE)] == [name for name in tested if name in TESTED_ALONE]
