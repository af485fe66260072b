"""The tiles of attention's kernels: each card's own fit its shared memory, and the sample says what it claims."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import triton
from studio_kernels import flash
from studio_kernels.dispatch import op_named

from tests.each_time import some_of_several
from tests.kernels.launches import Launch, Recorder, check

KERNELS = ("_forward_kernel", "_query_kernel", "_key_kernel")
CARDS = {
    "sm_80": (8, 0),
    "sm_86": (8, 6),
    "sm_89": (8, 9),
    "sm_90": (9, 0),
    "sm_100": (10, 0),
    "sm_120": (12, 0),
}
FAST = (64, "sm_90")
"""Compiled each time; test_compile.py compiles the smallest tiles, which a processor is given."""
TWINS = ((128, "sm_86"), (64, "sm_89"), (256, "sm_89"))
"""Left out: the compiler treats both cards alike, and they have as little shared memory."""


@pytest.fixture
def launches(monkeypatch, tmp_path) -> list[Launch]:
    """What is launched from here on."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    noted: list[Launch] = []
    for name in KERNELS:
        monkeypatch.setattr(flash, name, Recorder(name, getattr(flash, name), noted))
    return noted


@pytest.mark.parametrize(
    ("head_dim", "card"),
    some_of_several([one for one in product((64, 128, 256, 512), CARDS) if one not in TWINS], FAST),
)
def test_tiles_fit_every_card(launches, monkeypatch, head_dim, card):
    monkeypatch.setattr(flash, "read_capability", lambda device: CARDS[card])
    sample = op_named("flash").sample(
        rows=8, width=2 * head_dim, head_dim=head_dim, dtype=torch.bfloat16, device="cpu"
    )
    sample(op_named("flash").triton)
    assert [launch.name for launch in launches] == list(KERNELS)
    check(launches, card)


@pytest.mark.parametrize("shared_kb", flash.TILES)
def test_tiles_are_powers_of_two_that_a_matrix_instruction_takes(shared_kb):
    assert set(flash.TILES[shared_kb]) == {64, 128, 256, 512}
    for tiles in flash.TILES[shared_kb].values():
        for size in (size for tile in tiles for size in (tile.queries, tile.keys)):
            assert size >= 16 and size & (size - 1) == 0


def test_an_unknown_card_gets_the_smallest_tiles():
    assert flash.choose_tiles(512, (12, 1)) == flash.choose_tiles(512, None) == flash.TILES[99][256]
    assert flash.choose_tiles(32, (9, 0)) == flash.TILES[227][64]


def test_the_samples_caps_and_windows_are_felt():
    """A sample whose options changed nothing would let a kernel pass that ignores them."""
    facts = {"rows": 60, "width": 64, "head_dim": 16, "dtype": torch.float32, "device": "cpu"}
    reference = op_named("flash").reference
    plain = op_named("flash").sample(**facts, softcap=0.0)(reference)
    for options in ({"softcap": 5.0}, {"softcap": 0.0, "window": 7}, {"softcap": 0.0, "lengths": (30,)}):
        other = op_named("flash").sample(**facts, **options)(reference)
        assert all((plain[name] - other[name]).abs().max() > 0.02 for name in plain if name != "dv")
    padded = op_named("flash").sample(**facts, softcap=0.0, empty=3)(reference)
    assert all(torch.equal(plain[name], padded[name]) for name in plain)
