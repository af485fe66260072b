"""Who answers: our decoder, or the model's own code with the reason why."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.engine.generation.answerer import ANSWERING, Answerer, leave_answers_own
from studio.engine.generation.request import Request, Sampling
from studio.engine.stop_tokens import Ends
from tests.models.decoder.models import make_model


class Tokenizer:
    pad_token_id = 0


def greedy(*prompts: list[int], tokens: int = 8) -> list[Request]:
    return [Request(tuple(one), Sampling(max_new_tokens=tokens)) for one in prompts]


PROMPTS = [5, 6, 7, 8], [9, 10], [11, 12, 13]


@pytest.mark.parametrize(("family", "slow"), [("llama", ""), ("lfm2", "Lfm2ShortConv")])
def test_both_ways_give_the_same_answers_to_whoever_listens(family, slow):
    model = make_model(family)
    answerer, told = Answerer(model, Tokenizer(), Ends((2,))), []
    found = answerer.answer(greedy(*PROMPTS), on_step=lambda grown: told.extend(grown))
    assert slow in (answerer.slow.values["part"] if answerer.slow else "")
    assert len(told) == sum(len(one.tokens) for one in found)
    for one in found:
        [alone] = answerer.answer([one.request])
        assert (alone.tokens, alone.reason) == (one.tokens, one.reason)
        ids = torch.tensor([one.request.prompt])
        own = model.generate(
            input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=[2], use_cache=True
        )
        assert own[0, ids.shape[1] :].tolist() == one.tokens


def test_a_decoder_that_says_something_else_is_given_up():
    model = make_model("llama")
    answerer = Answerer(model, Tokenizer(), Ends((2,)))
    mlp = answerer._decoder.layers[1].mlp
    mlp.spec = replace(mlp.spec, activation="gelu_tanh")
    [one] = answerer.answer(greedy(PROMPTS[0]))
    assert answerer.slow.id == "generation.differs" and len(one.tokens) > 0
    assert one.tokens == answerer.answer(greedy(PROMPTS[0]))[0].tokens


def test_beyond_the_length_up_to_which_angles_hold_the_models_own_code_answers():
    model = make_model("phi4_mini")
    answerer = Answerer(model, Tokenizer(), Ends((96,)))
    assert answerer._generator.longest == 256 and answerer.limit == 512
    long = [3 + i % 90 for i in range(252)]
    [one] = answerer.answer(greedy(long, tokens=8))
    assert one.tokens and not one.log_probabilities, "transformers' generate tells none"
    assert answerer.answer(greedy(long[:9], tokens=8))[0].log_probabilities


def test_a_drawn_answer_uses_nobodys_random_numbers_up():
    for family in ("llama", "lfm2"):
        answerer = Answerer(make_model(family), Tokenizer(), Ends((2,)))
        state = torch.get_rng_state()
        request = Request((5, 6), Sampling(max_new_tokens=6, temperature=1.0, seed=3))
        first = answerer.answer([request])[0].tokens
        assert torch.equal(state, torch.get_rng_state())
        assert first == answerer.answer([request])[0].tokens


def test_what_a_step_does_not_need_is_not_taken_for_a_decision():
    """A step binds what only answers ask for to the twins; the answerer takes what computes the adapters there."""
    step = bind({"lora": "reference"}).implementations
    assert set(ANSWERING) < set(step)
    left = leave_answers_own(step)
    assert left["lora"] == "reference" and not set(ANSWERING) & set(left)
