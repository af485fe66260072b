"""Micro-steps of answers that share their prompt, recorded and played: the gradients of the same ones launched."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from studio_kernels.dispatch import bind
from torch.utils._python_dispatch import TorchDispatchMode

from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.core.recipe import PreferenceSpec, SamplingSpec
from studio.data.common_beginnings import count_once
from studio.data.sequence_packing import Example, pack
from studio.engine.batches import StepOrder, measure_windows
from studio.engine.decoder_step import DecoderStep
from studio.engine.objectives import get_objective
from studio.engine.objectives.objective import Objective
from studio.engine.step_windows import sort_window
from studio.engine.token_stream import group_by_prompt, join_shared, pair_up
from studio.models.adapt import unwrap
from studio.models.decoder import cuda_graphs
from studio.models.decoder.beginnings import begin_apart
from studio.models.decoder.cuda_graphs import GraphedDecoder, Shapes
from studio.models.decoder.decoder import Decoder, take_over
from studio.models.score_head import add_score, free_score
from studio.planning import memory_estimate
from tests.each_time import some, some_of_several
from tests.engine.test_preference import make
from tests.engine.test_shared_prompts import draw_groups
from tests.models.decoder.models import make_model
from tests.models.decoder.test_cuda_graphs import play_graphs

SYNCS = ("_local_scalar_dense", "nonzero", "item", "masked_select", "_unique2", "unique_dim", "is_nonzero", "equal",
         "repeat_interleave.Tensor", "_pin_memory", "bincount")  # fmt: skip
"""Operators that wait for a card, or whose result's shape hangs on the data."""


def draw_pairs(count: int, seed: int, shortest: int = 0, refers: bool = True) -> list[Example]:
    """Return pairs whose prompts have 0 to 30 tokens, some of them in nothing alike, with a reference."""
    rng, examples = np.random.default_rng(seed), []
    for _ in range(count):
        prompt = rng.integers(2, 97, rng.integers(shortest, 31))
        answers = [rng.integers(2, 97, rng.integers(2, 20)) for _ in range(2)]
        if not rng.integers(4):
            answers[0] = np.concatenate([answers[1][:1], answers[0]])  # begin alike, too
        ids = np.concatenate([one for answer in answers for one in (prompt, answer)]).astype(np.int32)
        trained = np.concatenate([np.r_[np.zeros(len(prompt)), np.ones(len(one))] for one in answers]) > 0
        reference = np.where(trained, -4.0, 0.0).astype(np.float32) if refers else None
        lengths = tuple(len(prompt) + len(one) for one in answers)
        examples.append(Example(ids, trained, lengths, reference=reference, window=0.7))
    return examples


def take(family: str = "llama", *, scores: bool = False, keep: str = "all", dropout: float = 0.0) -> Decoder:
    model = make_model(family, dropout=dropout)
    if scores:
        torch.manual_seed(2)
        add_score(model.get_base_model())
        free_score(model)
    policy = MemoryPolicy(layers=(LayerPolicy(keep=keep),) * 3)
    decoder = take_over(unwrap(model), bind({}), dtype=torch.float32, policy=policy)
    assert isinstance(decoder, Decoder), decoder
    return decoder


def make_recording(
    decoder: Decoder, objective: Objective, examples: list[Example], rows: int, packing: bool = True
) -> DecoderStep:
    """Return a step that records as it would on a card, having heard of `examples`, `rows` a step."""
    step = DecoderStep(decoder, objective=objective, pad_id=0, packing=packing, shares_prompts=True)
    step._records = True
    order = StepOrder(len(examples), rows, 1)
    step.expect(measure_windows(order, examples, 50, step.expects_sequences), 50)
    return step


def gradients_of(
    step: DecoderStep, parts: list[list[Example]], seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    step.clear()
    count = sum(step.objective.count(one) for part in parts for one in part)
    sums = sum(step.add_gradients(part, count, lambda loss: 3 * loss) for part in parts)
    return sums, step.decoder.store.gradients.clone()


def assert_same(found: tuple, expected: tuple) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    largest = float(expected[1].abs().max())
    assert largest > 1e-5
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-6 * max(1.0, largest))


@pytest.fixture
def played(monkeypatch) -> list[int]:
    """The sizes of the micro-steps that are recorded or played, by a stand-in for a card's graphs."""
    play_graphs(monkeypatch)
    monkeypatch.setattr(
        Decoder, "recordable", True
    )  # windows are composed on a processor, which the stand-in plays
    sizes, real = [], GraphedDecoder.add_gradients

    def note(self, *arguments, size, **options):
        sizes.append(size)
        return real(self, *arguments, size=size, **options)

    monkeypatch.setattr(GraphedDecoder, "add_gradients", note)
    return sizes


@pytest.mark.parametrize(
    "name", some(["dpo sigmoid", "dpo nll", "simpo", "orpo", "reward"], "dpo nll", "reward")
)
@pytest.mark.parametrize(
    ("family", "keep"),
    some_of_several(
        [("llama", "all"), ("gemma3", "all"), ("mistral", "input"), ("latent", "qkv")], ("gemma3", "all")
    ),
)
def test_played_steps_are_launched_ones_however_a_window_is_cut(name, family, keep, played):
    """Other prompts, documents and rows each time; half as many rows of a micro-step, as after memory ran out."""
    objective = make(name)
    if name == "reward" and family != "llama":
        family = "llama"
    examples = [*objective.view(draw_pairs(24, 3, refers=objective.needs_reference))]
    decoder = take(family, scores=objective.scores, keep=keep)
    plain = DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=True)
    step = make_recording(decoder, objective, examples, 6)
    longest = step.find_longest(examples)
    order = StepOrder(len(examples), 6, 1)
    for number in range(7):
        window = sort_window([examples[i] for i in order.indices(number % 4)])
        parts = step.cut(window, 6 if number < 4 else 3, longest)
        before = len(played)
        found = gradients_of(step, parts)
        assert len(played) - before == len(parts), "all of it was recorded or played"
        assert_same(found, gradients_of(plain, parts))
        decoder.store.weights.mul_(0.95)
    assert len(set(played)) < len(played)


def test_what_is_recorded_has_the_gradient_of_answers_apart(played):
    objective, examples = make("dpo sigmoid"), draw_pairs(12, 8)
    decoder = take()
    apart = DecoderStep(decoder, objective=objective, pad_id=0)
    step = make_recording(decoder, objective, examples, 4)
    for start in (0, 4, 8, 0, 4, 8):
        window = sort_window(examples[start : start + 4])
        (part,) = step.cut(window, 4, step.find_longest(examples))
        assert_same(gradients_of(step, [part]), gradients_of(apart, [part]))
    assert len(played) == 6


def test_pairs_in_one_row_and_prompts_of_nothing_alike_are_recorded(played):
    objective = make("simpo")
    examples = [dataclasses.replace(row, window=0.7) for row in pack(draw_pairs(16, 5), 160)]
    unlike = [dataclasses.replace(one, token_ids=one.token_ids.copy()) for one in draw_pairs(6, 6, 5)]
    for one in unlike:
        one.token_ids[one.lengths[0]] = 1  # the second text begins with another word
        assert count_once(one, 2) == len(one.token_ids)
    for rows in (examples, unlike, [*unlike, *examples]):
        decoder = take()
        step, plain = make_recording(decoder, objective, rows, 2), make_plain(decoder, objective)
        longest = step.find_longest(rows)
        for start in (0, 2, 4, 0, 2):
            parts = step.cut(sort_window(rows[start : start + 2]), 2, longest)
            before = len(played)
            assert_same(gradients_of(step, parts), gradients_of(plain, parts))
            assert len(played) == before + len(parts)


def make_plain(decoder: Decoder, objective: Objective) -> DecoderStep:
    return DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=True)


def test_dropout_of_a_shared_prompt_is_drawn_from_the_seed(played):
    objective, examples = make("simpo"), draw_pairs(4, 9, 10)
    decoder = take(dropout=0.3)
    step = make_recording(decoder, objective, examples, 4)
    parts = step.cut(sort_window(examples), 4, step.find_longest(examples))
    launched, again, other = (gradients_of(step, parts, seed) for seed in (1, 1, 2))
    assert torch.equal(launched[1], again[1]) and (launched[1] - other[1]).norm() > 0.01 * launched[1].norm()
    assert_same(again, gradients_of(make_plain(decoder, objective), parts, 1))


def test_what_no_shape_takes_is_launched(played):
    objective, examples = make("simpo"), draw_pairs(8, 4)
    decoder = take()
    step = make_recording(decoder, objective, examples, 2)
    longest = step.find_longest(examples)
    step.cut(examples[:2], 2, longest)
    long = draw_pairs(40, 11)[-1]
    wide = Example(np.resize(long.token_ids, 800), np.arange(800) % 400 > 200, (400, 400), window=0.7)
    assert_same(gradients_of(step, [[wide]]), gradients_of(make_plain(decoder, objective), [[wide]]))
    assert not played, "longer documents than any that was heard of"
    many = sort_window(draw_pairs(8, 12))
    assert_same(gradients_of(step, [many]), gradients_of(make_plain(decoder, objective), [many]))
    assert not played, "more documents"
    assert_same(
        gradients_of(step, [examples[:2]]), gradients_of(make_plain(decoder, objective), [examples[:2]])
    )
    assert len(played) == 1


def draw_batches() -> list[list[Example]]:
    """Return answers of groups of one, of several, and of no prompt."""
    alone = draw_groups((1, 1, 1))
    return [draw_groups((3, 4, 1, 2)), alone, draw_groups((5,)), draw_groups((2, 2)), draw_groups((1, 4))]


def test_groups_of_any_number_of_answers_are_played_by_one_recording(monkeypatch):
    """Rows that stand a third and a fourth time, groups of one answer, and batches of which nothing is shared."""
    play_graphs(monkeypatch)
    decoder = take("gemma3")
    objective = get_objective("grpo", SamplingSpec())
    step = DecoderStep(decoder, objective=objective, pad_id=0, shares_prompts=True)
    graphed = GraphedDecoder(
        decoder, Shapes(sizes=(64, 160), documents=12, longest=64, spare=(128, 192), rounds=4)
    )
    for number, examples in enumerate(draw_batches() * 2):
        stream = join_shared(examples, group_by_prompt(examples), 0, 1)
        size = graphed.fit(stream.lengths, stream.beginnings)
        assert size
        scale = torch.tensor(0.3 + number)
        given = {"size": size, "scale": scale, "begun": stream.beginnings}
        decoder.store.clear_gradients()
        decoder.note_change()
        losses = graphed.add_gradients(stream.ids, stream.lengths, stream.picks, stream.targets, **given)
        found = losses, decoder.store.gradients.clone()
        decoder.store.clear_gradients()
        expected = decoder.add_gradients(*step._place(examples), scale)
        assert_same(found, (expected, decoder.store.gradients.clone()))
    assert graphed.recorded == (64, 160)
    six = join_shared(draw_groups((6,)), [[*range(6)]], 0, 1)
    assert graphed.fit(six.lengths, six.beginnings) == 0, "rows that stand a sixth time"


def test_rows_are_filled_up_without_a_trace():
    examples = draw_pairs(5, 2, 4)
    stream = join_shared(examples, pair_up(examples, 2), 0, 1)
    begun = stream.beginnings
    size, places = len(stream.ids) + 7, len(begun.rows) + 40
    filled = begun.fill(size, places, 3)
    assert [len(one) for one in filled.arrays] == [places, size, *[places - size] * 6]
    assert np.array_equal(filled.rows[filled.own], np.arange(size))
    assert np.array_equal(filled.rows[: len(begun.rows)], begun.rows)
    (rows, there), *more = filled.again
    kept = len(begun.again[0][0])
    assert np.array_equal(rows[:kept], begun.again[0][0]) and np.array_equal(there[:kept], begun.again[0][1])
    sent = np.concatenate([there[kept:], *(one for _, one in more)])
    assert set(sent.tolist()) == {places - 1} and places - 1 not in filled.own
    for shape in ((size, len(begun.rows) + 7, 3), (size, places, 0), (len(stream.ids) - 1, places, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            begun.fill(*shape)
    assert begin_apart(4).fill(6, 8, 0).rows.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]


class Unwaiting(TorchDispatchMode):
    """Refuses what would wait for a card, and notes what is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, op, types, arguments=(), keywords=None):
        name = str(op).removeprefix("aten.")
        assert not any(name == one or name.startswith(one + ".") for one in SYNCS), f"{name} waits"
        self.seen.add(name)
        return op(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    ("family", "keep"), some_of_several([("llama", "all"), ("gemma3", "input")], ("llama", "all"))
)
def test_nothing_that_is_recorded_waits_or_hangs_on_the_data(family, keep, played):
    objective, examples = make("dpo sigmoid"), draw_pairs(6, 3, 4)
    step = make_recording(take(family, keep=keep), objective, examples, 3)
    step.cut(examples[:3], 3, step.find_longest(examples))
    gradients_of(step, [examples[:3]])
    (recorded,) = step._graphs[1]._recorded.values()
    pointers = recorded.prepared.inputs.data_ptr()
    with Unwaiting() as mode:
        x, kept = recorded.prepared.forward()
        recorded.prepared.backward(kept)
    assert {"index_select.default", "index_copy_.default", "index_add_.default"} <= mode.seen
    assert torch.isfinite(x).all() and recorded.prepared.inputs.data_ptr() == pointers
    with pytest.raises(AssertionError, match="waits"), Unwaiting():
        x.sum().item()
    # Every index is a part of the one buffer that a step's arrays are copied to.
    held = recorded.prepared.inputs
    shared = recorded.prepared.rows.documents.shared
    ends = held.data_ptr() + held.numel()
    for one in (shared.rows, shared.own, *shared.again[0], recorded.prepared.rows.positions):
        assert held.data_ptr() <= one.data_ptr() < ends


def test_sizes_are_those_that_are_computed():
    examples = draw_pairs(10, 1)
    windows = measure_windows(StepOrder(10, 4, 3), examples, 6, 2)
    order = StepOrder(10, 4, 3)
    for step, sizes in enumerate(windows):
        rows = sort_window([examples[i] for i in order.indices(step)])
        assert sizes.lengths == tuple(len(one.token_ids) for one in rows)
        assert sizes.once == tuple(count_once(one, 2) for one in rows)
        assert sizes.longest == tuple(max(one.lengths) for one in rows)
        assert sizes.documents == (2,) * len(rows)
    assert measure_windows(order, examples, 2)[0].once == windows[0].lengths


@pytest.mark.parametrize(
    ("capability", "recorded"), [((9, 0), True), ((10, 0), True), ((8, 9), False), ((12, 0), False)]
)
def test_a_step_of_two_pairs_of_8b_is_recorded_where_the_card_waits_for_its_host(capability, recorded):
    assert memory_estimate.is_small(6 * 6.98e9, 2112, capability) == recorded
    assert memory_estimate.is_small(6 * 6.98e9, 900, capability) and not memory_estimate.is_small(
        6 * 6.98e9, 4096, capability
    )
    assert cuda_graphs.SIZE_STEP_TOKENS == 64


def test_what_a_small_model_keeps_of_many_tokens_is_not_held_twice():
    a_token = 6 * 106e6
    assert memory_estimate.is_small(a_token, 60_000, (9, 0)) and memory_estimate.is_small(a_token, 60_000)
    assert not memory_estimate.is_small(a_token, 130_000, (9, 0))


def test_drawn_answers_that_share_are_launched():
    step = DecoderStep(take(), objective=get_objective("grpo", SamplingSpec()), pad_id=0, shares_prompts=True)
    step._records = True
    assert step.expects_sequences == 1
    examples = draw_groups((2, 2))
    step.expect(measure_windows(StepOrder(4, 4, 1), examples, 5), 5)
    step.cut(examples, 4, 64)
    assert step._graph() is None
    pairs = DecoderStep(
        take(), objective=get_objective("dpo", PreferenceSpec()), pad_id=0, shares_prompts=True
    )
    assert pairs.expects_sequences == 1, "on a processor nothing is read for a recording"


def test_short_documents_beside_one_beyond_the_first_reach_have_angles_of_their_own():
    """A recording has one table for all: with longrope documents of at most 256 tokens have others than longer ones."""
    decoder, examples = take("phi4_mini"), draw_pairs(8, 3)
    for longest, recorded in ((200, True), (300, False)):
        step = make_recording(decoder, get_objective("dpo", PreferenceSpec()), examples, 4)
        step._windows = [dataclasses.replace(one, longest=(longest,) * 4) for one in step._windows]
        step.cut(examples[:4], 4, 400)
        assert (step._shapes[1] is not None) == recorded
