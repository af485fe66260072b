"""Answers that share their prompt on a graphics card: the gradients of answers apart, by every kind of attention."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.core.recipe import PreferenceSpec
from studio.engine.decoder_step import DecoderStep
from studio.engine.objectives import get_objective
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import Decoder, take_over
from tests.engine.test_preference import draw_answers
from tests.models.decoder.models import make_model
from tests.models.decoder.test_decoder_gpu import KERNELS

pytestmark = pytest.mark.gpu
ROUNDED = {torch.float32: 1 - 1e-6, torch.bfloat16: 0.999}
"""What the gradients' cosine may fall to: sums of another order, or another rounding of each layer."""


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "latent"])
def test_gradients_are_those_of_answers_apart(family, dtype):
    """Flash or the memory-efficient kernel, our own where scores are capped, windows, and keys of narrow rows."""
    model = make_model(family).cuda()
    for one in model.parameters():
        if not one.requires_grad:
            one.data = one.data.to(dtype)
    kernels = bind(dict.fromkeys(KERNELS, "triton") if dtype is torch.bfloat16 else {})
    decoder = take_over(unwrap(model), kernels, dtype=dtype)
    assert isinstance(decoder, Decoder), decoder
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
