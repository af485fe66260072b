"""The rule inside transformers' mixers by our op: borrowed code, what it leaves alone, and who notices a wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from studio_kernels.gated_delta import GATED_DELTA
from studio_kernels.row_chunks import Chunks
from torch import nn

from studio.models import delta_rule
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from studio.models.delta_rule import borrow_forward, has_delta_rule, width_of
from studio.models.module_swaps import fuse
from tests.models.decoder.models import DELTA, SHAPE, TOKENS, make_model, twins_as_kernels

FAMILIES = {"qwen3_5": transformers.Qwen3_5TextConfig, "qwen3_next": transformers.Qwen3NextConfig}


@pytest.fixture(autouse=True)
def takes_float32(monkeypatch):
    """Let the twin stand for the kernels, which take 16 bits alone."""
    monkeypatch.setattr(delta_rule, "DTYPES", (torch.bfloat16, torch.float32))


def make_mixer(family: str) -> nn.Module:
    torch.manual_seed(0)
    experts = {"num_experts": 0} if family == "qwen3_next" else {}
    model = transformers.AutoModelForCausalLM.from_config(
        FAMILIES[family](**SHAPE | DELTA | TOKENS | experts)
    )
    mixer = model.model.layers[0].linear_attn
    mixer.A_log.data.normal_(-1.0, 0.3)
    return mixer


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixer_computes_the_same_by_the_op(family):
    mixer = make_mixer(family)
    assert has_delta_rule(mixer) and not has_delta_rule(nn.Linear(2, 2)) and width_of(mixer) == 64
    calls = []

    def count(*arguments, **options):
        calls.append(arguments[0].shape)
        return GATED_DELTA.reference(*arguments, **options)

    mixer.conv1d.weight.requires_grad_(False)
    twin = replace(GATED_DELTA.reference, apply=count)
    kernels = twins_as_kernels(twin)
    fused = kernels.implementations | {"rms_norm": "triton", "glu": "triton"}
    forward = borrow_forward(mixer, replace(kernels, implementations=fused))
    x = torch.randn(2, 70, 64, requires_grad=True)
    results = []
    for call in (mixer, lambda x: forward(mixer, x)):
        y = call(x)
        results.append(
            (
                y,
                *torch.autograd.grad(
                    y.square().sum(), [x, *(p for p in mixer.parameters() if p.requires_grad)]
                ),
            )
        )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5 * theirs.abs().max().item())
    assert [shape[0] for shape in calls] == [140] and "forward" not in vars(mixer)


def test_a_state_that_is_asked_for_is_transformers_own():
    asked = []

    def stock(*arguments, **options):
        asked.append(options)
        return "theirs"

    rule = delta_rule.DeltaRule(None, stock, None)
    rows = [torch.zeros(1, 3, 2, 4) for _ in range(3)] + [torch.zeros(1, 3, 2) for _ in range(2)]
    unit = {"use_qk_l2norm_in_kernel": True}
    for options in (unit | {"output_final_state": True}, unit | {"initial_state": rows[0]}, {}):
        assert rule(*rows, **options) == "theirs"
    assert rule(*(row.double() for row in rows), **unit) == "theirs"
    assert len(asked) == 4 and asked[0]["output_final_state"]


@pytest.mark.parametrize(
    "dtype, autocast", [(torch.float32, None), (torch.bfloat16, torch.bfloat16)], ids=str
)
def test_the_probe_accepts_the_op_and_refuses_a_wrong_one(dtype, autocast):
    model = make_model("qwen3_5", dtype=dtype)

    def judge(twin):
        decoder = take_over(unwrap(model), twins_as_kernels(twin), dtype=dtype)
        assert isinstance(decoder, Decoder)
        try:
            return find_difference(unwrap(model), decoder, autocast)
        finally:
            decoder.release()

    assert judge(GATED_DELTA.reference) is None

    def faded(q, k, v, g, beta, chunks, **options):
        return GATED_DELTA.reference(q, k, v, 2 * g, beta, chunks, **options)

    def forgetful(q, k, v, g, beta, chunks, **options):
        """Loses the state behind each chunk, which the probe's short texts do not fill."""
        pieces = [end - first for first, end in chunks.table.tolist()]
        return GATED_DELTA.reference(q, k, v, g, beta, Chunks(pieces, "cpu"), **options)

    for fault in (faded, forgetful):
        wrong = judge(replace(GATED_DELTA.reference, apply=fault))
        assert wrong.values["layer"] == 0, fault


def test_the_stock_step_takes_it_over_and_gives_it_back():
    mixer = make_mixer("qwen3_5")
    model = nn.ModuleDict({"linear_attn": mixer})
    fused = fuse(model, {"gated_delta": "triton"}, kernels=twins_as_kernels())
    assert [swap.path for swap in fused.swaps] == ["linear_attn"], fused.refused
    fused.undo()
    assert "forward" not in vars(mixer)

    def halved(*arguments, **options):
        return GATED_DELTA.reference(*arguments, **options) / 2

    assert not fuse(
        model,
        {"gated_delta": "triton"},
        kernels=twins_as_kernels(replace(GATED_DELTA.reference, apply=halved)),
    ).swaps
