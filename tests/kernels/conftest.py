"""What the tests of compilation share."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import triton
from studio_kernels.op import Op

from tests.kernels.launches import SHIPPED, Launch, Recorder
from tests.kernels.oracle import options_of, read


@pytest.fixture
def launches(monkeypatch, tmp_path):
    """A function (op, cases or their kind, dtype, rows) -> the launches of the op's samples, forward and backward."""
    # A cached result would hide a compiler that fails today.
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    # What is drawn is never looked at: memory as it comes is as good.
    monkeypatch.setattr(torch, "randn", lambda shape, generator: torch.empty(shape))
    noted: list[Launch] = []
    for name, (module, attribute, kernel) in SHIPPED.items():
        monkeypatch.setattr(module, attribute, Recorder(name, kernel, noted))

    def record(op: Op, cases: str | Sequence, dtype: torch.dtype, rows: int = 8) -> list[Launch]:
        noted.clear()
        for options in options_of(op.name, cases) if isinstance(cases, str) else cases:
            given = {"dtype": dtype, "rows": rows} | read(options)
            op.sample(**given, device="cpu")(op.triton)
        return list(noted)

    return record
