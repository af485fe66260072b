"""Numbers packed on a card: they lose what they lose on the processor, also where the card has hardly any room."""

from __future__ import annotations

import pytest
import torch

from studio.models.gguf.quantize import CARD_VALUES, PACKED, quantize
from tests.models.gguf.test_quantize import open_blocks

pytestmark = pytest.mark.gpu
MOST_LOST = 1.02
MOST_OTHER = 0.005
"""Of the bytes: the order of a sum decides between two scales that lose the same."""


def draw(rows, tail="normal"):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 512, generator=generator) * 0.02
    return x / torch.rand(x.shape, generator=generator).clamp(min=0.05) if tail == "heavy" else x


def lose(packed, name, x, share):
    return float(((open_blocks(packed.numpy(), name) - x).square() * share).mean().sqrt())


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("tail", ["normal", "heavy"])
@pytest.mark.parametrize("name", PACKED)
def test_a_card_packs_what_the_processor_does(name, tail, weighted):
    x = draw(512, tail)
    importance = torch.rand(512, generator=torch.Generator().manual_seed(6)) + 0.05 if weighted else None
    here, there = quantize(x, name, importance), quantize(x, name, importance, "cuda")
    assert there.device.type == "cpu"
    assert float((here != there).float().mean()) <= MOST_OTHER
    share = importance if weighted else torch.ones(512)
    assert lose(there, name, x, share) <= MOST_LOST * lose(here, name, x, share)


@pytest.fixture
def little_room():
    """Return what leaves so many bytes of the card to this process, until the test ends."""
    total_bytes = torch.cuda.get_device_properties(0).total_memory

    def leave(room_bytes):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room_bytes) / total_bytes)

    yield leave
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("room_bytes", [2**28, 2**22], ids=["smaller_parts", "processor"])
def test_a_card_without_room_loses_nothing(room_bytes, little_room):
    x = draw(CARD_VALUES // 2 // 512)
    wanted = quantize(x[:256], "Q4_K")
    little_room(room_bytes)
    found = quantize(x, "Q4_K", None, "cuda")
    assert len(found) == len(x)
    if room_bytes == 2**22:
        assert torch.equal(found[:256], wanted)
    assert lose(found[:256], "Q4_K", x[:256], 1.0) <= MOST_LOST * lose(wanted, "Q4_K", x[:256], 1.0)
    assert lose(found[-256:], "Q4_K", x[-256:], 1.0) <= 1.1 * lose(wanted, "Q4_K", x[:256], 1.0)


def test_the_search_keeps_within_its_memory():
    """A part takes at most 2 GiB of the card, whatever a tensor has."""
    x = draw(CARD_VALUES * 3 // 2 // 512)
    for name in PACKED:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before_bytes = torch.cuda.memory_allocated()
        quantize(x, name, None, "cuda")
        assert torch.cuda.max_memory_allocated() - before_bytes <= 2 * 2**30, name
