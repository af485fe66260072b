"""Parts that threads compute each alone: in their order, with PyTorch's own threads left as they were."""

from __future__ import annotations

import threading

import pytest
import torch

from studio.models import processor_parts
from studio.models.gguf.quantize import PART_VALUES, quantize
from studio.models.processor_parts import MOST_THREADS, compute_parts


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_each_part_has_one_thread_and_as_many_go_at_once_as_there_are_cores(two_threads, monkeypatch):
    monkeypatch.setattr(processor_parts, "count_cores", lambda: 3)
    together, threads = threading.Barrier(3, timeout=20), []

    def work(part: int) -> int:
        torch.ones(2**17).exp()  # what asks how many threads there are
        threads.append(torch.get_num_threads())
        together.wait()
        return part * part

    assert compute_parts(work, range(3)) == [0, 1, 4]
    assert threads == [1, 1, 1] and torch.get_num_threads() == 2


def test_so_many_go_at_once_that_their_memory_stays_small(two_threads, monkeypatch):
    monkeypatch.setattr(processor_parts, "count_cores", lambda: 64)
    together, threads = threading.Barrier(MOST_THREADS, timeout=20), set()

    def work(part: int) -> None:
        threads.add(threading.get_ident())
        together.wait()

    compute_parts(work, range(4 * MOST_THREADS))
    assert len(threads) == MOST_THREADS == 16


def test_what_a_part_raises_is_raised_and_the_threads_come_back(two_threads):
    def work(part: int) -> int:
        if part == 1:
            raise ValueError("part 1")
        return part

    with pytest.raises(ValueError, match="part 1"):
        compute_parts(work, range(4))
    assert torch.get_num_threads() == 2


def test_what_is_packed_does_not_depend_on_the_number_of_cores(monkeypatch):
    torch.manual_seed(0)
    values = torch.randn(3 * PART_VALUES // 1024 + 1, 1024)
    importance = torch.rand(1024) + 0.1
    found = []
    for cores in (1, 4):
        monkeypatch.setattr(processor_parts, "count_cores", lambda cores=cores: cores)
        found.append(quantize(values, "Q4_K", importance))
    assert torch.equal(*found) and found[0].shape == (len(values), 4 * 144)
