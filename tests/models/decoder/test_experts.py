"""Experts by hand against the models' own modules under autograd: output, dx and every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from studio_kernels.dispatch import bind
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import (
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock, load_balancing_loss_func

from studio.models.decoder.blocks.experts import Experts, GatedExperts, GroupedLinear
from studio.models.decoder.blocks.gates import ClampedGate, PlainGate
from studio.models.decoder.blocks.router import CHOSEN_SOFTMAX, SIGMOID, BalanceLoss, Router

HIDDEN, INNER, EXPERTS, CHOSEN, RANK, SCALE = 24, 20, 8, 3, 4, 0.7
KERNELS = bind({})
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "shared_expert_intermediate_size": 12,
    "n_shared_experts": 2,
}
GROUPED = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
CORRECTED = {
    "scores": SIGMOID,
    "normalised": True,
    "epsilon": 1e-20,
    "scaling": 2.5,
    "group_count": 4,
    "groups_chosen": 2,
    "wide": True,
    "rounded": False,
}


@dataclass(frozen=True)
class Family:
    """A model's module and what the block is told of it."""

    config: type
    module: type
    router: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    shared: str = ""
    gate: PlainGate | ClampedGate = PlainGate("silu")
    names: tuple[str, str, str] = ("gate", "experts.gate_up_proj", "experts.down_proj")
    swapped: bool = False

    def build(self) -> nn.Module:
        config = self.config(**SIZES, **self.options)
        config._experts_implementation = "eager"
        module = self.module(config).eval()
        generator = torch.Generator().manual_seed(1)
        for name, values in [*module.named_parameters(), *module.named_buffers()]:
            values.data.normal_(generator=generator).mul_(0.1 if "correction" in name else 0.4)
        return module


CLAMPED = ClampedGate(alpha=1.702, limit=0.9)
FAMILIES = {
    "qwen3": Family(Qwen3MoeConfig, Qwen3MoeSparseMoeBlock, {"normalised": True}, {"norm_topk_prob": True}),
    "olmoe": Family(OlmoeConfig, OlmoeSparseMoeBlock, {}, {"norm_topk_prob": False}),
    "mixtral": Family(MixtralConfig, MixtralSparseMoeBlock, {"normalised": True, "rounded": False}),
    "gelu": Family(
        MixtralConfig,
        MixtralSparseMoeBlock,
        {"normalised": True, "rounded": False},
        {"hidden_act": "gelu_pytorch_tanh"},
        gate=PlainGate("gelu_tanh"),
    ),
    "qwen2": Family(
        Qwen2MoeConfig, Qwen2MoeSparseMoeBlock, {}, {"norm_topk_prob": False}, shared="shared_expert"
    ),
    "glm4": Family(Glm4MoeConfig, Glm4MoeMoE, CORRECTED, GROUPED, shared="shared_experts"),
    "deepseek3": Family(DeepseekV3Config, DeepseekV3MoE, CORRECTED, GROUPED, shared="shared_experts"),
    "gpt_oss": Family(
        GptOssConfig,
        GptOssMLP,
        {"scores": CHOSEN_SOFTMAX},
        {"swiglu_limit": CLAMPED.limit},
        gate=CLAMPED,
        names=("router", "experts.gate_up_proj", "experts.down_proj"),
        swapped=True,
    ),
}


class Widened(TorchFunctionMode):
    """The model's own code with float64 wherever it asks for float32."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        if function is torch.Tensor.float:
            return args[0].double()
        return function(*(torch.float64 if each is torch.float32 else each for each in args), **kwargs)


@dataclass
class Pair:
    """A module's parameters with adapters as leaves of autograd, and the block that shares them."""

    module: nn.Module
    parameters: dict[str, torch.Tensor]
    adapters: dict[str, tuple[torch.Tensor, torch.Tensor]]
    block: Experts
    gradients: dict[str, torch.Tensor]

    @classmethod
    def of(cls, family: Family, dtype: torch.dtype, adapted: bool) -> Pair:
        module = family.build().to(dtype)
        leaves = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
        tensors = {name: leaf.detach() for name, leaf in leaves.items()} | dict(module.named_buffers())
        generator = torch.Generator().manual_seed(2)
        adapters, gradients = {}, {}

        def linear(
            name: str, weight: torch.Tensor, bias: torch.Tensor | None = None, sign: str = ""
        ) -> GroupedLinear:
            count, outputs, inputs = weight.shape
            made = GroupedLinear(weight=weight, bias=bias)
            if adapted:
                a = torch.randn(count, RANK, inputs, generator=generator, dtype=torch.float64).to(dtype) * 0.3
                b = (
                    torch.randn(count, outputs, RANK, generator=generator, dtype=torch.float64).to(dtype)
                    * 0.3
                )
                adapters[name] = a.clone().requires_grad_(), b.clone().requires_grad_()
                made.a, made.b, made.scale = a, b, SCALE
                made.da, made.db = gradients[f"{name}.a"], gradients[f"{name}.b"] = (
                    torch.zeros_like(a), torch.zeros_like(b),
                )  # fmt: skip
            elif not sign:
                made.dweight = torch.zeros(weight.shape, dtype=dtype)
                gradients[name] = made.dweight.transpose(1, 2) if family.swapped else made.dweight
            return made

        router, gate_up, down = family.names
        turn = (lambda weight: weight.transpose(1, 2)) if family.swapped else (lambda weight: weight)
        options = dict(family.router)
        if f"{router}.e_score_correction_bias" in tensors:
            options["correction"] = tensors[f"{router}.e_score_correction_bias"]
        if f"{router}.bias" in tensors:
            gradients[f"{router}.bias"] = torch.zeros_like(tensors[f"{router}.bias"])
            options |= {"bias": tensors[f"{router}.bias"], "bias_gradient": gradients[f"{router}.bias"]}
        gradients[f"{router}.weight"] = torch.zeros_like(tensors[f"{router}.weight"])
        block = Experts(
            router=Router(
                weight=tensors[f"{router}.weight"],
                weight_gradient=gradients[f"{router}.weight"],
                top_k=CHOSEN,
                **options,
            ),
            routed=GatedExperts(
                gate_up=linear(gate_up, turn(tensors[gate_up]), tensors.get(f"{gate_up}_bias")),
                down=linear(down, turn(tensors[down]), tensors.get(f"{down}_bias")),
                gate=family.gate,
            ),
        )
        if family.shared:
            names = [f"{family.shared}.{part}_proj.weight" for part in ("gate", "up", "down")]
            both = torch.cat([tensors[names[0]], tensors[names[1]]])[None]
            block.shared = GatedExperts(
                gate_up=linear("shared", both, sign="both"),
                down=linear(names[2], tensors[names[2]][None]),
                gate=family.gate,
            )
        if f"{family.shared}_gate.weight" in tensors:
            name = f"{family.shared}_gate.weight"
            block.shared_gate = tensors[name]
            block.shared_gate_gradient = gradients[name] = torch.zeros_like(tensors[name])
        return cls(module, leaves, adapters, block, gradients)

    def expect(self, family: Family, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
        """The output and all gradients by autograd through the model's code."""
        merged = dict(self.parameters)
        for name, (a, b) in self.adapters.items():
            change = SCALE * (b @ a)
            if name == "shared":
                halves = change[0].chunk(2)
                for part, half in zip(("gate", "up"), halves, strict=True):
                    key = f"{family.shared}.{part}_proj.weight"
                    merged[key] = merged[key] + half
            elif name.startswith("experts."):
                merged[name] = merged[name] + (change.transpose(1, 2) if family.swapped else change)
            else:
                merged[name] = merged[name] + change[0]
        x = x.clone().requires_grad_()
        y = torch.func.functional_call(self.module, merged, (x[None],))
        y = (y[0] if isinstance(y, tuple) else y)[0]
        leaves = {"dx": x} | self.parameters
        for name, (a, b) in self.adapters.items():
            leaves |= {f"{name}.a": a, f"{name}.b": b}
        found = torch.autograd.grad(y, list(leaves.values()), dy)
        return {"y": y.detach()} | dict(zip(leaves, found, strict=True))


def draw(rows: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, limit: float, name: str) -> None:
    difference = (ours - theirs.reshape(ours.shape)).abs().max() / theirs.abs().max().clamp_min(1e-30)
    assert difference.item() <= limit, (name, difference.item())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "lora"])
@pytest.mark.parametrize("level", [0, 3], ids=["recomputed", "kept"])
@pytest.mark.parametrize("family", FAMILIES)
def test_by_hand_equals_the_models_own_code(family, adapted, dtype, level):
    known = FAMILIES[family]
    pair, x, dy = Pair.of(known, dtype, adapted), draw(13, dtype, 3), draw(13, dtype, 4)
    if dtype == torch.float64:
        with Widened():
            expected = pair.expect(known, x, dy)
    else:
        expected = pair.expect(known, x, dy)
    limit = 1e-9 if dtype == torch.float64 else 1e-5
    y, saved = pair.block.forward(x, KERNELS, level)
    assert_close(y, expected["y"], limit, "y")
    pair.block.recompute(saved, x, KERNELS)
    assert_close(pair.block.backward(dy, saved, KERNELS), expected["dx"], limit, "dx")
    assert pair.gradients
    for name, gradient in pair.gradients.items():
        assert_close(gradient, expected[name], limit, name)


def test_the_clamp_is_at_work():
    pair = Pair.of(FAMILIES["gpt_oss"], torch.float64, adapted=False)
    x = draw(13, torch.float64, 3)
    _, saved = pair.block.forward(x, KERNELS, 3)
    assert 0.02 < (saved.routed.gate_up.abs() > CLAMPED.limit).double().mean() < 0.9


def test_balance_loss_equals_transformers():
    """Over two layers together, value and gradient of x."""
    layers = [Pair.of(FAMILIES["qwen3"], torch.float64, adapted=False).block for _ in range(2)]
    layers[1].router.weight = layers[1].router.weight.flip(0).contiguous()
    rows = [draw(11, torch.float64, seed).requires_grad_() for seed in (5, 6)]
    logits = tuple(x @ layer.router.weight.T for x, layer in zip(rows, layers, strict=True))
    with Widened():
        expected = 0.01 * load_balancing_loss_func(logits, EXPERTS, CHOSEN)
    gradients = torch.autograd.grad(expected, rows)
    saved = [layer.forward(x.detach(), KERNELS, 1)[1] for x, layer in zip(rows, layers, strict=True)]
    balance = BalanceLoss.empty(EXPERTS, 0.01, CHOSEN, logits[0])
    for each in saved:
        balance.note(each.routes.logits)
    assert_close(balance.loss(), expected.detach(), 1e-12, "loss")
    for layer, each, x, gradient in zip(layers, saved, rows, gradients, strict=True):
        dx = layer.backward(torch.zeros_like(x), each, KERNELS, balance=balance.gradient())
        assert_close(dx, gradient, 1e-9, "dx")


def test_equal_inputs_give_equal_bits():
    found = []
    for _ in range(2):
        pair, x, dy = (
            Pair.of(FAMILIES["qwen2"], torch.float32, adapted=True),
            *(draw(40, torch.float32, s) for s in (3, 4)),
        )
        y, saved = pair.block.forward(x, KERNELS, 1)
        found.append([y, pair.block.backward(dy, saved, KERNELS), *pair.gradients.values()])
    assert all(map(torch.equal, *found))


def test_bfloat16_is_as_near_as_the_models_own():
    known = FAMILIES["qwen3"]
    exact, half = (Pair.of(known, dtype, adapted=True) for dtype in (torch.float64, torch.bfloat16))
    for name, values in half.parameters.items():  # the same numbers, and so the same routes
        exact.parameters[name].data.copy_(values.double())
    for name, both in half.adapters.items():
        for theirs, ours in zip(exact.adapters[name], both, strict=True):
            theirs.data.copy_(ours.double())
    x, dy = draw(13, torch.bfloat16, 3), draw(13, torch.bfloat16, 4)
    with Widened():
        oracle = exact.expect(known, x.double(), dy.double())
    stock = half.expect(known, x, dy)
    y, saved = half.block.forward(x, KERNELS, 1)
    ours = {"y": y, "dx": half.block.backward(dy, saved, KERNELS)}
    for name, value in ours.items():
        error, limit = ((each.double() - oracle[name]).norm() for each in (value, stock[name]))
        assert error < 1.25 * limit
