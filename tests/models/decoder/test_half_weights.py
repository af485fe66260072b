"""Weights in 16 bits multiply fp32 rows as exactly as the fp32 ones, and never stand for weights that changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studio_kernels.dispatch import bind
from torch import nn

from studio.engine.generation.answerer import Answerer
from studio.engine.generation.generator import Generator
from studio.engine.stop_tokens import Ends
from studio.models.decoder.half_weights import has_products, pack
from studio.models.decoder.live_decoder import LiveDecoder, read_live
from studio.models.decoder.live_linears import LiveGroup
from tests.engine.generation.test_answerer import Tokenizer
from tests.engine.generation.test_generator import PROMPTS, ROOM_BYTES, ask, assert_own_code_agrees
from tests.models.decoder.models import make_model

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this PyTorch is built without FBGEMM"
)

ROUNDING = 4.5e-7
"""As a share of the results' spread, root mean square: MKL has 2 to 3.5e-7, oneDNN up to 5.2e-7."""


def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])) * scale).to(dtype).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("scale", "rows", "width"), [(1e-4, 1, 40), (0.1, 3, 384), (300.0, 17, 1537), (0.05, 70, 576)]
)
def test_products_are_as_exact_as_those_of_fp32_weights(dtype, scale, rows, width):
    weight = draw(500, width, scale=scale, dtype=dtype)
    weight[3, 5:9] = torch.tensor([0.0, -0.0, 2**-22, 2**-24])
    x = torch.randn(rows, width)
    exact = x.double() @ weight.double().T
    error = (pack([weight]).multiply(x).double() - exact).square().mean().sqrt()
    assert error <= ROUNDING * exact.std(), error / exact.std()


def test_weights_that_16_bits_do_not_hold_are_refused():
    exact = draw(16, 32)
    assert pack([exact]) is not None
    fine, wide = exact.clone(), exact.clone()
    fine[2, 3] = 1.0 + 2**-12
    wide[7] *= 2**-40  # a row of its own, whose numbers would be rounded away beside the others
    broken = [exact.clone() for _ in range(2)]
    broken[0][1, 1], broken[1][1, 1] = torch.inf, torch.nan
    for weight in (fine, wide, *broken, torch.zeros(4, 8), torch.randn(16, 32)):
        assert pack([weight]) is None


def test_a_mark_tells_a_change_of_one_weight():
    weights = [draw(64, 48), draw(20, 48)]
    halves = pack(weights)
    assert halves.still(weights)
    weights[1].data[19, 47] *= 1.0 + 2**-7  # autograd counts no change of what lies under `.data`
    assert not halves.still(weights)


@pytest.mark.parametrize("ranks", [(), (4, 4, 4), (4, 2, 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_group_gives_what_it_gave(ranks, bias):
    linears = [nn.Linear(48, size, bias=bias) for size in (64, 32, 32)]
    for linear in linears:
        linear.weight.data = draw(*linear.weight.shape, scale=0.1)
        linear.requires_grad_(False)
    group, kernels = LiveGroup(linears, torch.float32), bind({})
    for live, rank in zip(group._lives, ranks, strict=True) if ranks else ():
        if rank:
            a, b = torch.randn(rank, 48), torch.randn(live.module.out_features, rank)
            live.part = replace(live.part, a=a, b=b, scale=0.5)
    group._rank = max(ranks, default=0)
    group.refresh(kernels)
    x, add = torch.randn(5, 48), torch.randn(5, 200)[:, :128]
    places = [torch.empty(5, 160)[:, :128] for _ in range(2)]

    def run(place: torch.Tensor) -> list[torch.Tensor]:
        group.adapted = True
        found = [group.forward(x, kernels), group.forward(x, kernels, add=add, out=place).clone()]
        group.adapted = False
        return [*found, group.forward(x, kernels, add=add), group.forward(x, kernels, out=place).clone()]

    before = run(places[0])
    assert group.opened_bytes == 2 * 48 * 128
    group.open(kernels)
    assert group._halves is not None
    for one, other in zip(run(places[1]), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def in_16_bits(family: str) -> torch.nn.Module:
    """A model whose fp32 weights were read from 16 bits."""
    model = make_model(family, max_position_embeddings=256)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


def opened(decoder: LiveDecoder) -> list[bool]:
    groups = [group for layer in decoder.layers for group in layer.groups]
    return [one is not None for one in (*(group._halves for group in groups), decoder._head_halves)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "granite"])
def test_answers_are_those_of_the_models_own_code_before_and_after_a_change(family):
    model = in_16_bits(family)
    decoder = read_live(model, bind({}), torch.float32)
    assert has_products() and decoder.open_weights(ROOM_BYTES) and all(opened(decoder))
    generator = Generator(decoder, lambda tokens: False, longest=256, room_bytes=ROOM_BYTES)
    for one in generator.answer(ask(*PROMPTS, tokens=16), adapted=True, slots=3):
        assert_own_code_agrees(model, one)
    with model.disable_adapter():
        for one in generator.answer(ask(*PROMPTS[:2], tokens=12), adapted=False):
            assert_own_code_agrees(model, one)
    linear = model.get_base_model().model.layers[1].mlp.down_proj
    getattr(linear, "base_layer", linear).weight.data.mul_(-1.5)
    generator.forget()
    for one in generator.answer(ask(*PROMPTS[:2], tokens=12), adapted=True):
        assert_own_code_agrees(model, one)
    assert opened(decoder).count(False) == 1


def test_without_room_weights_stay_as_they_are():
    decoder = read_live(in_16_bits("llama"), bind({}), torch.float32)
    needed = sum(group.opened_bytes for layer in decoder.layers for group in layer.groups)
    needed += decoder._head.weight.numel() * 2
    assert not decoder.open_weights(needed - 1) and not any(opened(decoder))
    assert decoder.open_weights(needed) and all(opened(decoder))
    half = read_live(in_16_bits("llama").bfloat16(), bind({}), torch.bfloat16)
    assert not half.open_weights(ROOM_BYTES) and not any(opened(half))


@pytest.mark.parametrize("opens", [False, True])
def test_who_answers_opens_weights_when_asked_to(opens):
    answerer = Answerer(in_16_bits("llama"), Tokenizer(), Ends((2,)), opens=opens)
    answerer.answer(ask(PROMPTS[0], tokens=4))
    assert answerer.slow is None and set(opened(answerer._decoder)) == {opens}
