"""The kernels at the ends of what widths and dtypes they are given, compiled for every GPU generation.

Beside test_compile.py, which is about as long: a file is one processor's.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from tests.kernels.launches import check, half, pairs, share
from tests.kernels.oracle import options_of


@pytest.mark.patient
@pytest.mark.parametrize(("op", "target"), pairs())
def test_compiles_at_the_edges_of_width_and_dtype(launches, op, target):
    edges = product((half(target), torch.float32), options_of(op.name, "EDGES"))
    for dtype, edge in share(list(edges), op, target):
        check(launches(op, [edge], dtype), target)
