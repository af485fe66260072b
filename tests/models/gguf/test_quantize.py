"""Numbers packed into blocks: what they are when they are opened, beside what llama.cpp makes of them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
import xllamacpp
from gguf import GGMLQuantizationType, quants

from studio.models.gguf.quantize import PACKED, quantize

FORMS = tuple(PACKED)


def open_blocks(packed: np.ndarray, name: str) -> torch.Tensor:
    return torch.from_numpy(quants.dequantize(packed, GGMLQuantizationType[name]))


def pack_by_llama_cpp(x: torch.Tensor, name: str, importance: torch.Tensor | None) -> np.ndarray:
    library = next(Path(xllamacpp.__file__).parent.glob("*.so"))
    pack = ctypes.CDLL(str(library)).ggml_quantize_chunk
    pack.restype = ctypes.c_size_t
    pack.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    rows, columns = x.shape
    out = np.zeros_like(quantize(x, name).numpy())
    values = np.ascontiguousarray(x.numpy())
    weights = np.ascontiguousarray(importance.numpy()) if importance is not None else None
    pack(int(GGMLQuantizationType[name]), values.ctypes.data, out.ctypes.data, 0, rows, columns,
         weights.ctypes.data if weights is not None else None)  # fmt: skip
    return out


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("tail", ["normal", "heavy"])
@pytest.mark.parametrize("name", FORMS)
def test_it_loses_no_more_than_llama_cpp(name, tail, weighted):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(48, 512, generator=generator) * 0.02
    if tail == "heavy":
        x = x / torch.rand(48, 512, generator=generator).clamp(min=0.05)
    importance = torch.rand(512, generator=generator) + 0.05 if weighted else None
    share = importance if weighted else torch.ones(512)

    def lose(packed):
        return float(((open_blocks(packed, name) - x).square() * share).sum())

    ours, theirs = quantize(x, name, importance).numpy(), pack_by_llama_cpp(x, name, importance)
    assert ours.shape == theirs.shape
    assert lose(ours) <= 1.02**2 * lose(theirs)
    if name == "Q8_0":
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", FORMS)
def test_numbers_at_the_edges_are_packed(name):
    x = torch.zeros(5, 256)
    x[1], x[2, 7], x[3] = 0.25, 3.0, torch.linspace(-1, 1, 256)
    x[4] = 1e-30
    found = open_blocks(quantize(x, name).numpy(), name)
    assert torch.isfinite(found).all()
    assert (found[0] == 0).all() and found[4].abs().max() < 1e-6
    assert (found[1] - 0.25).abs().max() < 0.02 and (found[3] - x[3]).square().mean().sqrt() < 0.08
    assert (found[2, 7] - 3).abs() < 0.1


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1"])
def test_rows_that_are_no_whole_blocks_of_256_have_smaller_ones(name):
    x = torch.randn(4, 96)
    found = open_blocks(quantize(x, name).numpy(), name)
    assert (found - x).square().mean().sqrt() < 0.1


def test_a_part_at_a_time_gives_the_same_bytes(monkeypatch):
    x = torch.randn(32, 512)
    whole = quantize(x, "Q4_K")
    monkeypatch.setattr("studio.models.gguf.quantize.PART_VALUES", 4 * 512)
    assert torch.equal(quantize(x, "Q4_K"), whole)
