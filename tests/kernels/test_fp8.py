"""Rows in 8-bit floating point: how far off they are, values that no scale helps, products and who may compute them."""

from __future__ import annotations

import pytest
import torch
from studio_kernels import fp8
from studio_kernels.fp8 import FP8, multiply, reference_multiply, supports_multiply

HOPPER = {
    "device_type": "cuda",
    "capability": (9, 0),
    "dtype": torch.bfloat16,
    "inputs": 4096,
    "outputs": 6144,
}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return (
        (ours.double() - exact.double()).square().mean().sqrt() / exact.double().square().mean().sqrt()
    ).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gaussian_weights_lose_three_percent(dtype):
    x = draw(256, 4096, dtype=dtype)
    x8, scale = FP8.reference.forward(x)
    assert x8.dtype == torch.float8_e4m3fn and scale.shape == (256, 1) and scale.dtype == torch.float32
    assert 0.023 < relative(x8.float() * scale, x) < 0.029
    assert x8.float().abs().amax(1).eq(448).all(), "every row uses the whole range"


def test_rows_are_scaled_each_on_its_own():
    x = draw(3, 64) * torch.tensor([[1e-6], [1.0], [1e6]])
    x8, scale = FP8.reference.forward(x)
    for row in range(3):
        assert relative(x8[row].float() * scale[row], x[row]) < 0.035


def test_zeros_stay_zeros_and_broken_values_stay_broken():
    x = torch.zeros(3, 16)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    x8, scale = FP8.reference.forward(x)
    restored = x8.float() * scale
    assert restored[0].abs().max() == 0 and scale[0] > 0
    assert restored[1, 3].isnan() and restored[2, 5].isnan()


def test_rows_go_into_the_columns_of_a_wider_matrix():
    wide = torch.zeros(4, 96, dtype=torch.float8_e4m3fn)
    x = draw(4, 128)[:, :64]
    x8, _ = FP8.reference.forward(x, out=wide[:, :64])
    assert x8.data_ptr() == wide.data_ptr()
    assert torch.equal(x8.float(), FP8.reference.forward(x.contiguous())[0].float())
    assert wide[:, 64:].float().abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_product_of_two_quantised_matrices(dtype):
    x, w = draw(33, 512), draw(48, 512, seed=1)
    (x8, x_scale), (w8, w_scale) = FP8.reference.forward(x), FP8.reference.forward(w)
    exact = (x8.double() * x_scale) @ (w8.double() * w_scale).t()
    out = torch.empty(33, 48, dtype=dtype)
    y = reference_multiply(x8, x_scale, w8, w_scale, dtype, out)
    assert y.data_ptr() == out.data_ptr() and y.dtype == dtype
    assert relative(y, exact) < 4 * torch.finfo(dtype).eps + 1e-6 * (dtype == torch.float64)
    assert 0.02 < relative(y, x @ w.t()) < 0.05, "both sides lose 2.6 %"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"capability": (8, 6)}, "8.9"),
        ({"capability": None}, "8.9"),
        ({"device_type": "cpu"}, "8.9"),
        ({"dtype": torch.float16}, "bfloat16"),
        ({"inputs": 4100}, "multiples of 16"),
        ({"outputs": 10}, "multiples of 16"),
    ],
)
def test_who_may_multiply(changed, reason):
    assert supports_multiply(**HOPPER).ok
    verdict = supports_multiply(**HOPPER | changed)
    assert not verdict.ok and reason in verdict.reason


def test_rows_that_no_program_holds_are_refused():
    given = {"device_type": "cuda", "capability": (9, 0), "dtype": torch.bfloat16}
    assert (
        FP8.supports(**given, width=fp8.MAX_WIDTH).ok
        and not FP8.supports(**given, width=fp8.MAX_WIDTH + 1).ok
    )


@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
def test_the_instruction_compiles_where_it_is_used(monkeypatch, tmp_path, target):
    import triton

    from tests.kernels.launches import TARGETS, Launch, Recorder

    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(fp8, "_native", lambda device: True)
    launches: list[Launch] = []
    monkeypatch.setattr(fp8, "_rows_kernel", Recorder("_rows_kernel", fp8._rows_kernel, launches))
    fp8.sample(rows=8, width=4096, dtype=torch.bfloat16, device="cpu")(FP8.triton)
    ptx = launches[0].compile(TARGETS[target]).asm["ptx"]
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx, "by way of float16 it would round twice"


def every_float32_near_e4m3() -> torch.Tensor:
    """Each number of e4m3, each tie between two of them, and their neighbours in float32, in rows whose scale is 1."""
    numbers = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    points = torch.cat([numbers, (numbers[1:] + numbers[:-1]) / 2])
    near = torch.cat([points, *(torch.nextafter(points, torch.tensor(to)) for to in (1e30, -1e30))]).clamp(
        -448, 448
    )
    both = torch.cat([near, -near, torch.full((-2 * len(near) % 16,), 448.0)])
    return torch.cat([both.view(16, -1), torch.full((16, 1), 448.0)], 1)


@pytest.mark.gpu
@pytest.mark.parametrize("native", [True, False])
def test_kernel_rounds_ties_as_torch_does(monkeypatch, native):
    if native and torch.cuda.get_device_capability() < (9, 0):
        native = False  # no such instruction
    monkeypatch.setattr(fp8, "_native", lambda device: native)
    x = every_float32_near_e4m3().cuda()
    for implementation in (FP8.triton, FP8.reference):
        x8, scale = implementation.forward(x)
        assert scale.eq(1).all()
        assert torch.equal(x8.view(torch.uint8).cpu(), x.cpu().to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(16, 256, 64), (1000, 4096, 6144), (1, 4096, 128)])
def test_the_gpus_product_is_the_references(rows, inputs, outputs, fast):
    x, w = (
        draw(rows, inputs, dtype=torch.bfloat16).cuda(),
        draw(outputs, inputs, seed=1, dtype=torch.bfloat16).cuda(),
    )
    (x8, x_scale), (w8, w_scale) = FP8.triton.forward(x), FP8.triton.forward(w)
    answer = supports_multiply(
        device_type="cuda",
        capability=torch.cuda.get_device_capability(),
        dtype=x.dtype,
        inputs=inputs,
        outputs=outputs,
    )
    assert answer.ok, answer.reason
    exact = (x8.double() * x_scale) @ (w8.double() * w_scale).t()
    y = multiply(x8, x_scale, w8, w_scale, fast=fast)
    assert y.dtype == torch.bfloat16 and relative(y, exact) < (6e-3 if fast else 3e-3)
    out = torch.empty_like(y)
    assert multiply(x8, x_scale, w8, w_scale, out=out, fast=fast).data_ptr() == out.data_ptr()
    assert torch.equal(out, y)
    assert relative(reference_multiply(x8, x_scale, w8, w_scale), exact) < 5e-3
