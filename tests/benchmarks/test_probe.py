"""The table of the probe: what is right counts as accepted, every planted fault is refused and counted."""

from __future__ import annotations

import sys

import pytest

from benchmarks import probe
from benchmarks.table import read_rows
from studio.models.catalog import DEMO_MODEL


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """A function that runs the benchmark in fp32 and returns (exit code, row of the table)."""

    def go(*options):
        out = tmp_path / "out.csv"
        words = ["probe.py", str(DEMO_MODEL), "--device", "cpu", "--dtypes", "fp32"]
        monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), *options])
        return probe.main(), list(read_rows(out))[-1]

    return go


@pytest.mark.patient
def test_faults_are_counted(ask):
    code, row = ask("--faults")
    assert code == 0 and row["refused"] == "0" and row["faults"] == row["found"]
    assert int(row["faults"]) >= 20 and int(row["comparisons"]) > 50


@pytest.mark.patient
def test_a_fault_that_is_accepted_fails_it(ask, monkeypatch):
    monkeypatch.setattr("studio.models.decoder.parity_check.find_difference", lambda *arguments: None)
    code, row = ask("--faults")
    assert code == 1 and row["found"] == "0"
