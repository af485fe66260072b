"""The loss head: against autograd over the full logits in float64, in any portions, for tokens the model is sure of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from studio_kernels.ce_math import IGNORE
from studio_kernels.linear_cross_entropy import (
    LINEAR_CROSS_ENTROPY,
    fused_forward,
    log_probabilities,
    portions,
    reference_forward,
    workspace_bytes,
)
from torch.utils._python_dispatch import TorchDispatchMode

TERMS = (
    {},
    {"softcap": 30.0},
    {"logit_scale": 0.25},
    {"softcap": 3.0, "logit_scale": 2.0},
)
PORTIONS = ({}, {"rows": 4, "columns": 64}, {"rows": 3, "columns": 256}, {"rows": 100, "columns": 16})
WAYS = pytest.mark.parametrize(
    ("device", "forward"),
    [
        pytest.param("cpu", reference_forward, id="reference"),
        pytest.param("cuda", reference_forward, id="reference-gpu", marks=pytest.mark.gpu),
        pytest.param("cuda", fused_forward, id="triton", marks=pytest.mark.gpu),
    ],
)


def draw(rows=13, hidden=32, vocabulary=257, *, dtype=torch.float64, device="cpu", sure=0.0):
    """Hidden states, output embedding and labels, one row in four without."""
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(vocabulary, hidden, generator=generator) * 3 / hidden**0.5
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    x = torch.randn(rows, hidden, generator=generator) + sure * weight[targets]
    targets[1::4] = IGNORE
    return x.to(device, dtype), weight.to(device, dtype), targets.to(device)


def full_loss(x, weight, targets, *, bias=None, softcap=0.0, logit_scale=1.0):
    """The loss of each row by its definition, over the full logits."""
    logits = x @ weight.t() if bias is None else x @ weight.t() + bias
    z = logits * logit_scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    loss = z.logsumexp(1) - z.gather(1, targets.clamp(min=0)[:, None]).squeeze(1)
    return torch.where(targets == IGNORE, 0.0, loss)


def exact(x, weight, targets, scale=1.0, **terms):
    """Loss and gradient by autograd in float64."""
    x = x.double().clone().requires_grad_()
    loss = (full_loss(x, weight.double(), targets, **terms) * scale).sum()
    return loss.detach(), torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("portion", PORTIONS, ids=str)
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_reference_equals_autograd_over_the_full_logits(terms, portion):
    x, weight, targets = draw()
    bias = torch.linspace(-1, 1, 257).double()
    scale = torch.linspace(0.5, 2, 13).double()
    expected = exact(x, weight, targets, scale, bias=bias, **terms)
    found = reference_forward(x, weight, targets, scale=scale, bias=bias, **terms, **portion)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert bias[0] == -1, "the bias is the model's"


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_a_loss_without_its_gradient_is_the_same_loss(terms):
    x, weight, targets = draw()
    losses, gradient = reference_forward(x, weight, targets, reduction="none", gradient=False, **terms)
    torch.testing.assert_close(losses, full_loss(x, weight, targets, **terms), rtol=1e-12, atol=1e-12)
    assert gradient is None


def test_equals_the_library_on_the_plain_loss():
    x, weight, targets = draw(dtype=torch.float32)
    library = torch.nn.functional.cross_entropy(x @ weight.t(), targets, reduction="none")
    losses, gradient = reference_forward(x, weight, targets, reduction="none", gradient=False)
    assert gradient is None
    torch.testing.assert_close(losses, library, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@WAYS
def test_portions_change_nothing_but_rounding(device, forward, dtype):
    x, weight, targets = draw(vocabulary=1001, dtype=dtype, device=device)
    loss, gradient = forward(x, weight, targets)
    again = forward(x, weight, targets)
    assert torch.equal(loss, again[0]) and torch.equal(gradient, again[1])
    # Sums in float32 in another order; shares round alike but where two references differ by rounding.
    share = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for portion in PORTIONS[1:]:
        other_loss, other = forward(x, weight, targets, **portion)
        torch.testing.assert_close(other_loss, loss, rtol=3e-6, atol=0)
        assert (other - gradient).abs().max() <= share * gradient.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@WAYS
def test_sure_tokens_keep_every_digit(device, forward, dtype):
    """p(y) near 1: the loss is far below the rounding of lse and z_y, the gradient far below that of a 16-bit p(y)."""
    x, weight, targets = draw(256, dtype=dtype, device=device, sure=2.75)
    targets = targets.clamp(min=0)
    expected_losses = full_loss(x.double(), weight.double(), targets)
    # Below 1e-11 the float64 difference of lse and z_y has lost too much itself.
    sure = (expected_losses < 1e-5) & (expected_losses > 1e-11)
    assert sure.sum() >= 16
    losses, _ = forward(x, weight, targets, reduction="none", columns=64)
    torch.testing.assert_close(losses.double()[sure], expected_losses[sure], rtol=1e-3, atol=0)
    _, expected = exact(x, weight, targets, scale=4096.0)
    _, gradient = forward(x, weight, targets, scale=4096.0, columns=64)
    error = (gradient.double() - expected).abs().amax(1)
    # A gradient of float16 is stored in steps of 2^-24.
    limit = 1e-2 * expected.abs().amax(1) + (2**-24 if dtype is torch.float16 else 0)
    assert (error <= limit)[sure].all()


@WAYS
def test_no_rows_and_no_labels(device, forward):
    x, weight, targets = draw(dtype=torch.float32, device=device)
    loss, gradient = forward(x[:0], weight, targets[:0])
    assert loss.shape == () and loss == 0 and gradient.shape == (0, 32)
    losses, _ = forward(x[:0], weight, targets[:0], reduction="none")
    assert losses.shape == (0,)
    loss, gradient = forward(x, weight, torch.full_like(targets, IGNORE))
    assert loss == 0 and not gradient.any()
    x[1] = float("nan")  # what lies in rows that do not count stays there
    loss, gradient = forward(x, weight, targets)
    assert loss.isfinite() and gradient.isfinite().all() and not gradient[1].any()


@pytest.mark.parametrize("target", [257, -1])
@WAYS
def test_a_label_outside_the_vocabulary_shows(device, forward, target):
    x, weight, targets = draw(dtype=torch.float32, device=device)
    targets[0] = target
    loss, _ = forward(x, weight, targets)
    assert not loss.isfinite()


def test_gradient_may_be_written_over_the_hidden_states():
    x, weight, targets = draw(dtype=torch.float32)
    _, expected = reference_forward(x, weight, targets)
    padded = torch.full((13, 48), 7.0)
    padded[:, :32] = x
    _, gradient = reference_forward(padded[:, :32], weight, targets, out=padded[:, :32], rows=4)
    assert gradient.data_ptr() == padded.data_ptr()
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
    assert (padded[:, 32:] == 7).all()


def test_targets_may_be_32_bit():
    x, weight, targets = draw(dtype=torch.float32)
    assert torch.equal(
        reference_forward(x, weight, targets.int())[1], reference_forward(x, weight, targets)[1]
    )


def test_log_probabilities_and_their_gradient():
    x, weight, targets = draw()
    logp, unit = log_probabilities(x, weight, targets, softcap=20.0, rows=5, columns=64)
    upstream = torch.linspace(-1, 1, 13).double()
    leaf = x.clone().requires_grad_()
    expected = -full_loss(leaf, weight, targets, softcap=20.0)
    torch.testing.assert_close(logp, expected.detach(), rtol=1e-12, atol=1e-12)
    gradient = torch.autograd.grad(expected, leaf, upstream)[0]
    torch.testing.assert_close(upstream[:, None] * unit, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_differentiable_form(reduction):
    x, weight, targets = draw(rows=3, hidden=5, vocabulary=11)
    leaf = x.requires_grad_()
    apply = LINEAR_CROSS_ENTROPY.reference
    assert torch.autograd.gradcheck(lambda h: apply(h, weight, targets, reduction=reduction), leaf)
    assert not apply(x.detach(), weight, targets).requires_grad
    with pytest.raises(ValueError, match="must be frozen"):
        apply(leaf, weight.requires_grad_(), targets)


def test_dtypes_that_differ_are_refused():
    x, weight, targets = draw()
    with pytest.raises(ValueError, match=r"torch.float64, the output embedding is torch.float32"):
        reference_forward(x, weight.float(), targets)


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_the_full_logits_never_exist():
    x, weight, targets = draw(rows=64, hidden=8, vocabulary=4096, dtype=torch.float32)
    with Largest() as made:
        reference_forward(x, weight, targets, rows=16, columns=512, softcap=30.0)
    assert made.elements <= max(weight.numel(), 16 * 512) < 64 * 4096


@given(
    rows=some.integers(0, 300_000),
    hidden=some.integers(1, 16384),
    vocabulary=some.integers(1, 300_000),
    processors=some.integers(1, 200),
)
@settings(max_examples=300, deadline=None)
def test_portions_are_sound(rows, hidden, vocabulary, processors):
    block, tile = portions(rows, hidden, vocabulary, processors)
    assert block <= rows and (rows == 0 or block >= 1) and tile % 256 == 0
    assert tile < vocabulary + 256
    if rows:
        blocks, tiles = -(-rows // block), -(-vocabulary // tile)
        assert (blocks - 1) * block < rows and (tiles - 1) * tile < vocabulary
        # Evened out: the last block is not a remnant, but for rounding up to 128 rows.
        assert rows - (blocks - 1) * block > block - 128 * blocks
        # The memory that they are chosen for, but for rounding up to 256 columns and at least 1,024 of them.
        assert block * tile <= max(processors * 2**19, 1024 * block) + 256 * block
    if block < rows:
        assert block % 128 == 0


def test_portions_of_known_shapes():
    assert portions(4096, 4096, 128256, 132) == (4096, 16128)  # measured best on one H200: 4096 x 16k
    assert portions(512, 1024, 151936, 132) == (512, 76032)  # two tiles: few launches for small models
    assert portions(4096, 4096, 128256, 40) == (1024, 18432)  # a T4: 72 MiB of logits
    assert portions(65536, 4096, 128256, 132) == (4096, 16128)


def test_workspace_of_known_shapes():
    tile, sums = 4096 * 16128 * 4, 4096 * 4096 * 4
    fused = workspace_bytes(4096, 16128, 4096, torch.bfloat16)
    assert 0 <= fused - tile - sums < 2**20
    reference = workspace_bytes(4096, 16128, 4096, torch.bfloat16, fused=False)
    assert 0 <= reference - 1.5 * tile - sums < 2**20


@pytest.mark.gpu
@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize("forward", [reference_forward, fused_forward])
def test_workspace_is_what_a_call_takes(forward, softcap):
    x, weight, targets = draw(3000, 1024, 32000, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(x)
    forward(x[:64], weight, targets[:64], softcap=softcap)  # cuBLAS takes its own workspace once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward(x, weight, targets, softcap=softcap, rows=1024, columns=8192, out=out)
    taken = torch.cuda.max_memory_allocated() - before
    predicted = workspace_bytes(
        1024, 8192, 1024, torch.bfloat16, fused=forward is fused_forward, softcap=softcap > 0
    )
    assert abs(taken - predicted) < 2**20 + 0.02 * predicted


@pytest.mark.gpu
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("forward", [reference_forward, fused_forward])
def test_nothing_waits_for_the_device(forward, terms):
    x, weight, targets = draw(100, 64, 1000, dtype=torch.bfloat16, device="cuda")
    scale = torch.full((), 0.5, device="cuda")
    forward(x, weight, targets, scale=scale, **terms)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        forward(x, weight, targets, scale=scale, **terms)
        forward(x, weight, targets, scale=0.25, rows=32, columns=256, **terms)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("forward", [reference_forward, fused_forward])
def test_replays_in_a_graph(forward):
    x, weight, targets = draw(300, 64, 1000, dtype=torch.bfloat16, device="cuda")
    expected = forward(x, weight, targets, columns=256)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, gradient = forward(x, weight, targets, columns=256)
    graph.replay()
    assert torch.equal(loss, expected[0]) and torch.equal(gradient, expected[1])


@pytest.mark.gpu
def test_offsets_beyond_two_to_the_31():
    """A tile of more than 2^31 logits and shares."""
    rows, vocabulary = 9000, 2**18
    x, weight, targets = draw(rows, 8, vocabulary, dtype=torch.bfloat16, device="cuda")
    loss, gradient = fused_forward(x, weight, targets, reduction="none", rows=rows, columns=vocabulary)
    other, small = fused_forward(x, weight, targets, reduction="none")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-6)
    assert (gradient - small).abs().max() <= 1e-2 * small.abs().max()


@pytest.mark.gpu
def test_row_counts_share_their_kernels():
    from studio_kernels import linear_cross_entropy as op

    x, weight, targets = draw(5000, 64, 4112, dtype=torch.bfloat16, device="cuda")
    device = torch.cuda.current_device()

    def compiled() -> list[int]:
        return [len(kernel.device_caches[device][0]) for kernel in (op._turn_kernel, op._finish_kernel)]

    fused_forward(x, weight, targets, rows=1024, columns=2048)
    first = compiled()
    for rows in (1, 2, 15, 16, 17, 129, 1000, 4097):
        fused_forward(x[:rows], weight, targets[:rows], rows=1024, columns=2048)
        fused_forward(x[5:rows], weight, targets[5:rows])
    assert compiled() == first
