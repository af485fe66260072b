"""Arrays on their way to the device: nothing is lost, nothing lies at odd addresses, no buffer is written too early."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from studio_kernels.attention import Documents

from studio.models.decoder.host_to_device import (
    ALIGNED_BYTES,
    SLOTS,
    Staging,
    _cut,
    count_bytes,
    pack,
    split_rows,
)


def arrays(seed: int) -> list[np.ndarray]:
    """Return arrays of odd lengths, an empty one among them."""
    draw = np.random.default_rng(seed)
    return [
        draw.integers(0, 2**62, 37),
        draw.integers(0, 2**30, 5).astype(np.int32),
        np.zeros(0, dtype=np.int64),
        draw.integers(0, 2**30, 1 + 999 * seed % 4001).astype(np.int32),
        draw.random(3).astype(np.float32),
    ]


def test_what_is_packed_is_found_again_at_even_addresses():
    given = arrays(3)
    memory = torch.empty(count_bytes(given) + ALIGNED_BYTES, dtype=torch.uint8)
    pack(given, memory.numpy())
    found = _cut(memory, given)
    for array, tensor in zip(given, found, strict=True):
        assert tensor.numpy().dtype == array.dtype and np.array_equal(tensor.numpy(), array)
        assert tensor.storage_offset() * tensor.element_size() % ALIGNED_BYTES == 0


def test_on_a_processor_they_arrive_as_they_are():
    staging, given = Staging(torch.device("cpu")), arrays(1)
    for array, tensor in zip(given, staging.send(given), strict=True):
        assert np.array_equal(tensor.numpy(), array)
    out = torch.empty(count_bytes(given), dtype=torch.uint8)
    for array, tensor in zip(given, staging.send(given, out), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()


@pytest.mark.parametrize("lengths", [(1,), (5, 5), (3, 1, 60)])
def test_rows_are_split_as_documents_are(lengths):
    starts, positions = split_rows(lengths)
    expected = Documents.of(lengths, "cpu")
    assert starts.dtype == positions.dtype == np.int32
    assert starts.tolist() == expected.starts.tolist()
    assert positions.tolist() == expected.positions.tolist()
    starts, positions = split_rows(lengths, documents=16)
    assert starts.tolist() == expected.starts.tolist() + [sum(lengths)] * (16 - len(lengths))
    assert positions.tolist() == expected.positions.tolist()


@pytest.mark.gpu
def test_on_a_gpu_no_copy_is_overtaken_and_nothing_waits():
    """Many more copies than slots are enqueued behind work that keeps the GPU from them."""
    device = torch.device("cuda")
    staging, sent, held = Staging(device), [], []
    square = torch.zeros(4096, 4096, device=device)
    for seed in range(5 * SLOTS):
        given = arrays(seed)
        torch.mm(square, square, out=torch.empty_like(square))
        sent.append((given, staging.send(given)))
    for given, found in sent:
        for array, tensor in zip(given, found, strict=True):
            assert tensor.device.type == "cuda" and tensor.data_ptr() % 16 == 0
            assert np.array_equal(tensor.cpu().numpy(), array)
    out = torch.empty(count_bytes(arrays(2)), dtype=torch.uint8, device=device)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        held = staging.send(arrays(2), out)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert all(np.array_equal(t.cpu().numpy(), a) for a, t in zip(arrays(2), held, strict=True))
