"""Guesses change how fast answers grow and nothing else, and are made where they are measured to bring something."""

from __future__ import annotations

import pytest
import torch
import transformers
from studio_kernels.dispatch import bind

from studio.engine.generation.generator import Generator
from studio.engine.generation.lookahead import MOST_GUESSED, Guess, Lookahead, Told
from studio.engine.generation.request import Request, Sampling
from studio.models.decoder.live_decoder import read_live
from tests.chi_square import DRAWS, SEEDS, find_share
from tests.models.decoder import models, routed_models

ROOM_BYTES = 2**28
PERIOD = [5, 6, 7, 8, 9, 10]
STATES = 11


class Eager(Lookahead):
    """Guesses as much as it can, whatever that costs and however wrong, and counts what was right."""

    def __init__(self) -> None:
        super().__init__()
        self.right = self.wrong = 0

    def _find(self, told, most):
        return super()._find(told, most) if len(told.tokens) % 3 else Guess(PERIOD[:most], 2)

    def _choose_count(self, sequences, gained):
        return len(gained)

    def learn(self, seconds, tolds, guesses, drawn):
        right = sum(len(one) - 1 for one in drawn)
        self.right += right
        self.wrong += sum(one.count for one in guesses) - right
        super().learn(seconds, tolds, guesses, drawn)


class Brief(Eager):
    """Guesses a token at most."""

    def _find(self, told, most):
        return super()._find(told, min(most, 1))


@pytest.fixture(scope="module", params=["llama", "gemma3", "gpt_oss"])
def model(request):
    """Of plain attention, with windows, and with sinks, whose sequences are read one by one."""
    made = routed_models.make_routed if request.param in routed_models.FAMILIES else models.make_model
    return made(request.param, max_position_embeddings=256)


def make_generator(model, *, looks_ahead: bool) -> Generator:
    decoder = read_live(model, bind({}), torch.float32)
    made = Generator(
        decoder, lambda tokens: False, longest=256, room_bytes=ROOM_BYTES, looks_ahead=looks_ahead
    )
    made._lookahead = Eager()
    return made


def ask(count: int, tokens: int, **sampling: float) -> list[Request]:
    return [
        Request((*PERIOD * 3, *PERIOD[:place]), Sampling(max_new_tokens=tokens - place, **sampling))
        for place in range(count)
    ]


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.7, "seed": 3, "top_k": 20, "repetition_penalty": 1.1}]
)
def test_the_same_tokens_come_with_guesses_and_without(model, count, sampling):
    requests = ask(count, 40, **sampling)
    wanted = make_generator(model, looks_ahead=False).answer(requests, adapted=True, slots=4)
    generator, told = make_generator(model, looks_ahead=True), []
    found = generator.answer(requests, adapted=True, slots=4, on_step=told.extend)
    for one, other in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens and one.reason == other.reason == "limit"
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)
    assert len(told) == sum(len(one.tokens) for one in found), "each token is told by itself"
    guessed = generator._lookahead
    assert guessed.wrong, "what is wrong leaves no trace"
    again = generator.answer(requests, adapted=True, slots=4)  # what was said is known now
    assert [one.tokens for one in again] == [one.tokens for one in wanted]
    assert guessed.right > 15 * count


def test_an_answer_that_is_ended_from_outside_keeps_no_token_more(model):
    [request] = ask(1, 40)
    generator = make_generator(model, looks_ahead=True)
    [whole] = generator.answer([request], adapted=True)

    def end(grown):
        if len(grown[0].tokens) == 7:
            grown[0].reason = "end"

    [one] = generator.answer([request], adapted=True, on_step=end)
    assert one.tokens == whole.tokens[:7] and one.reason == "end"


def draw(guess: Guess, right: int) -> list[int]:
    """Return what a step draws where `right` tokens of a guess would be right, as far as it was read."""
    read = min(right, guess.count)
    wrong = guess.tokens[read] + (read == right) if read < len(guess.tokens) else STATES
    return [*guess.tokens[:read], wrong]


@pytest.mark.parametrize(("row_s", "right"), [(0.0, 0.5), (0.1, 1.0), (1.0, 0.5), (0.3, 0.0)])
def test_as_many_tokens_are_guessed_as_bring_the_most_tokens_a_second(row_s, right):
    told, ahead, chosen = Told(PERIOD * 4), Lookahead(), []
    ahead.follow(told, len(told.tokens))
    for step in range(200):
        [guess] = ahead.guess([told], [40])
        chosen.append(guess.count)
        wrong = (place for place in range(len(guess.tokens)) if (step + place) % 4 >= 4 * right)
        accepted = next(wrong, len(guess.tokens))
        ahead.learn(1.0 + row_s * guess.count, [told], [guess], [draw(guess, accepted)])
    late = chosen[100:]
    if right and row_s < 0.5:
        assert sum(count >= 3 for count in late) > 90, "several tokens for the price of one"
        assert ahead.describe().value
    else:
        assert sum(late) < 30, "tried now and then, as machines change"


@pytest.mark.parametrize(("row_s", "pays"), [(1.0 / 16, False), (0.0, True)])
def test_among_many_sequences_guesses_are_tried_late_and_kept_where_they_pay(row_s, pays):
    """A step of 16 rows that takes as long as its rows switches guesses off, but for a look now and then."""
    ahead, tolds = Lookahead(), [Told(PERIOD * 4) for _ in range(16)]
    for told in tolds:
        ahead.follow(told, len(told.tokens))
    guessed = []
    for step in range(300):
        guesses = ahead.guess(tolds, [40] * 16)
        guessed.append(sum(one.count for one in guesses))
        seconds = 1.0 if row_s == 0 else max(1.0, row_s * (16 + guessed[-1]))
        ahead.learn(seconds, tolds, guesses, [draw(one, step % 2) for one in guesses])
    assert sum(guessed[:20]) == 0, "short answers do not pay for a try"
    told = ahead.describe()
    if pays:
        assert sum(count > 0 for count in guessed[200:]) > 90 and told.value
        assert float(told.reason.values["gain"]) > 1.2
    else:
        assert sum(count > 0 for count in guessed) < 30
        assert not told.value and float(told.reason.values["gain"]) < 1.0
        assert told.reason.id == "generation.ahead.stopped"


def test_what_guesses_are_worth_is_learned_without_reading_them():
    """Rows are too dear until they cost little: from then on only the sequence that repeats itself is read ahead."""
    ahead, tolds = Lookahead(), [Told(PERIOD * 4) for _ in range(2)]
    for told in tolds:
        ahead.follow(told, len(told.tokens))
    counts = []
    for step in range(300):
        guesses = ahead.guess(tolds, [40] * 2)
        counts.append([one.count for one in guesses])
        seconds = 1.0 + (0.5 if step < 30 else 0.1) * sum(counts[-1])
        drawn = [draw(one, right) for one, right in zip(guesses, (MOST_GUESSED, 0), strict=True)]
        ahead.learn(seconds, tolds, guesses, drawn)
    assert sum(sum(pair) > 0 for pair in counts[:90]) < 8, "each count is tried once, and then none for long"
    late = counts[200:]
    assert sum(first == 6 for first, _ in late) > 95 and sum(second > 0 for _, second in late) < 5
    assert tolds[0].shares[4] > 0.95 and tolds[1].shares[4] < 0.05
    assert ahead.describe().value and float(ahead.describe().reason.values["gain"]) > 2.0


def test_when_sequences_have_ended_what_fewer_cost_is_measured_before_guesses_are_read():
    """16 sequences until 4 have ended, every guess wrong: a row costs as much as each other, so none is read."""
    ahead, tolds, guessed = Lookahead(), [Told(PERIOD * 4) for _ in range(16)], []
    for told in tolds:
        ahead.follow(told, len(told.tokens))
    for step in range(100):
        left = tolds if step < 40 else tolds[:12]
        guesses = ahead.guess(left, [40] * len(left))
        guessed.append(sum(one.count for one in guesses))
        seconds = 0.01 * (len(left) + guessed[-1])
        ahead.learn(seconds, left, guesses, [draw(one, 0) for one in guesses])
    assert sum(count > 0 for count in guessed[40:]) < 6 and not ahead.describe().value


def test_one_step_beside_a_busy_program_decides_nothing():
    ahead, tolds = Lookahead(), [Told(PERIOD * 4) for _ in range(16)]
    for told in tolds:
        ahead.follow(told, len(told.tokens))
    for step in range(20):
        ahead.learn(20.0 if step == 10 else 1.0, tolds, [Guess()] * 16, [[1]] * 16)
        assert ahead._expect_seconds(16, doubts=False) == 1.0


def test_what_rows_cost_outlives_the_weights():
    ahead, told = Lookahead(), Told(PERIOD * 4)
    ahead.follow(told, 1)
    ahead.learn(0.5, [told], [Guess()], [[1]])
    ahead.forget()
    assert ahead.guess([Told([3, 5, 6])], [5]) == [Guess()] and ahead._expect_seconds(1, doubts=False) == 0.5
    assert ahead.describe().reason.id == "generation.ahead.nothing"


def test_guesses_stand_behind_the_longest_match_and_keep_to_their_room():
    ahead = Lookahead()
    other, told = Told([1, 2, 3, 4, 50, 51]), Told([3, 4, 60, 61, 1, 2, 3, 4])
    ahead.follow(other, 1)
    ahead.follow(told, 8)
    [guess] = ahead.guess([told], [40])
    [_, none, nothing] = ahead.guess([told, told, None], [40, 0, 40])
    assert guess == Guess(other.tokens[4:], 4, 2), "four tokens of another answer before two of its own"
    assert none == nothing == Guess()
    assert len(ahead.guess([told], [1])[0].tokens) == 1
    fresh = Lookahead()
    fresh.follow(Told([7, 8, 9, 1, 2]), 5)
    [guess] = fresh.guess([Told([3, 7, 8])], [5])
    assert guess == Guess(), "what another one was asked is not said to anybody"


def make_chain() -> torch.nn.Module:
    """Return a model whose next token hangs on the last one alone, so that what is right is known exactly."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=STATES, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, max_position_embeddings=256,
        )
    )  # fmt: skip
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.lm_head.weight.mul_(12)
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize(
    "looks_ahead",
    [pytest.param(False, marks=pytest.mark.computing), pytest.param(True, marks=pytest.mark.patient)],
)
def test_draws_follow_the_distribution(looks_ahead):
    """Chi-square of 50,000 draws for each of 20 seeds, by what was said before; see tests/chi_square.py."""
    model, length, low, right = make_chain(), 250, 0, 0
    shares = model(input_ids=torch.arange(STATES)[:, None], use_cache=False).logits[:, 0].double().softmax(-1)
    answers = DRAWS // length
    generator = make_generator(model, looks_ahead=looks_ahead)
    for seed in SEEDS:
        generator._lookahead = Brief()
        requests = [
            Request((1, 2), Sampling(max_new_tokens=length, temperature=1.0, seed=seed * answers + number))
            for number in range(answers)
        ]
        found = generator.answer(requests, adapted=True, slots=answers)
        tokens = torch.tensor([(2, *one.tokens) for one in found])
        pairs = torch.bincount((tokens[:, :-1] * STATES + tokens[:, 1:]).flatten(), minlength=STATES**2)
        seen = pairs.view(STATES, STATES)
        expected = seen.sum(1, keepdim=True) * shares
        assert expected.min() > 5
        low += find_share(seen, expected, STATES * (STATES - 1)) < 0.01
        right += generator._lookahead.right
    assert low <= 1 and (right > DRAWS) is looks_ahead
