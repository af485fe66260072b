"""Every op in Triton's interpreter on the CPU, each output and gradient of its cases, against float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.oracle import Comparison, cases

ROOT = Path(__file__).resolve().parents[2]
CASES = cases("CASES")
EACH_TIME = 16
"""Of so many cases of an op one is run each time, the others with `--all`: all of them take a minute and a half."""


@pytest.fixture(scope="module")
def interpreted(request) -> tuple[dict[str, list[Comparison]], str]:
    """Comparisons by case and what went wrong; a child, since Triton decides at decoration who runs a kernel."""
    wanted = wanted_of(request)
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    child = subprocess.run(
        [sys.executable, "-m", "tests.kernels.interpreted", *wanted],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=400,
    )
    found: dict[str, list[Comparison]] = {}
    for line in child.stdout.splitlines():
        fields = json.loads(line)
        found.setdefault(fields.pop("case"), []).append(Comparison(**fields))
    return found, "" if child.returncode == 0 else child.stderr


def wanted_of(request: pytest.FixtureRequest) -> list[str]:
    """The ids of the cases that are asked for in this session."""
    return [item.callspec.params["case"].id for item in request.session.items if "case" in _parameters(item)]


def _parameters(item: pytest.Item) -> dict:
    """What a test of this file was parametrised with."""
    return item.callspec.params if item.path == Path(__file__) and hasattr(item, "callspec") else {}


def spread() -> Iterator:
    """Each case; of each op's, one of EACH_TIME is run each time, the first among them."""
    counts: Counter[str] = Counter()
    for case in CASES:
        marks = [pytest.mark.computing] if counts[case.op] % EACH_TIME else []
        counts[case.op] += 1
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", list(spread()))
def test_kernel_is_as_exact_as_its_twin(case, interpreted):
    comparisons, trouble = interpreted
    found = comparisons.get(case.id, [])
    assert found, trouble[-3000:]
    assert [comparison for comparison in found if not comparison.ok] == []


def test_no_run_ended_early(interpreted, request):
    comparisons, trouble = interpreted
    assert trouble == ""
    assert comparisons and comparisons.keys() == set(wanted_of(request) or (case.id for case in CASES))


def test_cases_are_told_apart():
    assert len({case.id for case in CASES}) == len(CASES)
