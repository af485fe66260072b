"""Attention with sinks: every backend that runs here against dense float64, forward and gradients, the sinks' too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from studio_kernels import attention_backends, attention_sinks
from studio_kernels.attention import Documents, choose_attention, try_out
from studio_kernels.varlen import Heads

from tests.kernels.test_attention import EQUAL, PACKED, TOLERANCE, dense, draw, make_heads

ROOT = Path(__file__).parents[2]
INTERPRETED = """
import json, torch
from studio_kernels import attention_backends as backends, _triton
from tests.kernels.test_attention_sinks import draw_sinks, errors_of, make_heads
assert _triton.interpreted()
found = [errors_of(backends.TRITON, (9, 1, 22), make_heads(**changes), torch.float32)
         for changes in ({}, {"window": 5}, {"key_heads": 4, "softcap": 3.0})]
print(json.dumps(found))
"""


def draw_sinks(heads: Heads) -> torch.Tensor:
    return torch.randn(heads.query_heads, generator=torch.Generator().manual_seed(7)) * 2


def errors_of(backend, lengths, heads: Heads, dtype: torch.dtype) -> list[float]:
    """Return the errors of out, dq, dk, dv and dsinks as shares of the largest value (1 at least)."""
    dout, q, k, v = draw(lengths, heads, dtype)
    sinks, documents = draw_sinks(heads).to(dtype), Documents.of(lengths, "cpu")
    dsinks = torch.ones(heads.query_heads, dtype=torch.promote_types(dtype, torch.float32))
    with torch.no_grad():
        out, saved = attention_sinks.forward(backend, q, k, v, documents, heads, sinks)
        given = (dout, q, k, v, out, saved, documents, heads, sinks)
        found = (out, *attention_sinks.backward(backend, *given, dsinks), dsinks - 1)
    return [
        ((ours.double() - exact).abs().max() / exact.abs().max().clamp(min=1.0)).item()
        for ours, exact in zip(found, dense(dout, q, k, v, lengths, heads, sinks), strict=True)
    ]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("lengths", [PACKED, EQUAL, (1,), (61,)], ids=str)
@pytest.mark.parametrize(
    ("name", "changes"),
    [("CPU", {}), ("MATH", {}), ("MATH", {"window": 9}), ("MATH", {"softcap": 3.0, "key_heads": 1})],
    ids=str,
)
def test_every_backend_of_the_processor(name, changes, lengths, dtype):
    errors = errors_of(getattr(attention_backends, name), lengths, make_heads(**changes), dtype)
    assert max(errors) <= 4 * TOLERANCE[dtype]


@pytest.mark.parametrize("rows", [16, 512])
def test_the_composed_form_block_by_block(monkeypatch, rows):
    heads = make_heads(window=9)
    monkeypatch.setattr("studio_kernels.attention_reference.SCORES_BYTES", 4 * rows * heads.query_heads * 9)
    assert max(errors_of(attention_backends.MATH, (61, 40), heads, torch.float64)) < 1e-12


def test_without_sinks_nothing_is_changed():
    heads, documents = make_heads(), Documents.of(PACKED, "cpu")
    dout, q, k, v = draw(PACKED, heads, torch.float32)
    kernel = choose_attention(
        device="cpu", dtype=torch.float32, head_dim=16, query_heads=4, key_heads=2, scale=0.3
    )
    out, saved = kernel.forward(q, k, v, documents)
    plain, _ = kernel.packed.forward(q, k, v, documents, heads)
    far, _ = kernel.forward(q, k, v, documents, torch.full((4,), -1e4))
    assert torch.equal(out, plain) and torch.allclose(far, plain)


def test_log_sums_that_are_no_such_are_passed_over():
    """What a library keeps is its own matter: where it is something else, its gradients alone would not show it."""
    cpu = attention_backends.CPU

    def forward(*given):
        out, (sums,) = cpu.forward(*given)
        return out, (sums * 1.4427,)

    def backward(dout, q, k, v, out, saved, documents, heads):
        return cpu.backward(dout, q, k, v, out, (saved[0] / 1.4427,), documents, heads)

    other = attention_backends.AttentionBackend(name="other", forward=forward, backward=backward)
    given = (torch.device("cpu"), torch.float32, make_heads(), PACKED)
    assert try_out(other, *given).ok and not try_out(other, *given, True).ok
    assert try_out(cpu, *given, True).ok


@pytest.mark.computing
def test_our_kernels_in_the_interpreter():
    environment = os.environ | {
        "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    }  # fmt: skip
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=560, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for errors in json.loads(done.stdout.splitlines()[-1]):
        assert max(errors) < 1e-4
