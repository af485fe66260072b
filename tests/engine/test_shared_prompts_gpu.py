"""Answers that share their prompt on a graphics card: the gradients of answers apart, by every kind of attention."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.core.recipe import PreferenceSpec
from studio.engine.batches import StepOrder, measure_windows
from studio.engine.decoder_step import DecoderStep
from studio.engine.objectives import get_objective
from studio.engine.step_windows import sort_window
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from tests.engine.test_companions import draw, measure_apart
from tests.engine.test_preference import draw_answers, make
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder_gpu import KERNELS

pytestmark = pytest.mark.gpu
ROUNDED = {torch.float32: 1 - 1e-6, torch.bfloat16: 0.999}
"""What the gradients' cosine may fall to: sums of another order, or another rounding of each layer."""


def take(family: str, dtype: torch.dtype) -> Decoder:
    model = make_model(family).cuda()
    for one in model.parameters():
        if not one.requires_grad:
            one.data = one.data.to(dtype)
    kernels = bind(dict.fromkeys(KERNELS, "triton") if dtype is torch.bfloat16 else {})
    decoder = take_over(unwrap(model), kernels, dtype=dtype)
    assert isinstance(decoder, Decoder), decoder
    return decoder


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "latent"])
def test_gradients_are_those_of_answers_apart(family, dtype):
    """Flash or the memory-efficient kernel, our own where scores are capped, windows, and keys of narrow rows."""
    decoder = take(family, dtype)
    examples, found = draw_answers(8, 2), []
    for shares in (False, True):
        objective = get_objective("simpo", PreferenceSpec())
        step = DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=shares)
        step.clear()
        sums = step.add_gradients(examples, len(examples), lambda loss: loss)
        found.append(
            (sums[0].item(), decoder.store.gradients.double().clone(), len(step._join(examples).ids))
        )
    (loss, expected, apart), (mine, gradients, shared) = found
    assert shared < apart and mine == pytest.approx(loss, rel=1e-4 if dtype is torch.float32 else 1e-2)
    assert torch.nn.functional.cosine_similarity(gradients, expected, dim=0) > ROUNDED[dtype]


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "latent"])
def test_played_graphs_have_the_gradients_of_launched_steps(family, dtype):
    """Steps of other pairs each time, recorded at their first meeting, and played to the same bits when they return."""
    decoder = take(family, dtype)
    if not decoder.recordable:
        pytest.skip("attention is composed here, which is not recorded")
    objective, examples = get_objective("simpo", PreferenceSpec()), draw_answers(24, 2)
    plain, step = (DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=True) for _ in range(2))
    order = StepOrder(len(examples), 4, 1)
    step.expect(measure_windows(order, examples, 6, step.expects_sequences), 6)
    longest, found = step.find_longest(examples), []
    for number in range(18):
        (part,) = step.cut(sort_window([examples[i] for i in order.indices(number % 6)]), 4, longest)
        gradients = []
        for one in (step, plain):
            one.clear()
            one.add_gradients(part, len(part), lambda loss: loss)
            gradients.append(decoder.store.gradients.double().clone())
        assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > ROUNDED[dtype]
        found.append(gradients[0])
    assert step._graphs is not None and step._graphs[1].recorded
    assert all(torch.equal(one, other) for one, other in zip(found[6:12], found[12:18], strict=True))


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_companions_that_go_along_give_what_a_pass_of_their_own_gives(family, dtype):
    step, examples = DecoderStep(take(family, dtype), objective=make("kto"), pad_id=0), draw(8)
    assert step.measures(examples)
    found = []
    for some in (measure_apart(step, examples), examples):
        step.clear()
        sums = step.add_gradients(some, len(some), lambda loss: loss)
        found.append((sums, step.decoder.store.gradients.double().clone()))
    (expected, apart), (sums, along) = found
    torch.testing.assert_close(sums, expected, rtol=1e-3 if dtype is torch.float32 else 3e-2, atol=1e-2)
    assert torch.nn.functional.cosine_similarity(along, apart, dim=0) > ROUNDED[dtype]
