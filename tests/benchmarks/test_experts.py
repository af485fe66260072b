"""The benchmark of experts runs on any machine, and its numbers are of the decoder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.computing
def test_a_try_with_tiny_shapes_takes_every_case():
    command = [
        sys.executable,
        "benchmarks/experts.py",
        "--tiny",
        "--device",
        "cpu",
        "--no-stock",
        "--bits",
        "16",
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=200)
    with_experts, without = (json.loads(line) for line in said.stdout.splitlines() if line.startswith("{"))
    assert "refused" not in with_experts and with_experts["decoder_tokens_per_s"] > 0
    assert with_experts["trained"] > without["trained"] > 0
