"""Attention of texts that begin alike, whose beginning is there once: what the texts apart give, by every backend."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch
from studio_kernels.attention import Attention, Documents
from studio_kernels.attention_backends import CPU, MATH, AttentionBackend
from studio_kernels.shared_beginnings import SharedBeginnings
from torch import Tensor

from tests.interpreter import run_interpreted
from tests.kernels.test_attention import make_heads

GROUPS = ((9, (4, 7)), (0, (5,)), (6, (3, 8, 3)), (2, (1, 1)))
"""Of each group: the tokens that its texts share, and those that each has alone."""
KINDS = {
    "plain": (CPU, {}, False),
    "composed": (MATH, {}, False),
    "window": (MATH, {"window": 5}, False),
    "softcap": (MATH, {"softcap": 2.0}, False),
    "sinks": (CPU, {}, True),
    "composed sinks": (MATH, {"window": 7}, True),
}


def lay_out() -> tuple[Documents, Tensor]:
    """Return the Documents of GROUPS, and (E,) which row of the stream stands where in the texts, written out."""
    rows, lengths, firsts, again, end = [], [], [], {}, 0
    for shared, alone in GROUPS:
        beginning = list(range(end, end + shared))
        end += shared
        for number, count in enumerate(alone):
            if number and shared:
                pairs = again.setdefault(number, ([], []))
                pairs[0].extend(beginning)
                pairs[1].extend(range(len(rows), len(rows) + shared))
            rows += [*beginning, *range(end, end + count)]
            lengths.append(shared + count)
            end += count
    firsts = [rows.index(row) for row in range(end)]
    of = torch.tensor
    repeats = tuple((of(first), of(second)) for first, second in again.values())
    shared = SharedBeginnings(rows=of(rows), own=of(firsts), again=repeats)
    return replace(Documents.of(lengths, "cpu"), shared=shared), shared.rows


def compare(backend: AttentionBackend, changes: dict, sunk: bool, dtype: torch.dtype) -> dict[str, float]:
    """Return how far results and gradients are from those of the same texts apart, as shares of the largest value."""
    heads = make_heads(**changes)
    attention = Attention(heads=heads, packed=backend, equal=None, reason="", saved_bytes_a_token=0)
    documents, rows = lay_out()
    generator, count = torch.Generator().manual_seed(2), len(documents.shared.own)
    sizes = (heads.query_heads, heads.query_heads, heads.key_heads, heads.key_heads)
    drawn = torch.randn(count, sum(sizes), heads.head_dim, generator=generator).to(dtype)
    dout, q, k, v = drawn.split(sizes, 1)
    sinks = torch.randn(heads.query_heads, generator=generator) if sunk else None
    dsinks = [torch.zeros(heads.query_heads) if sunk else None for _ in range(2)]
    out, saved = attention.forward(q, k, v, documents, sinks)
    found = attention.backward(dout, q, k, v, out, saved, documents, sinks, dsinks[0])
    apart = replace(documents, shared=None)
    wide = [one[rows] for one in (q, k, v)]
    whole, saved = attention.forward(*wide, apart, sinks)
    # What is there once has one gradient; apart it would come at each of its places: all at the first.
    first = torch.zeros(len(rows), dtype=torch.bool)
    first[documents.shared.own] = True
    upstream = dout[rows] * first[:, None, None]
    gradients = attention.backward(upstream, *wide, whole, saved, apart, sinks, dsinks[1])
    summed = [
        torch.zeros(count, *one.shape[1:]).double().index_add_(0, rows, one.double()) for one in gradients
    ]
    pairs = {
        "out": (out[rows], whole),
        **{name: pair for name, *pair in zip(("dq", "dk", "dv"), found, summed, strict=True)},
        **({"dsinks": dsinks} if sunk else {}),
    }
    return {
        name: ((one.double() - other.double()).abs().max() / other.double().abs().max()).item()
        for name, (one, other) in pairs.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_beginning_gives_what_the_texts_apart_give(kind, dtype):
    errors = compare(*KINDS[kind], dtype)
    assert max(errors.values()) < (1e-6 if dtype is torch.float32 else 1e-13), errors


def test_the_sum_over_texts_is_not_rounded_at_each():
    assert max(compare(CPU, {}, False, torch.bfloat16).values()) < 2e-2


@pytest.mark.computing
def test_our_kernels_in_the_interpreter_give_the_same():
    """Capped scores and windows; a child, since Triton decides at decoration who runs a kernel."""
    said = run_interpreted("tests.kernels.test_shared_beginnings")
    found = json.loads(said)
    assert found.keys() == {"softcap", "window"}
    assert all(error < 1e-5 for errors in found.values() for error in errors.values()), found


def main() -> None:
    """What the interpreter finds, in fp32, as one JSON object."""
    from studio_kernels._triton import interpreted
    from studio_kernels.attention_backends import TRITON

    if not interpreted():
        sys.exit("the kernels are not interpreted")
    kinds = {"softcap": {"softcap": 2.0}, "window": {"softcap": 2.0, "window": 5}}
    print(json.dumps({name: compare(TRITON, one, False, torch.float32) for name, one in kinds.items()}))


if __name__ == "__main__":
    main()
