"""Blocks by Triton's kernels, run in its interpreter, give the model's own loss and gradients in fp32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.computing
ROOT = Path(__file__).resolve().parents[3]
FAMILIES = ("qwen3", "gemma4", "gemma4_e2b", "gemma3n", "latent", "latent_v2")


def test_they_do():
    """At most 1e-5 off, or as the model's own code is (peaked attention). A child: Triton decides at decoration."""
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    child = subprocess.run(
        [sys.executable, "-m", "tests.models.decoder.interpreted_blocks", *FAMILIES],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    found = {one["family"]: one for one in map(json.loads, child.stdout.splitlines())}
    assert set(found) == set(FAMILIES)
    for family, one in found.items():
        assert one["loss"] < 1e-5 and one["worst"] < max(1e-5, 2 * one["own"]), (family, one)
