"""AdamW over flat buffers: PyTorch's own numbers, its clipping, steps that are skipped, the same bits every time."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import adamw
from studio_kernels.adamw import ADAMW, APPLIED, RATE

COUNT = 1000
IMPLEMENTATIONS = [
    pytest.param(ADAMW.reference, "cpu", id="reference-cpu"),
    pytest.param(ADAMW.reference, "cuda", id="reference-cuda", marks=pytest.mark.gpu),
    pytest.param(ADAMW.triton, "cuda", id="triton-cuda", marks=pytest.mark.gpu),
]


class Run:
    """Flat buffers and what drives them."""

    def __init__(self, implementation, device: str, *, limit: float = 1.0, scale: float = 1.0):
        self.implementation, self.scale = implementation, scale
        self.parameters = draw(seed=1).to(device)
        self.first, self.second = torch.zeros_like(self.parameters), torch.zeros_like(self.parameters)
        self.settings = torch.tensor([1e-2, limit, 1 / scale], device=device)
        self.state = torch.zeros(3, device=device)

    def step(self, gradient: torch.Tensor, **options) -> torch.Tensor:
        buffers = (self.parameters, gradient.to(self.parameters.device) * self.scale, self.first, self.second)
        return self.implementation.forward(*buffers, settings=self.settings, state=self.state, **options)

    def bits(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in (self.parameters, self.first, self.second, self.state)]


def draw(seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed)) * scale


def torch_steps(
    gradients: list[torch.Tensor], limit: float, decay: float, dtype=torch.float64
) -> torch.Tensor:
    """The parameters after the same steps of torch.optim.AdamW and clip_grad_norm_."""
    parameters = torch.nn.Parameter(draw(seed=1).to(dtype))
    optimizer = torch.optim.AdamW([parameters], lr=1e-2, weight_decay=decay, foreach=False)
    for gradient in gradients:
        parameters.grad = gradient.to(dtype)
        if limit:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
    return parameters.detach()


@pytest.mark.parametrize(("implementation", "device"), IMPLEMENTATIONS)
@pytest.mark.parametrize("limit", [0.0, 1.0])
@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_two_hundred_steps_stay_with_float64(implementation, device, limit, scale):
    # Norms from 0.3 to 3: about half of the gradients are clipped.
    gradients = [draw(seed=step, scale=10 ** (step % 11 / 10 - 2)) for step in range(200)]
    run = Run(implementation, device, limit=limit, scale=scale)
    norms = [run.step(gradient, weight_decay=0.1).item() for gradient in gradients]
    exact = torch_steps(gradients, limit, decay=0.1)
    assert (run.parameters.cpu() - exact).abs().max() < 2e-6 < (exact - draw(seed=1)).abs().max()
    assert norms == pytest.approx([gradient.norm().item() for gradient in gradients], rel=1e-5)
    assert run.state[APPLIED] == 200
    assert run.state[1:].tolist() == pytest.approx([1 - 0.9**200, 1 - 0.999**200], rel=2e-6)


def test_the_first_steps_are_as_exact_as_torch_in_float32():
    gradients = [draw(seed=step) for step in range(3)]
    run = Run(ADAMW.reference, "cpu")
    for gradient in gradients:
        run.step(gradient)
    exact, theirs = (
        torch_steps(gradients, 1.0, decay=0.0, dtype=dtype) for dtype in (torch.float64, torch.float32)
    )
    assert (run.parameters - exact).abs().max() <= 1.25 * (theirs - exact).abs().max()


@pytest.mark.parametrize(("implementation", "device"), IMPLEMENTATIONS)
def test_two_runs_have_the_same_bits(implementation, device):
    runs = []
    for _ in range(2):
        run = Run(implementation, device)
        for seed in range(20):
            run.step(draw(seed))
        runs.append(run.bits())
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


@pytest.mark.parametrize(("implementation", "device"), IMPLEMENTATIONS)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e30], ids=str)
@pytest.mark.parametrize("when", [0, 3])
def test_a_broken_step_is_as_if_it_had_not_been(implementation, device, value, when):
    """1e30 is finite, its square is not."""
    with_it, without = Run(implementation, device), Run(implementation, device)
    for step in range(6):
        if step == when:
            broken = draw(seed=99)
            broken[COUNT // 2] = value
            before = with_it.bits()
            assert not with_it.step(broken, weight_decay=0.1).isfinite()
            assert all(torch.equal(*pair) for pair in zip(before, with_it.bits(), strict=True))
        with_it.step(draw(step)), without.step(draw(step))
    assert all(torch.equal(*pair) for pair in zip(with_it.bits(), without.bits(), strict=True))
    assert with_it.state[APPLIED] == 6


@pytest.mark.parametrize(("implementation", "device"), IMPLEMENTATIONS)
def test_clipping_is_torchs(implementation, device):
    """One step from nothing: the first moment is 0.1 times the clipped gradient."""
    for limit in (0.0, 0.5, 1e9):
        gradient = draw(seed=5)
        run = Run(implementation, device, limit=limit, scale=1024.0)
        norm = run.step(gradient)
        clipped = torch.nn.Parameter(torch.zeros(COUNT))
        clipped.grad = gradient.clone()
        expected = torch.nn.utils.clip_grad_norm_(clipped, limit or float("inf"))
        torch.testing.assert_close(norm.cpu(), expected)
        torch.testing.assert_close(run.first.cpu(), clipped.grad * 0.1, rtol=1e-6, atol=0)


def test_several_buffers_share_one_norm():
    """As the parts of a model on two devices: sums of squares are added, one set of coefficients serves both."""
    gradient, whole = draw(0), Run(ADAMW.reference, "cpu")
    norm = whole.step(gradient)
    parts, settings, state = Run(ADAMW.reference, "cpu"), whole.settings, torch.zeros(3)
    pieces = [slice(0, 400), slice(400, COUNT)]
    squares = sum(ADAMW.reference.squares(gradient[piece]) for piece in pieces)
    coefficients = ADAMW.reference.advance(squares, settings, state, beta1=0.9, beta2=0.999)
    for piece in pieces:
        buffers = (each[piece] for each in (parts.parameters, gradient, parts.first, parts.second))
        ADAMW.reference.step(*buffers, coefficients, epsilon=1e-8, weight_decay=0.0)
    assert coefficients[adamw.NORM] == pytest.approx(norm.item())
    torch.testing.assert_close(parts.parameters, whole.parameters)


@pytest.mark.computing
def test_no_kernel_fuses_what_torch_rounds_twice(monkeypatch, tmp_path):
    import triton

    from tests.kernels.launches import TARGETS, Launch, Recorder

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    launches: list[Launch] = []
    for name in ("_squares_kernel", "_advance_kernel", "_step_kernel"):
        monkeypatch.setattr(adamw, name, Recorder(name, getattr(adamw, name), launches))
    adamw.sample(rows=4, width=128, dtype=torch.bfloat16, device="cpu", steps=1)(ADAMW.triton)
    compiled = {launch.name: launch.compile(TARGETS["sm_90"]) for launch in launches}
    assert len(compiled) == 3
    for each in compiled.values():
        assert each.metadata.enable_fp_fusion is False and "fma" not in each.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", [ADAMW.reference, ADAMW.triton], ids=["reference", "triton"])
def test_a_graph_replays_steps_and_nothing_waits_for_the_gpu(implementation):
    """Rate and gradient change between replays; the count of steps lives on the device."""
    eager, replayed = Run(implementation, "cuda"), Run(implementation, "cuda")
    gradients = [draw(seed).cuda() for seed in range(6)]
    gradients[3][0] = float("inf")
    rates = torch.tensor([1e-2, 5e-3, 1e-3, 1e-3, 2e-3, 1e-4], device="cuda")
    gradient = torch.zeros_like(gradients[0])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        Run(implementation, "cuda").step(gradient)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed.step(gradient)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for each, rate in zip(gradients, rates, strict=True):
            eager.settings[RATE] = rate
            replayed.settings[RATE] = rate
            gradient.copy_(each)
            eager.step(each)
            graph.replay()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert all(torch.equal(*pair) for pair in zip(eager.bits(), replayed.bits(), strict=True))
    assert eager.state[APPLIED] == 5
