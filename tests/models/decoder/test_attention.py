"""Capped attention in the decoder: our kernels where they are bound and right, the composed form after a failure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from studio_kernels.attention import Documents
from studio_kernels.attention_backends import MATH, TRITON
from studio_kernels.dispatch import bind

from studio.models.adapt import unwrap
from studio.models.decoder import attention_choice as module
from studio.models.decoder.cuda_graphs import GraphedDecoder, Shapes
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.optimize_model import Fast
from tests.models.decoder.models import make_model


def take(family: str = "gemma2", device: str = "cpu", **choices: str) -> Decoder:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    decoder = take_over(
        unwrap(make_model(family, dtype=dtype, rank=16).to(device)), bind(choices), dtype=dtype
    )
    assert isinstance(decoder, Decoder), decoder
    return decoder


@pytest.mark.parametrize("choice", ["triton", "reference"])
def test_the_choice_is_told_whether_our_kernels_may_be_used(monkeypatch, choice):
    told = []
    real = module.choose_attention
    monkeypatch.setattr(
        module, "choose_attention", lambda **facts: told.append(facts["triton"]) or real(**facts)
    )
    take(flash=choice)
    assert told == [choice == "triton"] * 2  # one kind with a window, one without


def test_a_kernel_that_fails_in_a_run_is_replaced_by_the_composed_form():
    decoder = take(flash="triton")
    for layer in decoder.layers:
        layer.attention.kernel = replace(layer.attention.kernel, packed=TRITON)
    fast = Fast(decoder, None)
    assert fast.ops == {"flash"}
    fast.fall_back("flash")
    assert {layer.attention.kernel.packed for layer in decoder.layers} == {MATH}
    assert fast.ops == set()


def test_our_kernels_are_not_named_where_a_library_computes():
    assert Fast(take("llama", flash="triton", glu="triton"), None).ops == {"glu"}


@pytest.mark.gpu
def test_capped_attention_is_recorded_and_played():
    """For other documents than those of the recording, against launches of the composed form."""
    ours, composed = take(device="cuda", flash="triton"), take(device="cuda")
    assert {layer.attention.kernel.name for layer in ours.layers} == {"triton"}
    assert {layer.attention.kernel.name for layer in composed.layers} == {"math"}
    graphed, scale = (
        GraphedDecoder(ours, Shapes(sizes=(256,), documents=4, longest=200)),
        torch.tensor(0.5, device="cuda"),
    )
    for lengths in ((30, 200, 11), (90, 5, 130, 20)):
        ids = np.random.default_rng(len(lengths)).integers(2, 97, size=sum(lengths))
        picks = np.arange(1, 20)
        ours.store.clear_gradients()
        loss = graphed.add_gradients(ids, lengths, picks, ids[picks + 1], size=256, scale=scale).sum().item()
        composed.store.clear_gradients()
        composed.note_change()
        rows = composed.make_rows(Documents.of(lengths, "cuda"))
        tokens, places = torch.from_numpy(ids).cuda(), torch.from_numpy(picks).cuda()
        expected = composed.add_gradients(tokens, rows, places, tokens[places + 1], scale).sum().item()
        assert loss == pytest.approx(expected, rel=0.02)
        exact = composed.store.gradients
        assert (ours.store.gradients - exact).norm() < 0.1 * exact.norm()
    assert graphed.recorded == (256,)
