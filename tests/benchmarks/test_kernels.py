"""Every op is timed beside others that compute the same, with floors that count bytes or products, on any machine."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dispatch import OPS

from benchmarks import kernels
from benchmarks.kernel_shapes import CASES, QUICK, TRY
from benchmarks.kernels import Clock, measure
from benchmarks.table import read_rows

CPU = torch.device("cpu")
NAMES = {op.name for op in OPS}


def test_every_op_is_timed():
    assert CASES.keys() == TRY.keys() == NAMES and QUICK.keys() < NAMES


@pytest.mark.parametrize("op", sorted(NAMES))
def test_an_op_is_compared_and_has_a_floor(op):
    for case in TRY[op]:
        for workload in case():
            assert workload.op == op and bool(workload.floor_bytes) != bool(workload.flops)
            assert {"reference", "triton"} <= workload.calls.keys()
            (row, *others) = measure(workload, Clock.of(CPU), (1e9, 1e12), {"triton", "compiled"})
            assert row["implementation"] == "reference" and float(row["median_ms"]) >= float(
                row["fastest_ms"]
            )
            for other in others:  # who computes something else is left out
                assert float(other["error"]) <= kernels.LIMIT or other["error"] == "nan"


def test_who_computes_something_else_is_not_timed(capsys):
    workload = next(TRY["glu"][0]())
    wrong = dict(workload.calls) | {"wrong": lambda: (workload.calls["reference"]()[0] + 1,)}
    workload = type(workload)(op="glu", direction="silu", shape="8x64", calls=wrong, floor_bytes=1)
    rows = measure(workload, Clock.of(CPU), (1e9, 1e12), {"triton", "compiled"})
    assert "wrong" not in {row["implementation"] for row in rows}
    assert "wrong left out: off by" in capsys.readouterr().err


def test_share_is_of_the_measured_rate(monkeypatch):
    monkeypatch.setattr(Clock, "time_ms", lambda self, call, prepare=None: 2.0)
    workload = next(TRY["rms_norm"][0]())
    row = measure(workload, Clock.of(CPU), (workload.floor_bytes * 1000.0, 1.0), {"triton", "compiled"})[0]
    assert float(row["share"]) == pytest.approx(0.5) and row["unit"] == "GB/s"


def test_a_try_fills_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.main(["--rows", "0", "--ops", "fp8", "glu", "--out", str(tmp_path / "k.csv")]) == 0
    rows = read_rows(tmp_path / "k.csv")
    assert {row["op"] for row in rows} == {"fp8", "glu"}
    assert all(row["gpu"] == "CPU" and row["torch"] and row["date"] and row["command"] for row in rows)


def test_without_a_gpu_it_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kernels.main(["--out", str(tmp_path / "k.csv")]) == 2
    assert "needs a GPU" in capsys.readouterr().err and not (tmp_path / "k.csv").exists()
