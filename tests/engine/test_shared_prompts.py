"""Answers that share their prompt in one stream: the gradients of the same answers apart, by either step."""

from __future__ import annotations

import dataclasses
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from studio.core.events import EvalLogged, RunPlanned, StepLogged
from studio.core.recipe import PreferenceSpec, SamplingSpec
from studio.data.common_beginnings import count_once, count_shared, find_longest, measure_rows
from studio.data.sequence_packing import Example, RolloutFacts, pack
from studio.engine.batches import cut_in_order
from studio.engine.objectives import get_objective
from studio.engine.step_windows import sort_window
from studio.engine.token_stream import group_by_prompt, join_apart, join_shared, pair_up
from studio.models.score_head import add_score, free_score
from studio.planning import run_plan as planning
from tests.each_time import some
from tests.engine.test_grpo import CHANGES, KINDS, write_prompts
from tests.engine.test_objectives import Taken, make_step
from tests.engine.test_preference import Parts, draw_answers, make, write_pairs
from tests.models.decoder.models import make_model

FAMILIES = ("llama", "mistral", "gemma2", "gemma3", "gemma4_e2b", "latent", "ministral3", "hunyuan")
"""Plain attention; sliding windows; capped scores; both; keys that other layers borrow; keys of narrow rows; queries
that grow with their position; norms behind the rotation."""

KINDS_OF_LOSS = ("dpo sigmoid", "dpo nll", "simpo", "cpo sigmoid", "orpo")


def assert_close(found: dict, expected: dict) -> None:
    largest = max(float(one.abs().max()) for one in expected.values())
    assert largest > 1e-4 and found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5 * max(1.0, largest), msg=name)


def make_scoring() -> torch.nn.Module:
    model = make_model("llama")
    torch.manual_seed(2)
    add_score(model.get_base_model())
    free_score(model)
    return model


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def test_scores_have_the_gradient_of_answers_apart():
    objective = make("reward")
    examples = [*objective.view(draw_answers(6, 2))[0:6]]
    found, expected = (
        Taken(objective, True, examples, model=make_scoring(), shares=shares) for shares in (True, False)
    )
    assert len(found.step._join(examples).ids) < 0.95 * sum(len(one.token_ids) for one in examples)
    torch.testing.assert_close(found.sums, expected.sums, rtol=1e-4, atol=1e-4)
    assert any(name.endswith("score.weight") for name in found.gradients)
    assert_close(found.gradients, expected.gradients)


@pytest.mark.parametrize("name", some(KINDS_OF_LOSS, "dpo sigmoid", "orpo"))
def test_a_step_has_the_gradient_of_answers_apart_however_it_is_cut(name, tmp_path):
    examples = draw_answers(8, 2)
    sums, expected = Parts(name, False, folder(tmp_path, "stock"), examples).take(8)
    parts = Parts(name, True, folder(tmp_path, "shared"), examples, shares=True)
    apart = sum(len(one.token_ids) for one in parts.trainer.train_examples)
    together = sum(count_once(one, 2) for one in parts.trainer.train_examples)
    assert together < 0.9 * apart
    for micro_batch in (8, 4, 1):
        found_sums, found = parts.take(micro_batch)
        torch.testing.assert_close(found_sums, sums, rtol=1e-4, atol=1e-4)
        assert_close(found, expected)


@pytest.mark.parametrize("family", some(FAMILIES, "gemma3", "latent"))
def test_every_kind_of_attention_has_the_gradient_of_answers_apart(family, tmp_path):
    """The prompts are longer than the windows of these models, 8 tokens, and shorter."""
    examples = draw_answers(8, 2)
    first, second = (
        Parts("dpo sigmoid", True, folder(tmp_path, str(shares)), examples, family, shares=shares)
        for shares in (False, True)
    )
    assert second.trainer.longest_tokens < first.trainer.longest_tokens
    (sums, expected), (found_sums, found) = first.take(8), second.take(4)
    torch.testing.assert_close(found_sums, sums, rtol=1e-4, atol=1e-4)
    assert_close(found, expected)


def test_pairs_in_one_row_share_each_their_own_prompt(tmp_path):
    examples = draw_answers(8, 2)
    sums, expected = Parts("dpo nll", False, folder(tmp_path, "stock"), examples).take(8)
    packed = [*pack(examples, 200)]
    assert len(packed) < 8
    found_sums, found = Parts("dpo nll", True, folder(tmp_path, "shared"), packed, shares=True).take(8)
    torch.testing.assert_close(found_sums, sums, rtol=1e-4, atol=1e-4)
    assert_close(found, expected)


def test_log_probabilities_and_scores_are_those_of_answers_apart():
    objective = get_objective("dpo", PreferenceSpec())
    examples = [
        dataclasses.replace(one, reference=np.where(one.trained, -1.5, 0).astype(np.float32))
        for one in draw_answers(6, 2)
    ]
    steps = [make_step(objective, True, make_model("gemma3"), shares=shares) for shares in (False, True)]
    for ask in ("log_probabilities", "evaluate"):
        apart, shared = (getattr(step, ask)(examples) for step in steps)
        torch.testing.assert_close(shared, apart, rtol=1e-5, atol=1e-5)


def test_a_stream_has_each_shared_token_once_and_no_row_counts_twice():
    examples = draw_answers(5, 2)
    stream, apart = join_shared(examples, pair_up(examples, 2), 0, 8), join_apart(examples, 0, 8)
    used = sum(count_once(one, 2) for one in examples)
    assert len(stream.ids) == -(-used // 8) * 8 and used < sum(len(one.token_ids) for one in examples)
    assert len(np.unique(stream.picks)) == len(stream.picks) == len(apart.picks)
    assert np.array_equal(stream.targets, apart.targets)
    rows, own = stream.beginnings.rows, stream.beginnings.own
    written = stream.ids[rows]
    assert np.array_equal(written[: sum(len(one.token_ids) for one in examples)],
                          np.concatenate([one.token_ids for one in examples]))  # fmt: skip
    assert np.array_equal(rows[own], np.arange(len(stream.ids)))
    places = np.concatenate([own, *(place for _, place in stream.beginnings.again)])
    assert np.array_equal(np.sort(places), np.arange(len(rows)))
    for again, place in stream.beginnings.again:
        assert np.array_equal(rows[place], again) and len(np.unique(again)) == len(again)


def test_how_much_is_shared():
    def ask(first, second, learned=(4, 4)):
        ids = [np.asarray(one, dtype=np.int32) for one in (first, second)]
        return count_shared(
            ids, [np.arange(len(one)) >= start for one, start in zip(ids, learned, strict=True)]
        )

    assert ask([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8]) == 3  # the last of the prompt predicts both answers
    assert ask([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 8]) == 3  # both learn the token 5
    assert ask([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 8], learned=(9, 9)) == 5  # nothing is learned
    assert ask([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], learned=(1, 4)) == 3  # one learns the prompt, too
    assert ask([1, 2, 3, 4, 5, 6], [9, 2, 3, 4, 7, 8]) == 0
    assert ask([1, 2, 3, 4], [1, 2, 3, 4, 7], learned=(9, 9)) == 3  # each keeps one of its own
    assert ask([1], [1, 2]) == ask([], [1, 2]) == 0
    assert count_shared([np.arange(4)], [np.zeros(4, bool)]) == 0


def test_rows_are_measured_as_they_are_computed():
    examples = draw_answers(40, 2)
    once = [count_once(one, 2) for one in examples]
    assert find_longest(examples, 2) == max(once)
    rows = measure_rows(examples, 2)
    assert rows.longest_shared_tokens == max(once)
    assert rows.mean_shared_tokens == pytest.approx(np.mean(once))
    assert rows.longest_tokens == max(len(one.token_ids) for one in examples)
    assert measure_rows(examples, 1).longest_shared_tokens == 0


def test_a_cut_counts_what_is_computed():
    step = make_step(make("dpo sigmoid"), True, make_model("llama"), shares=True)
    prompt, answers = np.arange(2, 62), (np.arange(5), np.arange(7))
    ids = np.concatenate([one for answer in answers for one in (prompt, answer)]).astype(np.int32)
    trained = np.concatenate([np.r_[np.zeros(60), np.ones(len(one))] for one in answers]) > 0
    rows = [Example(ids, trained, (65, 67))] * 6
    longest = step.find_longest(rows)
    assert longest == 59 + 6 + 8
    assert [len(part) for part in step.cut(rows, 3, longest)] == [3, 3]


# Answers that the model drew --------------------------------------------------------------------------------------


def draw_groups(sizes: tuple[int, ...] = (3, 4, 1, 2)) -> list[Example]:
    """Return answers to as many prompts, the longest first, with what is known of drawn ones."""
    chance, examples = np.random.default_rng(5), []
    for size in sizes:
        prompt = chance.integers(2, 97, int(chance.integers(9, 20)))
        for _ in range(size):
            ids = np.concatenate([prompt, chance.integers(2, 97, int(chance.integers(2, 14)))]).astype(
                np.int32
            )
            trained = np.arange(len(ids)) >= len(prompt)
            known = (-4.5 + 0.3 * chance.normal(size=(3, len(ids)))).astype(np.float32) * trained
            drawn = RolloutFacts(float(chance.normal()), 1.5, known[0], known[1])
            examples.append(Example(ids, trained, (len(ids),), reference=known[2], drawn=drawn))
    return sort_window(examples)


@pytest.mark.parametrize("name", some(KINDS, "dapo", "gspo"))
@pytest.mark.parametrize("family", some(["llama", "gemma2", "gemma3"], "gemma2"))
def test_answers_of_a_group_have_the_gradient_of_answers_apart(name, family):
    """Cut anywhere, in groups and across them, in the window's order and in the step's own."""
    objective, examples = get_objective("grpo", SamplingSpec(**KINDS[name])), draw_groups()
    apart = Taken(objective, False, examples, model=make_model(family))
    model = make_model(family)
    step = make_step(objective, True, model, shares=True)
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    count = sum(map(objective.count, examples))
    longest = max(len(one.token_ids) for one in examples)
    cuts = [step.cut(examples, rows, longest) for rows in (8, 4, 1)]
    assert [len(parts) for parts in cuts] == sorted(len(parts) for parts in cuts) and len(cuts[2]) > len(
        cuts[1]
    )
    for parts in (*cuts, [examples], [examples[:5], examples[5:]]):
        step.clear()
        sums = sum(step.add_gradients(part, count, lambda loss: loss) for part in parts)
        torch.testing.assert_close(sums, apart.sums, rtol=1e-4, atol=1e-4)
        assert_close({key: step.decoder.store.gradient(one) for key, one in trained.items()}, apart.gradients)


def test_answers_to_a_prompt_go_together_and_none_is_lost():
    examples = draw_groups((5, 5, 5))
    step = make_step(get_objective("grpo", SamplingSpec()), True, make_model("llama"), shares=True)
    longest, most = max(len(one.token_ids) for one in examples), 6
    parts = step.cut(examples, most, longest)
    assert sorted(map(id, (one for part in parts for one in part))) == sorted(map(id, examples))
    assert all(sum(len(one.token_ids) for one in part) <= most * longest for part in parts)
    prompts = [len(group_by_prompt(part)) for part in parts]
    assert sum(prompts) <= 3 + len(parts) - 1 < len(examples)
    order = step.order(examples)
    assert sorted(order) == [*range(15)] and order[0] == 0
    assert [len(group) for group in group_by_prompt([examples[i] for i in order])] == [5, 5, 5]
    stream = join_shared(examples, group_by_prompt(examples), 0, 8)
    assert len(np.unique(stream.picks)) == len(stream.picks) and len(stream.beginnings.again) == 4


@pytest.mark.parametrize("most", [5, 9, 10, 14, 30])
def test_rows_cut_in_order_are_few_even_streams(most):
    lengths = [4, 5, 3, 2, 7, 1, 6, 2]
    parts = cut_in_order(lengths, most)
    assert [row for part in parts for row in part] == [*range(8)]
    sizes = [sum(lengths[row] for row in part) for part in parts]
    assert all(size <= most or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    best = min(
        (len(edges) + 1, max(sum(lengths[a:b]) for a, b in pairwise((0, *edges, 8))))
        for count in range(8)
        for edges in combinations(range(1, 8), count)
        if all(sum(lengths[a:b]) <= max(most, max(lengths[a:b])) for a, b in pairwise((0, *edges, 8)))
        and all(b - a == 1 or sum(lengths[a:b]) <= most for a, b in pairwise((0, *edges, 8)))
    )
    assert (len(parts), max(sizes)) == best or max(lengths) > most


@pytest.mark.computing
def test_a_rollout_run_shares_prompts_and_learns_the_same(ran, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    file = write_prompts(jsonl, tmp_path / "prompts.jsonl")
    changes = CHANGES | {"data.source": str(file), "sampling.beta": 0.05, "sampling.updates": 2}
    shared = ran(changes)
    assert shared.record.state == "finished", shared.log
    choice = shared.of(RunPlanned)[0].plan.shared_prompts
    assert choice.value > 0.1 and choice.reason.id == "plan.shared_prompts.group"
    assert choice.reason in shared.of(RunPlanned)[0].swaps
    monkeypatch.setattr("studio.planning.shared_prompts.LEAST_SPARED", 1.0)
    assert ran(changes).losses == pytest.approx(shared.losses, abs=1e-4)


@pytest.mark.computing
def test_a_run_shares_prompts_and_learns_the_same(ran, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "decoder_pays", lambda gpu: True)
    file = write_pairs(jsonl, tmp_path / "pairs.jsonl")
    changes = {
        "data.source": str(file),
        "optim.max_steps": 4,
        "run.eval_every": 2,
        "data.validation_share": 0.2,
    }
    shared = ran(changes)
    assert shared.record.state == "finished", shared.log
    choice = shared.of(RunPlanned)[0].plan.shared_prompts
    assert choice.value > 0.1 and choice.reason.id == "plan.shared_prompts.on"
    monkeypatch.setattr("studio.planning.shared_prompts.LEAST_SPARED", 1.0)
    apart = ran(changes)
    assert apart.of(RunPlanned)[0].plan.shared_prompts.reason.id == "plan.shared_prompts.little"
    assert shared.losses == pytest.approx(apart.losses, abs=1e-4)
    scores = [[event.loss for event in one.of(EvalLogged)] for one in (shared, apart)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4) and scores[0]
    assert len(shared.of(StepLogged)) == 4
