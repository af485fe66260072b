"""Learning from the model's own answers: gradients, advantages, what is drawn, and whole runs by a reward."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from studio.cli.console import describe
from studio.core.events import (
    EvalLogged,
    MemoryFreed,
    RunPlanned,
    SampleWritten,
    StepLogged,
    TrialFinished,
    Warned,
)
from studio.core.recipe import RewardSpec, SamplingSpec
from studio.data.sequence_packing import Example, RolloutFacts
from studio.engine.loss_head import LossHead
from studio.engine.objectives import get_objective
from studio.engine.objectives.filler_answers import FillerAnswers
from studio.engine.objectives.grpo import VARIANTS
from studio.engine.objectives.objective import Picked
from studio.engine.rewards.reward import Scores
from studio.engine.rollouts.advantages import find_advantages, find_equal, penalise_long
from studio.engine.rollouts.completions_file import FILE
from studio.engine.rollouts.rollout import AnswerGroup, DrawnAnswer, measure
from studio.engine.rollouts.rollout_steps import Drawing, Rollouts
from studio.engine.train_step import StockStep, sort_places
from studio.models.adapt import unwrap
from studio.planning import run_plan
from tests.each_time import some
from tests.engine.test_objectives import Taken, make_step
from tests.models.decoder.models import make_model

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"loss": name} for name in VARIANTS},
    **{f"{name} kl": {"loss": name, "beta": 0.3} for name in VARIANTS},
    "dapo bounded": {"loss": "dapo", "delta": 1.1},
    "dapo bounded above": {"loss": "dapo", "delta": 1.5, "epsilon_high": 0.1},
    "gspo trusted": {"loss": "gspo", "importance_cap": 1.2},
}


def make_picked(tokens: int, counts: list[int], **more: Any) -> Picked:
    generator = torch.Generator().manual_seed(2)

    def draw() -> torch.Tensor:
        return -2 * torch.rand(tokens, generator=generator, dtype=torch.float64)

    return Picked(
        counts=torch.tensor(counts),
        advantages=torch.tensor([1.3, -0.7, 0.4, -1.1, 0.0, 0.9], dtype=torch.float64),
        old=draw(),
        reference=draw(),
        sampled=draw(),
        **more,
    )


@pytest.mark.parametrize("name", KINDS)
def test_coefficients_are_autograds_in_64_bits(name):
    counts = [5, 3, 7, 4, 2, 6]
    picked = make_picked(sum(counts), counts)
    apart = torch.randn(len(picked.old), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    lp = (picked.old + 0.3 * apart).requires_grad_()
    terms = get_objective(
        "grpo", SamplingSpec(**{"epsilon_low": 0.05, "epsilon_high": 0.08, **KINDS[name]})
    ).loss(lp, picked)
    (expected,) = torch.autograd.grad(terms.loss, lp)
    torch.testing.assert_close(terms.gradient, expected, rtol=1e-12, atol=1e-12)
    assert expected.abs().max() > 1e-3 and torch.isfinite(terms.loss)
    if VARIANTS[KINDS[name]["loss"]].bound.__name__ == "clip":
        assert terms.metrics["clip_ratio/region_mean"][0] > 0, "nothing was bounded"


def draw_examples(count: int = 9) -> list[Example]:
    """Return prompts with answers that were drawn by a model which has moved a little since."""
    chance, examples = np.random.default_rng(3), []
    step = make_step(get_objective("sft"), True, make_model("llama"))
    for _ in range(count):
        ids = chance.integers(2, 97, int(chance.integers(6, 24))).astype(np.int32)
        trained = np.arange(len(ids)) >= 4
        row = Example(ids, trained, (len(ids),))
        known = np.zeros((3, len(ids)), dtype=np.float32)
        known[:, trained] = step.log_probabilities([row]) + 0.2 * chance.normal(size=(3, int(trained.sum())))
        drawn = RolloutFacts(float(chance.normal()), 1.5, known[0], known[1])
        examples.append(dataclasses.replace(row, reference=known[2], drawn=drawn))
    return examples


@pytest.mark.parametrize("name", some(KINDS, "grpo kl", "gspo", "dr_grpo"))
def test_a_step_has_the_same_gradient_in_both_steps_and_however_it_is_cut(name):
    objective, examples = get_objective("grpo", SamplingSpec(**KINDS[name])), draw_examples()
    whole = Taken(objective, False, examples)
    largest = max(float(one.abs().max()) for one in whole.gradients.values())
    assert largest > 1e-5
    for own in (False, True):
        for at_once in (100, 4, 1):
            found = Taken(objective, own, examples, at_once)
            torch.testing.assert_close(found.sums, whole.sums, rtol=1e-4, atol=1e-4)
            for key, gradient in whole.gradients.items():
                torch.testing.assert_close(
                    found.gradients[key], gradient, rtol=0, atol=1e-5 * max(1.0, largest), msg=key
                )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma2"])  # one of them caps its logits
def test_temperature_divides_logits_behind_any_cap(family, own):
    model, example = make_model(family), draw_examples(1)[0]
    objective = get_objective("grpo", SamplingSpec(temperature=0.6))
    if own:
        step = make_step(objective, True, model)
    else:
        losses = LossHead(unwrap(model), 0.6).token_losses
        step = StockStep(
            model, losses, objective=objective, dtype="fp32", device=torch.device("cpu"), pad_id=0
        )
    with torch.no_grad():
        found = step.log_probabilities([example])
        ids = torch.from_numpy(example.token_ids).long()[None]
        logits = model(input_ids=ids).logits[0].float() / 0.6
    wanted = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0][example.trained[1:]]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


# Advantages -----------------------------------------------------------------------------------------------------------


def test_advantages_of_groups_by_their_formulas():
    rewards = np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
    found = find_advantages(rewards, SamplingSpec())
    spread = math.sqrt(1 / 3)
    assert (
        found[0] == pytest.approx(np.array([0.5, -0.5, -0.5, 0.5]) / (spread + 1e-4)) and not found[1].any()
    )
    assert find_advantages(rewards, SamplingSpec(loss="dr_grpo"))[0] == pytest.approx([0.5, -0.5, -0.5, 0.5])
    assert find_advantages(rewards, SamplingSpec(loss="rloo"))[0] == pytest.approx(
        [2 / 3, -2 / 3, -2 / 3, 2 / 3]
    )
    batch = find_advantages(rewards, SamplingSpec(scale_rewards="batch"))
    assert batch[0] == pytest.approx(np.array([0.5, -0.5, -0.5, 0.5]) / (rewards.std(ddof=1) + 1e-4))
    assert find_equal(rewards).tolist() == [False, True]


@pytest.mark.parametrize("loss", ["dapo", "rloo"])
def test_an_answer_that_nobody_could_score_stands_in_no_mean_and_teaches_nothing(loss):
    whole = find_advantages(np.array([[1.0, 0.0, 0.4]]), SamplingSpec(loss=loss))
    found = find_advantages(np.array([[1.0, math.nan, 0.0, 0.4]]), SamplingSpec(loss=loss))
    assert found[0, 1] == 0.0 and found[0, [0, 2, 3]] == pytest.approx(whole[0])
    alone = find_advantages(np.array([[math.nan, 3.0], [math.nan, math.nan]]), SamplingSpec(loss=loss))
    assert not alone.any() and find_equal(np.array([[math.nan, 3.0], [math.nan] * 2])).all()


def test_long_answers_lose_up_to_one_over_the_last_part():
    spec = SamplingSpec(answer_tokens=100, overlong_share=0.2)
    assert penalise_long(np.array([10, 80, 90, 100]), spec).tolist() == pytest.approx([0, 0, -0.5, -1])


# Rollouts -------------------------------------------------------------------------------------------------------------


class Still:
    """Stands for a trainer that scores nothing."""


def make_groups() -> list[AnswerGroup]:
    answers = [DrawnAnswer((5, 6, 0), True), DrawnAnswer((5,) * 8, False), DrawnAnswer((7, 0), True)]
    scores = [Scores((1.0, 0.0), 1.0), Scores((0.5, None), 0.5), Scores((None, None), math.nan)]
    return [
        AnswerGroup(0, (2, 3), answers, scores),
        AnswerGroup(1, (4,), answers, [Scores((2.0, 1.0), 3.0)] * 3),
    ]


def test_a_rollout_is_told_as_trl_tells_it():
    found = measure(make_groups(), ["exact", "brief"])
    assert found["reward"] == pytest.approx((1 + 0.5 + 9) / 5)
    assert found["frac_reward_zero_std"] == 0.5 and found["completions/clipped_ratio"] == pytest.approx(1 / 3)
    assert found["rewards/brief/mean"] == pytest.approx(0.75)
    assert found["completions/mean_terminated_length"] == 2.5 and found["completions/distinct"] == 1.0


def test_cut_answers_are_left_out_and_still_counted():
    spec = SamplingSpec(loss="grpo", cut_answers="leave_out", answer_tokens=8)
    rollouts = Rollouts(Still(), spec, lambda number: Drawing(make_groups(), {}))
    examples = rollouts.draw(0)
    objective = get_objective("grpo", spec)
    assert len(examples) == 4 and sum(map(objective.count, examples)) == pytest.approx(6)
    assert all(len(one.token_ids) <= 5 for one in examples)


def test_one_rollout_serves_all_its_updates_and_is_kept_by_a_checkpoint():
    drawn: list[int] = []

    class Scoring:
        evaluation_batch = 100
        model = torch.nn.Linear(1, 1)

        class step:
            log_probabilities, order = None, staticmethod(sort_places)

        def try_batch(self, part: list[Example], compute: Any) -> list[float]:
            return [-1.5 * i for one in part for i in range(int(one.trained.sum()))]

    def draw(number: int) -> Drawing:
        drawn.append(number)
        return Drawing(make_groups(), {"reward": 1.0})

    spec = SamplingSpec(updates=3, answer_tokens=8)
    rollouts = Rollouts(Scoring(), spec, draw)
    first = [rollouts.draw(step) for step in (0, 1, 1, 2)]
    assert drawn == [0] and all(one is first[0] for one in first)
    data = torch.load(_save(rollouts.state_data()), weights_only=True)
    again = Rollouts(Scoring(), spec, draw)
    again.load_state_data(data)
    for one, other in zip(again.draw(2), first[0], strict=True):
        assert dataclasses.asdict(one.drawn).keys() == dataclasses.asdict(other.drawn).keys()
        for name in ("advantage", "share"):
            assert getattr(one.drawn, name) == getattr(other.drawn, name)
        assert np.array_equal(one.token_ids, other.token_ids) and np.array_equal(
            one.drawn.old, other.drawn.old
        )
    assert drawn == [0] and again.metrics() == {"reward": 1.0}
    again.draw(3)
    assert drawn == [0, 1]


def _save(data: dict[str, Any]) -> Any:
    import io

    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    return file


def test_sizes_are_planned_with_the_longest_answer():
    prompts = [Example(np.arange(2, 2 + n, dtype=np.int32), np.zeros(n, bool), (n,)) for n in (3, 7)]
    found = FillerAnswers(prompts, 10)
    assert found.lengths.tolist() == [13, 17] == [len(one.token_ids) for one in found]
    assert [int(one.trained.sum()) for one in found] == [10, 10] and not found[0].trained[:3].any()


# Runs -----------------------------------------------------------------------------------------------------------------


def write_prompts(jsonl: Any, path: Any, rows: int = 24) -> Any:
    return jsonl(path, [{"prompt": f"say {i}", "answer": f"yes {i}", "level": i} for i in range(rows)])


CHANGES = {
    "objective": "grpo",
    "data.format": "rl",
    "data.validation_share": 0.25,
    "rewards": (RewardSpec(name="contains", options={"words": ["e"]}),),
    "sampling.group_size": 4,
    "sampling.answer_tokens": 12,
    "optim.batch_size": 3,
    "optim.max_steps": 4,
    "optim.learning_rate": 3e-3,
    "run.eval_every": 2,
}


def test_a_run_learns_from_its_own_answers(ran, jsonl, tmp_path):
    changes = CHANGES | {"data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl"))}
    result = ran(changes | {"run.samples": 2})
    assert result.record.state == "finished", result.log
    [trial] = result.of(TrialFinished)
    assert trial.draws and describe(trial).id == "event.trial.draws", "how long drawing takes is not known"
    written = result.of(SampleWritten)
    assert written and all(one.prompt.replace("say", "yes") == one.expected for one in written)
    names = [one.name for one in result.of(RunPlanned)[0].metrics]
    steps = result.of(StepLogged)
    assert {"reward", "frac_reward_zero_std", "completions/mean_length", "entropy"} <= {*names}
    for step in steps:
        assert {*step.metrics} - {"rewards/contains/mean", "rewards/contains/std"} <= {*names}
        assert step.metrics["sampling/sampling_logp_difference/mean"] < 1e-4, "drawn and trained differ"
    looks = result.of(EvalLogged)
    assert all("exact" in one.metrics and one.reward == pytest.approx(-one.loss) for one in looks)
    assert result.record.eval_loss is None and result.record.eval_reward in [one.reward for one in looks]
    assert "held-out reward" in (result.folder.path / "adapter" / "README.md").read_text("utf-8")
    lines = [json.loads(line) for line in (result.folder.path / FILE).read_text("utf-8").splitlines()]
    assert len(lines) == 4 * 3 * 4 and [line["step"] for line in lines[::12]] == [1, 2, 3, 4]
    for line in lines:
        assert {"row", "prompt", "answer", "scores", "total", "advantage", "length_tokens", "ended"} < {*line}
        assert 1 <= line["length_tokens"] <= 12 and line["prompt"].startswith("say ")
    first = [line for line in lines if line["step"] == 1]
    assert np.mean([line["total"] for line in first]) == pytest.approx(steps[0].metrics["reward"])


def test_in_16_bits_the_studios_decoder_draws_the_answers(ran, jsonl, tmp_path, monkeypatch):
    """Adapters are in fp32 there, and the model's own parts run under autocast alone."""
    monkeypatch.setattr(run_plan, "decoder_pays", lambda gpu: True)
    data = {"data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl")), "model.precision": "bf16"}
    result = ran(CHANGES | data | {"optim.max_steps": 1})
    assert result.record.state == "finished", result.log
    said = [one.message.id for one in result.of(Warned)]
    assert not [one for one in said if one.startswith(("model.", "generation."))], said


def test_another_number_of_slots_draws_the_same_answers(ran, jsonl, tmp_path):
    changes = CHANGES | {
        "data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl")),
        "optim.max_steps": 1,
    }
    found = []
    for slots in (0, 1, 5):
        result = ran(changes | {"sampling.slots": slots})
        assert result.record.state == "finished", result.log
        found.append(
            [json.loads(line)["answer"] for line in (result.folder.path / FILE).open(encoding="utf-8")]
        )
    assert found[0] == found[1] == found[2] and len({*found[0]}) > 4


def test_without_a_reward_a_run_is_refused_before_weights_are_read(ran, jsonl, tmp_path):
    changes = CHANGES | {
        "data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl")),
        "rewards": (),
    }
    result = ran(changes)
    assert result.record.state == "failed" and not result.of(RunPlanned)
    assert result.record.diagnosis.what.id == "rollouts.no_reward"


def test_chats_are_asked_without_their_last_answer(ran, recipe, tmp_path):
    changes = {name: value for name, value in CHANGES.items() if name != "data.format"}
    result = ran(changes | {"optim.max_steps": 1, "data.validation_share": 0.0})
    assert result.record.state == "finished", result.log
    assert (result.folder.path / FILE).exists()


@pytest.mark.computing
@pytest.mark.parametrize(
    "more", [{}, {"sampling.updates": 2, "sampling.beta": 0.05, "sampling.loss": "grpo"}]
)
def test_a_run_goes_on_from_its_checkpoint_with_the_same_answers(ran, jsonl, tmp_path, more):
    from safetensors.torch import load_file

    file = write_prompts(jsonl, tmp_path / "prompts.jsonl")
    changes = CHANGES | {"data.source": str(file), "optim.max_steps": 6, "run.save_every": 1} | more
    whole = ran(changes, runs=tmp_path / "whole")
    stopped = ran(changes, stop_at=3)
    assert stopped.record.state == "stopped", stopped.log
    resumed = ran(changes, folder=stopped.folder)
    assert resumed.record.state == "finished", resumed.log
    lines = [(one.folder.path / FILE).read_text("utf-8") for one in (whole, resumed)]
    assert lines[0] == lines[1]
    one, other = (
        load_file(run.folder.path / run.record.artifact / "adapter_model.safetensors")
        for run in (whole, resumed)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_groups_that_are_all_alike_are_replaced_by_other_prompts(ran, jsonl, tmp_path):
    code = tmp_path / "odd.py"
    code.write_text(
        "def odd(completions, level, **columns):\n"
        "    return [n if row % 2 else 0.0 for n, row in zip(range(len(completions)), level)]\n",
        encoding="utf-8",
    )
    changes = CHANGES | {
        "data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl")),
        "rewards": (RewardSpec(name=f"file:{code}"),),
        "data.validation_share": 0.0,
        "optim.max_steps": 3,
    }
    shares = {}
    for redraws in (0, 4):
        result = ran(changes | {"sampling.redraws": redraws}, runs=tmp_path / f"runs{redraws}")
        assert result.record.state == "finished", result.log
        steps = result.of(StepLogged)
        shares[redraws] = [step.metrics["frac_reward_zero_std"] for step in steps]
        lines = [json.loads(line) for line in (result.folder.path / FILE).open(encoding="utf-8")]
        assert len(lines) == 3 * 3 * 4 and len({(line["step"], line["row"]) for line in lines}) == 9
        if redraws:
            assert sum(step.metrics["groups/redrawn"] for step in steps) > 0
            assert all(int(line["prompt"].split()[-1]) % 2 for line in lines)
    assert max(shares[0]) > 0 == max(shares[4])


def test_memory_that_runs_out_means_fewer_answers_at_once_and_the_same_answers(
    ran, jsonl, tmp_path, monkeypatch
):
    from studio.engine.generation.answerer import Answerer

    changes = CHANGES | {
        "data.source": str(write_prompts(jsonl, tmp_path / "prompts.jsonl")),
        "optim.max_steps": 2,
        "data.validation_share": 0.0,
    }
    calm = ran(changes, runs=tmp_path / "calm")
    grow, asked = Answerer.grow, []

    def short(self, completions, *, slots, **settings):
        asked.append(slots)
        if slots > 16:  # some have begun when it runs out
            steps = iter(range(5))
            grow(
                self,
                completions,
                slots=slots,
                **settings | {"should_stop": lambda: next(steps, None) is None},
            )
            for one in completions:
                one.reason = None if one.reason == "stopped" else one.reason
            raise torch.OutOfMemoryError("planted")
        return grow(self, completions, slots=slots, **settings)

    monkeypatch.setattr(Answerer, "grow", short)
    result = ran(changes, runs=tmp_path / "short")
    assert result.record.state == "finished", result.log
    assert asked[:3] == [64, 32, 16] and 16 in asked[3:]
    freed = result.of(MemoryFreed)
    assert [one.message.id for one in freed] == ["memory.answers"] * 2 and freed[0].rung == "answers"
    lines = [(one.folder.path / FILE).read_text("utf-8") for one in (calm, result)]
    assert lines[0] == lines[1]
