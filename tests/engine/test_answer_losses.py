"""Exact match and perplexity: against a plain transformers computation, with the mask of training."""

from __future__ import annotations

import math

import pytest

from studio.engine.answer_losses import (
    AnswerLoss,
    add_losses,
    measure_losses,
    render_expected,
)

TALKS = [
    ([{"role": "user", "content": "say 3"}], "it is 1"),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say 12"}], "it is 4, and 5"),
    ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], "d"),
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tiny_models):
    """The tiny model and its tokenizer, loaded by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_models(), dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(tiny_models())


def test_perplexity_is_that_of_plain_transformers(loaded):
    import torch

    model, tokenizer = loaded
    rows = render_expected(tokenizer, [talk for talk, _ in TALKS], [answer for _, answer in TALKS])
    losses = measure_losses(model, rows, pad_id=tokenizer.pad_token_id)
    totals = 0.0
    for (talk, answer), loss in zip(TALKS, losses, strict=True):
        asked = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
        whole = tokenizer.apply_chat_template(
            [*talk, {"role": "assistant", "content": answer}], tokenize=False
        )
        ids = tokenizer(whole, add_special_tokens=False, return_tensors="pt")["input_ids"]
        labels = ids.clone()
        labels[:, : len(tokenizer(asked, add_special_tokens=False)["input_ids"])] = -100
        with torch.no_grad():
            plain = float(model(input_ids=ids, labels=labels).loss)
        assert loss.tokens == int((labels != -100).sum()), "the answer and the token that ends it"
        assert abs(loss.mean - plain) < 1e-5 and abs(loss.perplexity - math.exp(plain)) < 1e-5 * math.exp(
            plain
        )
        totals += plain * loss.tokens
    total = add_losses([*losses, None])
    assert abs(total.total - totals) < 1e-4 and total.tokens == sum(loss.tokens for loss in losses)


def test_rows_in_one_batch_do_not_touch_each_other(loaded, monkeypatch):
    model, tokenizer = loaded
    rows = render_expected(tokenizer, [talk for talk, _ in TALKS], [answer for _, answer in TALKS])
    together = measure_losses(model, rows, pad_id=tokenizer.pad_token_id)
    monkeypatch.setattr("studio.engine.answer_losses.LOGITS_AT_ONCE", 1)
    alone = measure_losses(model, rows, pad_id=tokenizer.pad_token_id)
    assert all(abs(a.mean - b.mean) < 1e-5 for a, b in zip(together, alone, strict=True))


def test_rows_that_cannot_be_measured_are_none(loaded):
    model, tokenizer = loaded
    talk = TALKS[0][0]
    rows = render_expected(tokenizer, [talk, talk, talk], [None, "fine", "broken <|end|> here"])
    assert rows[0] is None and rows[1] is not None and rows[2] is None
    losses = measure_losses(model, rows, pad_id=1, limit=4)
    assert losses == [None, None, None], "longer than the model can take"
    told: list[tuple[int, int]] = []
    measure_losses(model, rows, pad_id=1, on_progress=lambda *at: told.append(at))
    assert told == [(1, 1)]
    assert measure_losses(model, rows, pad_id=1, should_stop=lambda: True) == [None, None, None]


def test_a_loss_of_nothing_and_of_everything():
    assert math.isnan(AnswerLoss(0.0, 0).mean) and AnswerLoss(1e6, 1).perplexity == math.inf
