"""Answers of a trained model: the tokens of transformers' generate, as exact as the model's own code in fp32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from studio.engine.generation.answerer import Answerer
from studio.engine.generation.request import Request, Sampling
from studio.engine.stop_tokens import Ends

pytestmark = [pytest.mark.patient, pytest.mark.timeout(1800)]

TOKENS = 64
QUESTIONS = (
    "What is the capital of France?", "Repeat after me, twice: the quick brown fox jumps over the lazy dog.",
    "List five colours as JSON.", "Hi", "Why is the sky blue?",
)  # fmt: skip


@pytest.mark.parametrize("opens", [False, True])
def test_a_trained_model_says_what_generate_says(trained_model, opens):
    tokenizer = AutoTokenizer.from_pretrained(trained_model)
    model = AutoModelForCausalLM.from_pretrained(trained_model, dtype=torch.float32).eval()
    exact = AutoModelForCausalLM.from_pretrained(trained_model, dtype=torch.float64).eval()
    prompts = [
        tokenizer(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": words}], tokenize=False, add_generation_prompt=True
            ),
            add_special_tokens=False,
        )["input_ids"]
        for words in QUESTIONS
    ]
    answerer = Answerer(model, tokenizer, Ends(()), opens=opens)
    requests = [
        Request(tuple(one), Sampling(max_new_tokens=TOKENS - place)) for place, one in enumerate(prompts)
    ]
    for one in answerer.answer(requests, slots=3):
        assert answerer.slow is None
        ids, count = torch.tensor([one.request.prompt]), one.request.sampling.max_new_tokens
        settings = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=[-1], pad_token_id=0)
        said = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)[
            0, ids.shape[1] :
        ]
        assert one.tokens == said.tolist()
        whole = torch.cat((ids, said[None]), 1)
        with torch.no_grad():
            own, wanted = (
                which(input_ids=whole, use_cache=False)
                .logits[0, ids.shape[1] - 1 : -1]
                .double()
                .log_softmax(-1)
                .gather(1, said[:, None])[:, 0]
                for which in (model, exact)
            )
        ours = torch.tensor(one.log_probabilities, dtype=torch.float64)
        error, allowed = ((each - wanted).square().mean().sqrt().item() for each in (ours, own))
        assert error <= 2 * allowed + 1e-6, (error, allowed)
        print(f"log-probabilities off by {error:.1e}, the model's own by {allowed:.1e}")


def test_a_trained_model_in_16_bits_is_answered_by_the_studios_decoder(trained_model):
    tokenizer = AutoTokenizer.from_pretrained(trained_model)
    model = AutoModelForCausalLM.from_pretrained(trained_model, dtype=torch.bfloat16).eval()
    answerer = Answerer(model, tokenizer, Ends((tokenizer.eos_token_id,)))
    words = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTIONS[0]}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    [one] = answerer.answer([Request(tuple(ids), Sampling(max_new_tokens=16))])
    assert answerer.slow is None and "Paris" in tokenizer.decode(one.tokens)
