"""The kernels on a real GPU: exactness, long offsets, equal bits, one compilation for all lengths, whole models."""

from __future__ import annotations

import json

import pytest
import torch
from studio_kernels import glu, rms_norm, self_test
from studio_kernels.dispatch import OPS, op_named

from tests.kernels.oracle import cases, measure

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", cases("CASES", "LARGE"), ids=lambda case: case.id)
def test_kernel_is_as_exact_as_its_twin(case):
    comparisons = list(measure(op_named(case.op), case.options, "cuda"))
    assert comparisons
    assert [comparison for comparison in comparisons if not comparison.ok] == []


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_two_runs_give_the_same_bits(op):
    run = op.sample(rows=1000, width=1280, dtype=torch.bfloat16, device="cuda")
    first, *others = (run(op.triton) for _ in range(3))
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_self_test_finds_every_kernel_right(capsys):
    assert self_test.main() == 0
    facts = {}
    for line in capsys.readouterr().out.splitlines():
        facts |= json.loads(line.removeprefix("FACTS "))
    assert facts["triton_level"] == "right"
    assert [(test["op"], test["ok"]) for test in facts["kernel_tests"]] == [
        (op.name, True) for op in OPS if op.used
    ]
    assert all(test["kernel_ms"] > 0 and test["twin_ms"] > 0 for test in facts["kernel_tests"])


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_supports_this_card(op):
    capability = torch.cuda.get_device_capability()
    assert op.supports(device_type="cuda", capability=capability, dtype=torch.bfloat16, width=4096).ok


def test_offsets_beyond_two_to_the_31():
    rows, width = 2**31 // 4096 + 3, 4096
    x = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
    x[-2:] = torch.randn(2, width)
    weight = torch.randn(width, dtype=torch.bfloat16, device="cuda")
    tail = x[-2:].clone()
    y = rms_norm.fused(x, weight, 1e-6)
    torch.testing.assert_close(y[-2:], rms_norm.compose(tail, weight, 1e-6))
    assert y[:-2].abs().max() == 0
    del y
    torch.testing.assert_close(glu.fused(x, x)[-2:], glu.compose(tail, tail))


def test_lengths_do_not_recompile():
    def run(rows: int) -> None:
        x = torch.randn(1, rows, 512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        weight = torch.randn(512, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        glu.fused(rms_norm.fused(x, weight, 1e-6), x).sum().backward()

    kernels = [
        module.__dict__[f"_{way}_kernel"] for module in (rms_norm, glu) for way in ("forward", "backward")
    ]
    device = torch.cuda.current_device()
    run(33)
    compiled = [len(kernel.device_caches[device][0]) for kernel in kernels]
    assert min(compiled) >= 1
    for rows in (1, 2, 15, 16, 17, 256, 4096, 70_000):
        run(rows)
    assert [len(kernel.device_caches[device][0]) for kernel in kernels] == compiled


def test_no_rows_at_all():
    x = torch.empty(0, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    weight = torch.ones(64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    glu.fused(rms_norm.fused(x, weight, 1e-6), x).sum().backward()
    assert x.grad.shape == (0, 64) and weight.grad.abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma3", "phi3"])
def test_whole_models_with_every_swap(family, dtype):
    from studio.models.module_swaps import fuse
    from tests.models.test_module_swaps import MLPS, NORMS, PLAN, make_model

    model = make_model(family, dtype).cuda()
    # From 1: the padding token's embedding is zero, where every norm multiplies gradients by eps**-0.5 = 1000; four
    # norms in a row (Gemma) leave float16's range, in the stock model too.
    tokens = (torch.arange(22, device="cuda").reshape(2, 11) + 1) * 7 % 96

    def run() -> torch.Tensor:
        model.zero_grad()
        output = model(input_ids=tokens, labels=tokens)
        output.loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        return torch.cat([output.logits.flatten(), *gradients]).float()

    stock = run()
    fused = fuse(model, PLAN)
    assert len(fused.swaps) == NORMS[family] + MLPS[family], fused.refused
    assert {swap.implementation for swap in fused.swaps} == {"triton"}
    cosine = torch.nn.functional.cosine_similarity(run(), stock, dim=0).item()
    assert cosine > {torch.float32: 0.999999, torch.float16: 0.9999, torch.bfloat16: 0.999}[dtype]
    fused.undo()
    assert torch.equal(run(), stock)
