"""Answers on a graphics card: in 16 bits with Triton's kernels, as likely as the model's own code in fp32 says."""

from __future__ import annotations

import copy

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.engine.generation.answerer import Answerer, leave_answers_own
from studio.engine.generation.request import Request, Sampling
from studio.engine.stop_tokens import Ends
from tests.models.decoder import models, routed_models

pytestmark = pytest.mark.gpu

KERNELS = dict.fromkeys(("rms_norm", "glu", "rope", "lora", "flash", "decode_attention"), "triton")
FAMILIES = ("llama", "gemma2", "gemma3", "qwen3", "ministral3", "olmo2", "gpt_oss", "qwen2_moe")
PROMPTS = [
    [3 + (7 * i + place) % 90 for i in range(count)] for place, count in enumerate((5, 30, 73, 66, 150))
]


class Tokenizer:
    pad_token_id = 0


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_as_likely_as_the_models_own_code_says(family):
    make = models.make_model if family in models.FAMILIES else routed_models.make_routed
    shape = {"max_position_embeddings": 512, "hidden_size": 256, "head_dim": 64}
    half = make(family, dtype=torch.bfloat16, **shape).to("cuda")
    model = copy.deepcopy(half).float()
    answerer = Answerer(half, Tokenizer(), Ends(()), kernels=KERNELS)
    requests = [Request(tuple(one), Sampling(max_new_tokens=40 + i)) for i, one in enumerate(PROMPTS)]
    found = answerer.answer(requests, slots=3)
    assert answerer.slow is None
    assert answerer._decoder.kernels.implementations["decode_attention"] == "triton"
    errors, allowed = [], []
    for one in found:
        assert (len(one.tokens), one.reason) == (one.request.sampling.max_new_tokens, "limit")
        ids = torch.tensor([[*one.request.prompt, *one.tokens]], device="cuda")
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(one.request.prompt) - 1 : -1].float()
            rounded = half(input_ids=ids, use_cache=False).logits[0, len(one.request.prompt) - 1 : -1].float()
        picks = torch.tensor(one.tokens, device="cuda")[:, None]
        wanted, own = (every.log_softmax(-1).gather(1, picks)[:, 0] for every in (logits, rounded))
        errors.append(torch.tensor(one.log_probabilities, device="cuda") - wanted)
        allowed.append(own - wanted)
    # Of all answers together: a token that another expert takes, by rounding alone, is far off in either.
    error, most = (torch.cat(some).square().mean().sqrt().item() for some in (errors, allowed))
    assert error <= 2 * most + 1e-2, (error, most)


def test_recorded_steps_of_short_sequences_hold_after_longer_ones():
    """Longer sequences have new rotary tables made; what is recorded reads the old ones."""
    model = models.make_model(
        "llama", dtype=torch.bfloat16, max_position_embeddings=4096, hidden_size=256, head_dim=64
    ).to("cuda")
    answerer = Answerer(model, Tokenizer(), Ends(()), kernels=KERNELS)
    short = [Request(tuple(PROMPTS[1]), Sampling(max_new_tokens=40))]
    long = [Request(tuple(PROMPTS[4] * 10), Sampling(max_new_tokens=20))]
    first = answerer.answer(short)[0].tokens
    answerer.answer(long)
    torch.cuda.empty_cache()
    filled = torch.full((2**26,), float("nan"), device="cuda")  # over what was given back
    assert answerer.answer(short)[0].tokens == first
    del filled


def test_answers_of_a_training_run_grow_by_recorded_steps():
    """By the kernels that the run's steps are bound to, which need none of those that answers do."""
    model = models.make_model("llama", dtype=torch.bfloat16, hidden_size=256, head_dim=64).to("cuda")
    bound = bind(dict.fromkeys(("rms_norm", "glu", "rope", "lora"), "triton")).implementations
    answerer = Answerer(model, Tokenizer(), Ends(()), kernels=leave_answers_own(bound), looks_ahead=False)
    answerer.answer([Request(tuple(PROMPTS[1]), Sampling(max_new_tokens=8, temperature=1.0))])
    assert answerer.slow is None and answerer._generator._loop is not None
