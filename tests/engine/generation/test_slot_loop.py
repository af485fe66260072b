"""Sequences that grow a slot each say what they say one by one, whoever comes, goes or is looked at meanwhile."""

from __future__ import annotations

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.engine.generation.generator import Generator
from studio.engine.generation.request import Completion, Request, Sampling
from studio.models.decoder.live_decoder import read_live
from tests.engine.generation.test_generator import (
    FAMILIES,
    PROMPTS,
    ROOM_BYTES,
    ask,
    assert_own_code_agrees,
    make,
)


def make_generator(model: torch.nn.Module, by_slots: bool, end: int | None = None) -> Generator:
    decoder = read_live(model, bind({}), torch.float32)
    return Generator(
        decoder,
        lambda tokens: tokens[-1] == end,
        longest=256,
        room_bytes=ROOM_BYTES,
        looks_ahead=False,
        by_slots=by_slots,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_the_models_own_code(family):
    model = make(family)
    generator = make_generator(model, by_slots=True)
    for one in generator.answer(ask(*PROMPTS), adapted=True, slots=2):
        assert (len(one.tokens), one.reason) == (one.request.sampling.max_new_tokens, "limit")
        assert_own_code_agrees(model, one)
    with model.disable_adapter():
        for one in generator.answer(ask(*PROMPTS[:2], tokens=12), adapted=False):
            assert_own_code_agrees(model, one)


@pytest.fixture(scope="module")
def model():
    return make("qwen2")


def seeds(tokens: int = 40) -> list[Request]:
    """Requests of every kind of drawing: by the device, and by the host."""
    kinds = (
        {"temperature": 0.9}, {}, {"temperature": 1.3}, {"temperature": 0.8, "top_p": 0.7}, {"repetition_penalty": 1.4},
    )  # fmt: skip
    return [
        Request(tuple(prompt), Sampling(max_new_tokens=tokens - 7 * i, seed=2**61 + 5 * i, **kind))
        for i, (prompt, kind) in enumerate(zip(PROMPTS, kinds, strict=True))
    ]


@pytest.mark.parametrize("slots", [1, 2, 3, 16])
@pytest.mark.parametrize("kinds", [slice(0, 3), slice(0, 5)])
def test_what_is_drawn_is_what_is_drawn_one_by_one(model, slots, kinds):
    wanted = [make_generator(model, False).answer([one], adapted=True)[0] for one in seeds()[kinds]]
    found = make_generator(model, True).answer(seeds()[kinds], adapted=True, slots=slots)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-4)


def test_who_ends_early_ends_with_its_token_and_another_takes_the_slot(model):
    plain = make_generator(model, False).answer(seeds()[:3], adapted=True)
    end = plain[0].tokens[7]
    wanted = make_generator(model, False, end).answer(seeds()[:3], adapted=True)
    found = make_generator(model, True, end).answer(seeds()[:3], adapted=True, slots=2)
    assert wanted[0].reason == "end"
    assert [(one.tokens, one.reason) for one in found] == [(one.tokens, one.reason) for one in wanted]


def test_who_comes_later_and_who_leaves_changes_nobody_elses_answer(model):
    wanted = make_generator(model, False).answer(seeds()[:3], adapted=True)
    going = [Completion(one) for one in seeds()[:3]]
    late, steps = [going[2]], []

    def on_step(grown):
        steps.append([len(one.tokens) for one in grown])
        if len(going[1].tokens) == 9:
            going[1].reason = "stopped"

    def arrivals():
        return [late.pop()] if len(going[0].tokens) > 5 and late else []

    generator = make_generator(model, True)
    generator.grow(going[:2], adapted=True, on_step=on_step, arrivals=arrivals)
    assert [one.tokens for one in (going[0], going[2])] == [wanted[0].tokens, wanted[2].tokens]
    assert going[1].tokens == wanted[1].tokens[:9]


def test_who_is_looked_at_is_told_every_distribution(model):
    asked = [
        Request(tuple(PROMPTS[0]), Sampling(max_new_tokens=12), likeliest=3),
        *ask(PROMPTS[1], tokens=20),
    ]
    found = make_generator(model, True).answer(asked, adapted=True)
    assert [len(one.likeliest) for one in found] == [12, 0]
    for token, (own, top) in zip(found[0].tokens, found[0].likeliest, strict=True):
        assert top[0] == (token, pytest.approx(own)) and len(top) == 3
    assert_own_code_agrees(model, found[0])


def test_kept_prefixes_hold_what_was_computed(model):
    """The step more that who ends is computed for leaves nothing in pages that are kept for the next question."""
    generator = make_generator(model, True)
    (first,) = generator.answer(ask(PROMPTS[2], tokens=64), adapted=True)
    longer = [*PROMPTS[2], *first.tokens, 4, 5]
    (second,) = generator.answer(ask(longer, tokens=30), adapted=True)
    assert_own_code_agrees(model, second)


def test_what_was_drawn_before_a_step_fails_is_not_lost(model, monkeypatch):
    generator = make_generator(model, True)
    forward, calls = generator.decoder.forward, []

    def fail_once(ids, rows):
        calls.append(len(ids))
        if len(calls) == 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(ids, rows)

    monkeypatch.setattr(generator.decoder, "forward", fail_once)
    wanted = make_generator(model, False).answer(seeds()[:3], adapted=True)
    found = generator.answer(seeds()[:3], adapted=True)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
