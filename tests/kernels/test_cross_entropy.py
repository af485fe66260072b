"""Cross-entropy on given logits: against autograd in float64 and the library, with the gradient over the logits."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.cross_entropy import CROSS_ENTROPY, fused_forward, reference_forward, split_rows
from studio_kernels.row_loss import IGNORE

from tests.kernels.test_linear_cross_entropy import TERMS, full_loss

EYE = torch.eye(257, dtype=torch.float64)


def draw(rows=13, vocabulary=257, *, dtype=torch.float64, device="cpu", sure=0.0):
    """Logits and labels, one row in four without."""
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocabulary, generator=generator) * 3
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    logits.scatter_add_(1, targets[:, None], torch.full((rows, 1), sure))
    targets[1::4] = IGNORE
    return logits.to(device, dtype), targets.to(device)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_reference_equals_autograd(terms, monkeypatch):
    monkeypatch.setattr("studio_kernels.cross_entropy.REFERENCE_ELEMENTS", 5 * 257)
    logits, targets = draw()
    scale = torch.linspace(0.5, 2, 13).double()
    leaf = logits.clone().requires_grad_()
    expected = full_loss(leaf, EYE, targets, **terms)
    gradient = torch.autograd.grad((expected * scale).sum(), leaf)[0]
    losses, dlogits = reference_forward(logits, targets, scale=scale, **terms)
    assert dlogits is logits
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dlogits, gradient, rtol=1e-12, atol=1e-14)


def test_equals_the_library():
    logits, targets = draw(dtype=torch.float32)
    library = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
    kept = logits.clone()
    losses, nothing = reference_forward(logits, targets, label_smoothing=0.1, gradient=False)
    assert nothing is None and torch.equal(logits, kept)
    torch.testing.assert_close(losses, library, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ignore", [IGNORE, 3])
def test_rows_to_be_ignored(ignore):
    logits, targets = draw(dtype=torch.float32)
    targets = torch.where(targets == IGNORE, ignore, targets.clamp(min=4))
    logits[1] = float("nan")
    losses, dlogits = reference_forward(logits, targets, ignore=ignore, label_smoothing=0.1)
    assert losses.isfinite().all() and dlogits.isfinite().all()
    assert not losses[1::4].any() and not dlogits[1::4].any() and losses[::4].all()


def test_no_rows():
    losses, dlogits = reference_forward(torch.empty(0, 9), torch.empty(0, dtype=torch.int64))
    assert losses.shape == (0,) and dlogits.shape == (0, 9)


@pytest.mark.parametrize("target", [257, -1])
def test_a_label_outside_the_vocabulary_shows(target):
    logits, targets = draw(dtype=torch.float32)
    targets[0] = target
    losses, _ = reference_forward(logits, targets)
    assert not losses[0].isfinite() and losses[1:].isfinite().all()


def test_sure_tokens_keep_every_digit():
    logits, targets = draw(64, dtype=torch.float32, sure=25.0)
    targets = targets.clamp(min=1)
    expected = full_loss(logits.double(), EYE, targets)
    # Below 1e-11 the float64 difference of lse and z_y has lost too much itself.
    sure = (expected < 1e-5) & (expected > 1e-11)
    assert sure.sum() >= 16
    losses, dlogits = reference_forward(logits, targets)
    torch.testing.assert_close(losses.double()[sure], expected[sure], rtol=1e-3, atol=0)
    own = dlogits.double().gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(own[sure], -expected[sure], rtol=1e-3, atol=0)


def test_differentiable_form():
    logits, targets = draw(rows=5, vocabulary=7)
    leaf = logits.clone().requires_grad_()
    apply = CROSS_ENTROPY.reference
    assert torch.autograd.gradcheck(lambda q: apply(q, targets, softcap=5.0, z_loss=0.1), leaf)
    batch = leaf.view(1, 5, 7)
    assert apply(batch, targets.view(1, 5)).shape == (1, 5)
    assert torch.equal(leaf.detach(), logits), "only the plain function writes over the logits"


def test_rows_are_split_where_they_are_few():
    assert split_rows(1000, 128256, 132, 16384) == (1, 131072)
    assert split_rows(40, 128256, 132, 16384)[0] == 4
    for rows in (1, 3, 50, 263):
        splits, span = split_rows(rows, 151937, 132, 16384)
        assert (splits - 1) * span < 151937 <= splits * span and span % 16384 == 0
    assert split_rows(0, 257, 132, 512) == (1, 512)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 4000])
def test_two_runs_give_the_same_bits_and_nothing_waits(rows):
    logits, targets = draw(rows, 40000, dtype=torch.bfloat16, device="cuda")
    copies = [logits.clone() for _ in range(3)]
    runs = [fused_forward(copies[0], targets)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        runs += [fused_forward(copy, targets) for copy in copies[1:]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for losses, dlogits in runs[1:]:
        assert torch.equal(losses, runs[0][0]) and torch.equal(dlogits, runs[0][1])


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31():
    rows, vocabulary = 2**31 // 40000 + 5, 40000
    logits = torch.zeros(rows, vocabulary, dtype=torch.bfloat16, device="cuda")
    targets = torch.full((rows,), IGNORE, device="cuda")
    tail, labels = draw(2, vocabulary, dtype=torch.bfloat16, device="cuda")
    labels.clamp_(min=0)
    logits[-2:], targets[-2:] = tail, labels
    losses, dlogits = fused_forward(logits, targets)
    expected, gradient = reference_forward(tail, labels)
    torch.testing.assert_close(losses[-2:], expected)
    torch.testing.assert_close(dlogits[-2:], gradient)
    assert not losses[:-2].any() and not dlogits[:-2].any()
