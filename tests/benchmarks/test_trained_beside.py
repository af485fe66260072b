"""The measurement of what is trained beside an adapter writes its rows, and its result is read back by peft alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.table import read_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.computing
def test_a_row_of_each_way_is_written(tmp_path):
    out = tmp_path / "out.csv"
    words = "--shape tiny --batch 2 --tokens 64 --steps 1 --bits 16 --device cpu --stacks ours".split()
    command = [
        sys.executable,
        "benchmarks/trained_beside.py",
        "--models",
        str(tmp_path),
        "--out",
        str(out),
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = read_rows(out)
    assert [row["way"] for row in rows] == ["rows", "whole"]
    for row in rows:
        assert float(row["reload_difference"]) < 1e-3 and all(float(one) > 0 for one in row["moved"].split())
