"""The decode loop says what the model's own code says, whoever else is answered at the same time."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from studio_kernels.dispatch import bind

from studio.engine.generation.generator import Generator
from studio.engine.generation.request import Completion, Request, Sampling
from studio.models.decoder.live_decoder import read_live
from tests.models.decoder import models, routed_models
from tests.models.decoder.double import in_double

TOKENS = 64
ROOM_BYTES = 2**28
DRAWN = torch.randint(3, 97, (200,), generator=torch.Generator().manual_seed(1)).tolist()
SHARED = DRAWN[:70]
"""A page and some tokens of the next."""
PROMPTS = (DRAWN[100:105], DRAWN[110:140], SHARED + [5, 6, 7], SHARED + [9], SHARED[:66] + [3] * 9)
OFTEN = (
    "llama",
    "gemma2",
    "gemma3",
    "ministral3",
    "olmo2",
    "gemma4",
    "gemma4_e2b",
    "latent",
    "gpt_oss",
    "qwen2_moe",
)
"""With windows, bounded scores, sinks, norms in every place, growing queries, narrow rows, experts."""
FAMILIES = [
    pytest.param(name, marks=() if name in OFTEN else pytest.mark.computing)
    for name in (*models.FAMILIES, *routed_models.FAMILIES)
]


def make(family: str) -> torch.nn.Module:
    if family in models.FAMILIES:
        return models.make_model(family, max_position_embeddings=256)
    return routed_models.make_routed(family, max_position_embeddings=256)


def make_generator(model: torch.nn.Module, end: int | None = None, room_bytes: int = ROOM_BYTES) -> Generator:
    decoder = read_live(model, bind({}), torch.float32)
    return Generator(decoder, lambda tokens: tokens[-1] == end, longest=256, room_bytes=room_bytes)


def ask(*prompts: list[int], tokens: int = TOKENS, **sampling: float) -> list[Request]:
    return [
        Request(tuple(one), Sampling(max_new_tokens=tokens - i, **sampling)) for i, one in enumerate(prompts)
    ]


ROUNDING = 2e-5
"""What a log-probability may be off in fp32, where the model's own code rounds less."""
FURTHER = 3
"""How many times as far from float64 as the model's own code an answer may be, where that rounds more: scores that are
not scaled down (Gemma 4) or branches that are multiplied (MiniCPM3) make it 1e-4."""


@torch.no_grad()
def assert_own_code_agrees(model: torch.nn.Module, completion, rounding: float = ROUNDING) -> None:
    """Each token is the likeliest behind those before it, and as likely, by one pass of the model's own code."""

    def compute(model: torch.nn.Module) -> torch.Tensor:
        """Log-probabilities behind the prompt, (tokens, vocabulary)."""
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    prompt, tokens = completion.request.prompt, torch.tensor(completion.tokens)
    ids = torch.tensor([[*prompt, *completion.tokens]])
    wanted = compute(model)
    assert torch.equal(wanted.argmax(-1), tokens)
    said = torch.tensor(completion.log_probabilities, dtype=wanted.dtype)
    if (said - wanted.gather(1, tokens[:, None])[:, 0]).abs().max() <= rounding:
        return
    with in_double():
        exact = compute(copy.deepcopy(model).double())
    ours = (said - exact.gather(1, tokens[:, None])[:, 0]).abs().max().item()
    own = (wanted - exact).abs().max().item()
    assert ours <= FURTHER * own, (ours, own)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_the_models_own_code(family):
    model = make(family)
    generator = make_generator(model)
    for one in generator.answer(ask(*PROMPTS), adapted=True, slots=2):
        assert (len(one.tokens), one.reason) == (one.request.sampling.max_new_tokens, "limit")
        assert_own_code_agrees(model, one)
    with model.disable_adapter():
        for one in generator.answer(ask(*PROMPTS[:2], tokens=12), adapted=False):
            assert_own_code_agrees(model, one)


def test_answers_over_borrowed_keys_are_the_models_own_to_the_last_digits():
    """In float64, where no rounding hides what is read from another layer's pages: 5e-13 off."""
    model = make("gemma4_e2b").double()
    with in_double():
        decoder = read_live(model, bind({}), torch.float64)
        generator = Generator(decoder, lambda tokens: False, longest=256, room_bytes=ROOM_BYTES)
        for one in generator.answer(ask(*PROMPTS, tokens=24), adapted=True, slots=2):
            assert_own_code_agrees(model, one, 1e-9)
    borrowed = sum(layer.source is not None for layer in decoder.spec.layers)
    assert borrowed == 3 and len({id(pages) for pages in decoder.make_arena(1).layers}) == 3


@pytest.fixture(scope="module")
def model():
    return make("qwen2")


def test_a_batch_says_what_generate_says(model):
    for one in make_generator(model).answer(ask(*PROMPTS[:3], tokens=24), adapted=True):
        ids = torch.tensor([one.request.prompt])
        count = len(one.tokens)
        out = model.generate(
            input_ids=ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, use_cache=True
        )
        assert out[0, ids.shape[1] :].tolist() == one.tokens


def test_drawn_answers_are_the_same_in_any_batch(model):
    drawn = {"temperature": 1.5, "seed": 7, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
    generator = make_generator(model)
    together = generator.answer(ask(*PROMPTS, tokens=20, **drawn), adapted=True, slots=3)
    for request, one in zip(ask(*PROMPTS, tokens=20, **drawn), together, strict=True):
        assert make_generator(model).answer([request], adapted=True)[0].tokens == one.tokens
    greedy = generator.answer(ask(*PROMPTS, tokens=20), adapted=True)
    assert all(one.tokens != other.tokens for one, other in zip(together, greedy, strict=True))
    other = generator.answer(ask(*PROMPTS, tokens=20, **drawn | {"seed": 8}), adapted=True)
    assert all(one.tokens != two.tokens for one, two in zip(together, other, strict=True))


def test_a_common_beginning_is_read_once_and_kept(model, monkeypatch):
    generator, read = make_generator(model), []
    compute = generator._compute
    monkeypatch.setattr(
        generator, "_compute", lambda some, ids, counts: read.append(len(ids)) or compute(some, ids, counts)
    )
    prompts = [SHARED + [5], SHARED + [6, 7]]
    first = generator.answer(ask(*prompts, tokens=2), adapted=True)
    assert read[:2] == [71, 8], "the second begins where the first one's page ends"
    talk = [*first[0].request.prompt, *first[0].tokens, *DRAWN[:3]]
    read.clear()
    [one] = generator.answer(ask(talk, tokens=1), adapted=True)
    assert read == [len(talk) - 64]
    assert_own_code_agrees(model, one)
    generator.forget()
    read.clear()
    generator.answer(ask(talk, tokens=1), adapted=True)
    assert read == [len(talk)], "other weights, other keys"


def test_answers_end_at_ends_and_when_nobody_wants_more(model):
    [whole] = make_generator(model).answer(ask(PROMPTS[0], tokens=12), adapted=True)
    end = whole.tokens[5]
    stop = whole.tokens.index(end) + 1
    [one] = make_generator(model, end).answer(ask(PROMPTS[0], tokens=12), adapted=True)
    assert (one.tokens, one.reason) == (whole.tokens[:stop], "end")
    grown = []
    found = make_generator(model).answer(
        ask(*PROMPTS, tokens=12),
        adapted=True,
        slots=2,
        on_step=grown.append,
        should_stop=lambda: len(grown) > 2,
    )
    assert {one.reason for one in found} == {"stopped"} and found[-1].tokens == [] and found[0].tokens


def test_fewer_sequences_go_at_once_where_room_is_short(model):
    page = make_generator(model).decoder.page_bytes
    tight = make_generator(model, room_bytes=3 * page)
    wanted = make_generator(model).answer(ask(*PROMPTS, tokens=9), adapted=True)
    assert [one.tokens for one in tight.answer(ask(*PROMPTS, tokens=9), adapted=True)] == [
        one.tokens for one in wanted
    ]
    with pytest.raises(torch.OutOfMemoryError):
        make_generator(model, room_bytes=page).answer(ask(PROMPTS[2], tokens=9), adapted=True)


def run(
    generator: Generator, first: list[Completion], later: list[list[Completion]], **settings
) -> list[int]:
    """Let `first` grow, and one list of `later` arrive between two steps each; returns how many grew in each step."""
    steps, coming = [], iter(later)
    generator.grow(
        first,
        adapted=True,
        on_step=lambda grown: steps.append(len(grown)),
        arrivals=lambda: next(coming, []),
        **settings,
    )
    return steps


def complete(*prompts: list[int], tokens: int = 12, **sampling: float) -> list[Completion]:
    return [Completion(one) for one in ask(*prompts, tokens=tokens, **sampling)]


def test_who_arrives_meanwhile_joins_and_is_answered_as_if_alone(model):
    drawn = {"temperature": 1.0, "seed": 5}
    found = complete(*PROMPTS, **drawn)
    steps = run(make_generator(model), found[:1], [[], [], found[1:3], [], found[3:]], slots=4)
    assert max(steps) == 4 and sum(steps) == sum(len(one.tokens) for one in found)
    for one, alone in zip(found, complete(*PROMPTS, **drawn), strict=True):
        make_generator(model).grow([alone], adapted=True)
        assert (one.tokens, one.reason) == (alone.tokens, "limit")


def test_whoever_is_given_a_reason_leaves_and_so_do_its_pages(model):
    generator, found = make_generator(model), complete(*PROMPTS)
    grown = []

    def arrivals() -> list[Completion]:
        if len(grown) == 4:
            found[0].reason = found[4].reason = "stopped"  # one that grows, one that waits
        return []

    generator.grow(found, adapted=True, slots=2, on_step=grown.append, arrivals=arrivals)
    assert 0 < len(found[0].tokens) < 12 and found[4].tokens == []
    assert [one.reason for one in found[1:4]] == ["limit"] * 3
    assert generator._pool.room == generator._pool.count


def test_one_that_has_no_room_ends_alone(model):
    page = make_generator(model).decoder.page_bytes
    short, long = complete(DRAWN[:5], tokens=8), complete(DRAWN[:120], tokens=8)
    assert run(make_generator(model, room_bytes=page), short, [[], long]) == [1] * 8
    assert (short[0].reason, long[0].reason, long[0].tokens) == ("limit", "room", [])


def test_where_memory_runs_out_fewer_grow_at_once_and_nothing_is_lost(model, monkeypatch):
    generator, found = make_generator(model), complete(*PROMPTS)
    forward = generator.decoder.forward

    def compute(ids: torch.Tensor, rows) -> torch.Tensor:
        if len(rows.spans) > 2:
            torch.empty(2**60, dtype=torch.uint8)  # an allocator's own refusal
        return forward(ids, rows)

    monkeypatch.setattr(generator.decoder, "forward", compute)
    steps = run(generator, found, [])
    assert max(steps) <= 2 and generator._pool.room == generator._pool.count
    for one in found:
        assert one.reason == "limit"
        assert_own_code_agrees(model, one)


def test_an_arena_is_as_large_as_memory_lets_it(model, monkeypatch):
    generator, asked = make_generator(model), []
    make_arena = generator.decoder.make_arena

    def make(pages: int):
        asked.append(pages)
        if pages > 40:
            torch.empty(2**60, dtype=torch.uint8)
        return make_arena(pages)

    monkeypatch.setattr(generator.decoder, "make_arena", make)
    found = complete(*PROMPTS)
    run(generator, found, [])
    assert asked == [128, 32] and {one.reason for one in found} == {"limit"}
    run(generator, complete(*PROMPTS), [])
    assert len(asked) == 2, "what was learned is not asked again"


def test_what_is_told_of_each_token_is_the_models_own(model):
    [one] = complete(PROMPTS[1], temperature=1.3, seed=3)
    one.request = replace(one.request, likeliest=3)
    make_generator(model).grow([one], adapted=True)
    ids = torch.tensor([[*one.request.prompt, *one.tokens]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(one.request.prompt) - 1 : -1]
    wanted = logits.float().log_softmax(-1)
    for row, token, (score, top) in zip(wanted, one.tokens, one.likeliest, strict=True):
        assert score == pytest.approx(float(row[token]), abs=1e-5)
        assert [id for id, _ in top] == row.topk(3).indices.tolist()


class Only:
    """Says these tokens and no other, and then is whole."""

    def __init__(self, tokens: list[int]) -> None:
        self.left = list(tokens)

    def restrict(self, logits: torch.Tensor) -> None:
        kept = float(logits[self.left[0]])
        logits.fill_(-torch.inf)
        logits[self.left[0]] = kept

    def take(self, token: int) -> bool:
        assert token == self.left.pop(0)
        return not self.left


def test_a_constraint_is_kept_by_its_own_answer_alone(model):
    found = complete(*PROMPTS[:3])
    found[1].constraint = Only([7, 8, 9])
    run(make_generator(model), found, [])
    assert (found[1].tokens, found[1].reason) == ([7, 8, 9], "end")
    for one in (found[0], found[2]):
        assert_own_code_agrees(model, one)
