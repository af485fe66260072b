"""Numbers packed into blocks: what they are when they are opened, beside what llama.cpp makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from benchmarks.llama_library import open_library, pack_by_llama_cpp
from studio.models.gguf.quantize import PACKED, quantize

ROOT = Path(__file__).parents[3]
FORMS = tuple(PACKED)


def open_blocks(packed: np.ndarray, name: str) -> torch.Tensor:
    return torch.from_numpy(quants.dequantize(packed, GGMLQuantizationType[name]))


@pytest.fixture(scope="module")
def llama_library():
    """llama.cpp's own, in the package xllamacpp: what needs no llama.cpp can be collected and run without it."""
    return open_library()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("tail", ["normal", "heavy"])
@pytest.mark.parametrize("name", FORMS)
def test_it_loses_no_more_than_llama_cpp(name, tail, weighted, llama_library):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(48, 512, generator=generator) * 0.02
    if tail == "heavy":
        x = x / torch.rand(48, 512, generator=generator).clamp(min=0.05)
    importance = torch.rand(512, generator=generator) + 0.05 if weighted else None
    share = importance if weighted else torch.ones(512)

    def lose(packed):
        return float(((open_blocks(packed, name) - x).square() * share).sum())

    ours, counts = quantize(x, name, importance).numpy(), importance.numpy() if weighted else None
    theirs = pack_by_llama_cpp(llama_library, x.numpy(), name, counts, ours.shape[1])
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


def test_what_a_device_has_no_room_for_the_processor_packs(monkeypatch):
    """On this device nothing can be stored: a part is refused, smaller ones are tried, then none."""
    x, tried = torch.randn(2**13, 512), []

    def pack(values, weights, pack=PACKED["Q8_0"]):
        tried.append((values.device.type, values.numel()))
        if values.is_meta:
            raise torch.OutOfMemoryError("no room")
        return pack(values, weights)

    whole = quantize(x, "Q8_0")
    monkeypatch.setitem(PACKED, "Q8_0", pack)
    assert torch.equal(quantize(x, "Q8_0", None, "meta"), whole)
    refused = [count for device, count in tried if device == "meta"]
    assert refused == [2**22, 2**22, 2**21] and len(tried) > 3


@pytest.mark.computing
def test_tests_for_a_card_are_found_without_llama_cpp():
    """A machine with a card may have the studio's packages alone, and a module that is not imported is an error."""
    collect = (
        "import sys, pytest\nsys.modules['xllamacpp'] = None\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-m', 'gpu', '-p', 'no:cacheprovider', 'tests/models/gguf']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", collect], cwd=ROOT, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout
    assert "test_quantize_gpu.py" in done.stdout
