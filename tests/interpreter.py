"""A module of the tests whose Triton kernels are interpreted: a child, since Triton decides at decoration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_interpreted(module: str, *words: str, timeout_s: float = 600) -> str:
    """Return what `python -m module words` says."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    child = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout_s,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return child.stdout
