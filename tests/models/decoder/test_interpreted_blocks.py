"""Blocks by Triton's kernels, run in its interpreter, give the model's own loss and gradients in fp32."""

from __future__ import annotations

import json

import pytest

from tests.interpreter import run_interpreted

pytestmark = pytest.mark.computing
FAMILIES = ("qwen3", "gemma4", "gemma4_e2b", "gemma3n", "latent", "latent_v2")


def test_they_do():
    """At most 1e-5 off, or as the model's own code is (peaked attention). A child: Triton decides at decoration."""
    said = run_interpreted("tests.models.decoder.interpreted_blocks", *FAMILIES)
    found = {one["family"]: one for one in map(json.loads, said.splitlines())}
    assert set(found) == set(FAMILIES)
    for family, one in found.items():
        assert one["loss"] < 1e-5 and one["worst"] < max(1e-5, 2 * one["own"]), (family, one)
