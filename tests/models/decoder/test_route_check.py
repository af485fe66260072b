"""The probe sees experts: what is right is accepted in every dtype, what is planted in one layer is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from studio_kernels.attention import Attention
from studio_kernels.attention_backends import MATH
from studio_kernels.dispatch import bind

from studio.models.adapt import unwrap
from studio.models.decoder.blocks.gates import PlainGate, SquaredRelu
from studio.models.decoder.blocks.router import Router
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.decoder.parity_check import find_difference
from tests.each_time import some
from tests.models.decoder.planted import change_spec
from tests.models.decoder.routed_models import FOREIGN, make_routed

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MANY = {"num_experts": 32, "num_experts_per_tok": 4, "hidden_size": 128}
"""Of 120 tokens each expert gets 15, some fewer than 5."""


def change_router(decoder: Decoder, layer, **values) -> None:
    experts = layer.mlp.experts
    experts.router = dataclasses.replace(experts.router, **values)


def swap_two_experts(decoder: Decoder, layer) -> None:
    for linear in (layer.mlp.experts.routed.gate_up, layer.mlp.experts.routed.down):
        linear.weight = linear.weight[torch.tensor([1, 0, *range(2, len(linear.weight))])]


def change_one_expert_that_few_reach(decoder: Decoder, layer) -> None:
    down = layer.mlp.experts.routed.down
    down.weight = down.weight.clone()
    down.weight[-1].mul_(1.5)


def leave_weights_as_they_are(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, normalised=False)


def choose_one_expert_less(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, top_k=layer.mlp.experts.router.top_k - 1)


def leave_the_correction_out(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, correction=None)


def leave_the_scaling_out(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, scaling=1.0)


def leave_the_shared_expert_out(decoder: Decoder, layer) -> None:
    layer.mlp.experts.shared = None


def open_the_shared_gate(decoder: Decoder, layer) -> None:
    layer.mlp.experts.shared_gate = None


def take_another_gate(decoder: Decoder, layer) -> None:
    layer.mlp.experts.routed = dataclasses.replace(layer.mlp.experts.routed, gate=PlainGate("gelu_tanh"))


def leave_the_square_out(decoder: Decoder, layer) -> None:
    """Of experts without a gate."""

    class Relu(SquaredRelu):
        def forward(self, gate_up, kernels):
            return gate_up.relu()

    layer.mlp.experts.routed = dataclasses.replace(layer.mlp.experts.routed, gate=Relu())


def leave_the_square_of_the_shared_one_out(decoder: Decoder, layer) -> None:
    experts, routed = layer.mlp.experts, layer.mlp.experts.routed
    leave_the_square_out(decoder, layer)
    experts.shared = dataclasses.replace(experts.shared, gate=experts.routed.gate)
    experts.routed = routed


def swap_two_adapters(decoder: Decoder, layer) -> None:
    adapters = list(layer.mlp.adapters)
    a = adapters[0].a
    adapters[0] = dataclasses.replace(adapters[0], a=a[torch.tensor([1, 0, *range(2, len(a))])])
    layer.mlp.adapters = tuple(adapters)


def keep_stale_adapters(decoder: Decoder, layer) -> None:
    layer.mlp.refresh = lambda: None
    for adapter in layer.mlp.adapters:
        adapter.linear.a.zero_()


def lose_an_experts_gradient(decoder: Decoder, layer) -> None:
    down = layer.mlp.experts.routed.down
    down.db = torch.zeros_like(down.db)


def score_rows_as_they_are(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, entry=None)


def weigh_all_experts_alike(decoder: Decoder, layer) -> None:
    change_router(decoder, layer, expert_scale=None)


def swap_the_norms_of_mlp_and_experts(decoder: Decoder, layer) -> None:
    spec = layer.spec
    change_spec(layer, shared_norm=spec.experts_norm, experts_norm=spec.shared_norm)


def give_experts_the_mlps_rows(decoder: Decoder, layer) -> None:
    change_spec(layer, routed_norm=layer.spec.mlp_norm)


def lose_the_routers_gradient(decoder: Decoder, layer) -> None:
    """Of the rows that it scores."""

    class Silent(Router):
        def backward(self, dweights, x, routes, *, dx, balance=None):
            return dx

    router = layer.mlp.experts.router
    fields = {one.name: getattr(router, one.name) for one in dataclasses.fields(router)}
    layer.mlp.experts.router = Silent(**fields)


def forget_the_sinks(decoder: Decoder, layer) -> None:
    change_spec(layer, sinks=None)


def give_heads_each_others_sinks(decoder: Decoder, layer) -> None:
    change_spec(layer, sinks=layer.spec.sinks.detach().flip(0))


def leave_the_sinks_out_of_the_way_back(decoder: Decoder, layer) -> None:
    """In the composed form: the others have them in their log-sums."""

    class Halfway(Attention):
        def backward(self, *given):
            return Attention.backward(self, *given[:7])

    kernel = layer.attention.kernel
    fields = {one.name: getattr(kernel, one.name) for one in dataclasses.fields(kernel)}
    layer.attention.kernel = Halfway(**fields | {"packed": MATH, "equal": None})


FAULTS: dict[Callable, str] = {
    swap_two_experts: "qwen3_moe", change_one_expert_that_few_reach: "qwen3_moe",
    leave_weights_as_they_are: "qwen3_moe", choose_one_expert_less: "qwen3_moe",
    leave_the_correction_out: "glm4_moe", leave_the_scaling_out: "glm4_moe",
    leave_the_shared_expert_out: "glm4_moe", open_the_shared_gate: "qwen2_moe", take_another_gate: "qwen3_moe",
    swap_two_adapters: "qwen3_moe", keep_stale_adapters: "qwen3_moe", lose_an_experts_gradient: "qwen3_moe",
    score_rows_as_they_are: "gemma4_moe", weigh_all_experts_alike: "gemma4_moe",
    swap_the_norms_of_mlp_and_experts: "gemma4_moe", give_experts_the_mlps_rows: "gemma4_moe",
    lose_the_routers_gradient: "gemma4_moe", forget_the_sinks: "gpt_oss",
    leave_the_square_out: "nemotron_3", leave_the_square_of_the_shared_one_out: "nemotron_3",
    give_heads_each_others_sinks: "gpt_oss", leave_the_sinks_out_of_the_way_back: "gpt_oss",
}  # fmt: skip
EACH_TIME = (
    swap_two_experts, choose_one_expert_less, leave_the_correction_out, swap_two_adapters, lose_an_experts_gradient,
    forget_the_sinks,
)  # fmt: skip


def take(family: str, name: str, packed: bool = False) -> tuple[torch.nn.Module, Decoder]:
    model = make_routed(family, dtype=DTYPES[name], packed=packed, **(MANY if family == "qwen3_moe" else {}))
    decoder = take_over(unwrap(model), bind({}), dtype=DTYPES[name])
    assert isinstance(decoder, Decoder), decoder
    return model, decoder


def ask(model: torch.nn.Module, decoder: Decoder, name: str):
    return find_difference(unwrap(model), decoder, None if name == "fp32" else DTYPES[name])


@pytest.mark.parametrize("packed", some([False, True], True), ids=["16 bits", "nf4"])
@pytest.mark.parametrize("name", some(DTYPES, "bf16"))
@pytest.mark.parametrize(
    "family",
    some(
        [
            "qwen3_moe",
            "qwen2_moe",
            "glm4_moe",
            "ernie4_5_moe",
            "mixtral",
            "gpt_oss",
            "gemma4_moe",
            "deepseek_v3",
            *FOREIGN,
        ],
        "glm4_moe",
        "gpt_oss",
        "deepseek_v3",
    ),
)
def test_what_is_right_is_accepted(family, name, packed):
    assert ask(*take(family, name, packed), name) is None


@pytest.mark.parametrize("name", some(DTYPES, "bf16"))
@pytest.mark.parametrize("fault", some(FAULTS, *EACH_TIME), ids=lambda fault: fault.__name__)
def test_every_fault_is_refused(fault, name):
    model, decoder = take(FAULTS[fault], name)
    fault(decoder, decoder.layers[1])
    found = ask(model, decoder, name)
    assert found is not None and found.id == "model.decoder.mismatch" and found.values["layer"] == 1
