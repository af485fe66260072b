"""Every op in Triton's interpreter on the CPU, forward and every gradient, against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.oracle import Comparison, cases

ROOT = Path(__file__).resolve().parents[2]
QUANTITIES = {"rms_norm": {"y", "dx", "dw"}, "swiglu": {"h", "dgate", "dup"}}


@pytest.fixture(scope="module")
def interpreted() -> tuple[dict[str, list[Comparison]], str]:
    """All comparisons by case and what went wrong; a child, since Triton decides at decoration who runs a kernel."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    child = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
    )
    found: dict[str, list[Comparison]] = {}
    for line in child.stdout.splitlines():
        fields = json.loads(line)
        found.setdefault(fields.pop("case"), []).append(Comparison(**fields))
    return found, "" if child.returncode == 0 else child.stderr


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_kernel_is_as_exact_as_its_twin(case, interpreted):
    comparisons, trouble = interpreted
    found = comparisons.get(case.id, [])
    expected = QUANTITIES[case.op] - (set() if case.weight_trained else {"dw"})
    assert {comparison.quantity for comparison in found} == expected, trouble
    assert [comparison for comparison in found if not comparison.ok] == []


def test_no_run_ended_early(interpreted):
    comparisons, trouble = interpreted
    assert trouble == ""
    assert comparisons.keys() == {case.id for case in cases()}
