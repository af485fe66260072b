"""The kernels at the ends of what widths and dtypes they are given, compiled for every GPU generation.

Beside test_compile.py, which is about as long: a file is one processor's.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.launches import check, half, pairs

ALIKE = {"sm_70": "sm_75", "sm_86": "sm_89"}
"""A card that the compiler treats as another one that has as little shared memory: each edge costs seconds."""


@pytest.mark.computing
@pytest.mark.timeout(900)  # 45 s for the largest where nothing else computes
@pytest.mark.parametrize(("op", "target"), [one for one in pairs() if one.values[1] not in ALIKE])
def test_compiles_at_the_edges_of_width_and_dtype(launches, op, target):
    for dtype in (half(target), torch.float32):
        check(launches(op, "EDGES", dtype), target)
