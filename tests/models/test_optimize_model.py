"""A model is made fast by what the card can do, or can be said to do; 8-bit products only where they come near."""

from __future__ import annotations

import pytest
import torch

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.models import optimize_model as fast
from studio.models.adapt import unwrap
from studio.models.decoder import attention_choice, tolerance
from studio.models.optimize_model import make_fast
from tests.models.decoder.models import make_model

POLICY = MemoryPolicy(layers=(LayerPolicy(),) * 3)
TURING = (7, 5)


def make(model=None, **options) -> fast.Fast:
    model = model or make_model("llama")
    return make_fast(unwrap(model), {}, POLICY, dtype=torch.float32, autocast=None, **options)


def test_the_decoder_is_exact_unless_8_bits_are_asked_for():
    made = make()
    assert made.decoder is not None and not made.fp8
    assert all(group.weights.exact for layer in made.decoder.layers for group in layer.groups)
    assert [said.id for said in made.describe()] == ["run.decoder"]


def test_8_bits_are_said_to_be_used():
    made = make(fp8=True)
    assert made.fp8 and made.fp8_refused is None
    assert not any(group.weights.exact for layer in made.decoder.layers for group in layer.groups)
    assert [said.id for said in made.describe()] == ["run.decoder", "run.fp8"]


def test_8_bits_that_do_not_come_near_are_given_up_and_the_decoder_stays(monkeypatch):
    monkeypatch.setattr(tolerance, "FP8", 1e-6)
    made = make(fp8=True)
    assert made.decoder is not None and not made.fp8
    assert made.fp8_refused.id == "model.decoder.mismatch"
    assert all(group.weights.exact for layer in made.decoder.layers for group in layer.groups)
    assert [said.id for said in made.describe()] == ["run.decoder", "run.no_fp8"]


def test_memory_that_runs_out_on_the_way_to_8_bits_leaves_the_decoder_exact(monkeypatch):
    real, made_before = fast.use_fp8, []

    def run_out(taken, capability):
        real(taken, capability)
        made_before.append(taken)
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(fast, "use_fp8", run_out)
    made = make(fp8=True)
    assert made.decoder is made_before[0] and made.fp8_refused.id == "model.fuse.failed"
    assert all(group.weights.exact for layer in made.decoder.layers for group in layer.groups)


@pytest.mark.parametrize(("capability", "able"), [((9, 0), True), ((8, 6), True), (TURING, False)])
def test_ops_are_those_of_the_given_capability(capability, able):
    gpu = torch.device("cuda")
    assert fast._supported("lora", "triton", gpu, capability, torch.float16, 4096) is able
    assert fast._supported("rms_norm", "triton", gpu, capability, torch.float16, 4096)


def test_attention_is_chosen_for_the_given_capability(monkeypatch):
    asked = []
    real = attention_choice.choose_attention
    monkeypatch.setattr(
        attention_choice,
        "choose_attention",
        lambda **options: asked.append(options["capability"]) or real(**options),
    )
    make(capability=TURING)
    make()
    assert asked == [TURING, None]


def test_a_part_that_cannot_be_tried_leaves_the_model_to_its_own_code():
    model = make_model("llama")
    unwrap(model).model.layers[1].self_attn.head_dim = None
    found = make_fast(unwrap(model), {}, POLICY, dtype=torch.float32, autocast=None)
    assert found.decoder is None and "TypeError" in found.refused.values["error"].values["words"]


def test_memory_that_runs_out_at_the_take_over_is_not_taken_for_a_part_that_is_unknown(monkeypatch):
    def run_out(*given, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(fast, "take_over", run_out)
    with pytest.raises(torch.OutOfMemoryError):
        make_fast(unwrap(make_model("llama")), {}, POLICY, dtype=torch.float32, autocast=None)
