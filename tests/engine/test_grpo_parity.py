"""Ten steps of every loss by which drawn answers are learned, beside trl's trainers: same answers, same rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from studio_kernels.dispatch import bind

from studio.core.events import StepLogged
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec, SamplingSpec
from studio.data.sequence_packing import Example
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives import get_objective
from studio.engine.rewards.reward import Scores
from studio.engine.rollouts.rollout import AnswerGroup, DrawnAnswer, measure
from studio.engine.rollouts.rollout_steps import Drawing, Rollouts
from studio.engine.rollouts.start_weights import StartWeights
from studio.engine.train_step import StockStep
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import take_over
from tests.conftest import make_tokenizer
from tests.each_time import some_of_several
from tests.engine.test_preference_parity import OPTIONS, make_model, read_weights

PROMPTS, GROUP, LIMIT, STEPS = 2, 4, 16, 10
LOSS_ERROR, WEIGHT_ERROR, METRIC_ERROR = 2e-6, 1e-5, 2e-6
SMALL = {"epsilon_low": 0.02, "epsilon_high": 0.028}
TIGHT = {"epsilon_low": 0.003, "epsilon_high": 0.004}
THEIRS = {"epsilon": 0.02, "epsilon_high": 0.028}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({"loss": "dapo"}, {"loss_type": "dapo"}),
    "dapo twice": ({"loss": "dapo", "updates": 2, **SMALL}, {"loss_type": "dapo", "num_iterations": 2, **THEIRS}),
    "dapo bounded": ({"loss": "dapo", "updates": 2, "delta": 1.01, "epsilon_low": 0.02, "epsilon_high": 0.005},
                     {"loss_type": "dapo", "num_iterations": 2, "delta": 1.01, "epsilon": 0.02, "epsilon_high": 0.005}),
    "dapo by batch": ({"loss": "dapo", "scale_rewards": "batch"}, {"loss_type": "dapo", "scale_rewards": "batch"}),
    "grpo": ({"loss": "grpo"}, {"loss_type": "grpo"}),
    "grpo kl": ({"loss": "grpo", "beta": 0.05}, {"loss_type": "grpo", "beta": 0.05}),
    "grpo kl twice": ({"loss": "grpo", "beta": 0.05, "updates": 2, **SMALL},
                      {"loss_type": "grpo", "beta": 0.05, "num_iterations": 2, **THEIRS}),
    "dr_grpo": ({"loss": "dr_grpo"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "bnpo warm": ({"loss": "bnpo", "temperature": 0.7}, {"loss_type": "bnpo", "temperature": 0.7}),
    "gspo": ({"loss": "gspo", "updates": 2, **TIGHT},
             {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2,
              "epsilon": 0.003, "epsilon_high": 0.004}),
    "gspo kl": ({"loss": "gspo", "updates": 2, "beta": 0.05, **TIGHT},
                {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "beta": 0.05,
                 "epsilon": 0.003, "epsilon_high": 0.004}),
    "cispo": ({"loss": "cispo", "updates": 2, "cispo_cap": 1.01},
              {"loss_type": "cispo", "num_iterations": 2, "epsilon_high": 1.01}),
    "sapo": ({"loss": "sapo", "updates": 2}, {"loss_type": "sapo", "num_iterations": 2}),
    "luspo": ({"loss": "luspo", "updates": 2, **TIGHT},
              {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2,
               "epsilon": 0.003, "epsilon_high": 0.004}),
    "rloo": ({"loss": "rloo", "updates": 2, **SMALL}, {"num_iterations": 2, "beta": 0.0, **THEIRS}),
    "rloo kl": ({"loss": "rloo", "updates": 2, "beta": 0.05, **SMALL}, {"num_iterations": 2, "beta": 0.05, **THEIRS}),
    "dapo masked": ({"loss": "dapo", "cut_answers": "leave_out"},
                    {"loss_type": "dapo", "mask_truncated_completions": True}),
    "grpo masked": ({"loss": "grpo", "cut_answers": "leave_out"},
                    {"loss_type": "grpo", "mask_truncated_completions": True}),
    "dr_grpo masked": ({"loss": "dr_grpo", "cut_answers": "leave_out"},
                       {"loss_type": "dr_grpo", "scale_rewards": "none", "mask_truncated_completions": True}),
}  # fmt: skip
"""Name -> the recipe's part, and the same for trl."""


def make_answers() -> list[tuple[list[int], list[list[int]]]]:
    """Return token ids of prompts and of the answers to each, for all steps; every third one is cut at the limit."""
    chance = np.random.default_rng(8)
    found = []
    for prompt in range(PROMPTS * STEPS):
        ids = chance.integers(2, 500, 3 + prompt % 4).tolist()
        answers = []
        for number in range(GROUP):
            cut = (prompt + number) % 3 == 0
            length = LIMIT if cut else int(chance.integers(2, LIMIT))
            answers.append([*chance.integers(2, 500, length - 1).tolist(), 7 if cut else 0])
        found.append((ids, answers))
    return found


def judge(tokens: list[int]) -> float:
    """Return a score that hangs on an answer's tokens alone."""
    return float(sum(tokens) % 11) / 4


def run_trl(
    options: dict[str, Any], rloo: bool, folder: Path
) -> tuple[list[dict[str, float]], torch.nn.Module]:
    """Return what trl's trainer logs, and the model it trains."""
    if rloo:
        from trl import RLOOConfig as Config
        from trl import RLOOTrainer as Trains
    else:
        from trl import GRPOConfig as Config
        from trl import GRPOTrainer as Trains
    answers = make_answers()

    def roll_out(prompts: list[str], trainer: Any) -> dict[str, Any]:
        numbers = [int(prompt) for prompt in prompts]
        # One row an answer, the answers of a prompt behind each other.
        members = [numbers[:place].count(number) for place, number in enumerate(numbers)]
        drawn = [answers[number][1][member] for number, member in zip(numbers, members, strict=True)]
        return {
            "prompt_ids": [answers[number][0] for number in numbers],
            "completion_ids": drawn,
            "logprobs": [[0.0] * len(one) for one in drawn],
        }

    def score_all(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [judge(ids) for ids in completion_ids]

    class Given(Trains):
        """RLOO's trainer has no rollout_func: what it draws by is told by the same function."""

        def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
            self.given = roll_out(prompts, self)
            return self.given["prompt_ids"], None, {}

        def _generate_single_turn(self, *prompts: Any) -> list[list[int]]:
            return self.given["completion_ids"]

    given = {**OPTIONS, "per_device_train_batch_size": PROMPTS * GROUP, "max_steps": STEPS}
    how = {} if rloo else {"rollout_func": roll_out}
    trainer = (Given if rloo else Trains)(
        model=make_model(),
        reward_funcs=score_all,
        args=Config(
            output_dir=str(folder), num_generations=GROUP, max_completion_length=LIMIT, shuffle_dataset=False,
            **given, **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(len(answers))]),
        processing_class=make_tokenizer(folder),
        **how,
    )  # fmt: skip
    trainer.train()
    return [log for log in trainer.state.log_history if "loss" in log], trainer.model


def draw_fixed(number: int) -> Drawing:
    """Return the answers of the rollout of a number, scored."""
    groups = []
    for row, (prompt, answers) in list(enumerate(make_answers()))[number * PROMPTS : (number + 1) * PROMPTS]:
        drawn = [DrawnAnswer(tuple(one), one[-1] == 0) for one in answers]
        scores = [Scores((judge(one),), judge(one)) for one in answers]
        groups.append(AnswerGroup(row, tuple(prompt), drawn, scores))
    return Drawing(groups, measure(groups, ["score_all"]))


def run_ours(
    settings: dict[str, Any], folder: Path, *, own: bool, micro_batch: int
) -> tuple[list[StepLogged], torch.nn.Module]:
    """Return the steps of the studio's trainer, and the model."""
    spec, model, device = SamplingSpec(answer_tokens=LIMIT, **settings), make_model(), torch.device("cpu")
    aim = get_objective("grpo", spec)
    if own:
        step = DecoderStep(take_over(unwrap(model), bind({}), dtype=torch.float32), objective=aim, pad_id=1)
    else:
        losses = LossHead(unwrap(model), aim.temperature).token_losses
        step = StockStep(model, losses, objective=aim, dtype="fp32", device=device, pad_id=1)
    recipe = Recipe(
        model=ModelChoice(source="m"),
        data=DatasetSpec(source="d"),
        sampling=spec,
        optim=OptimSpec(
            learning_rate=1e-3, max_steps=STEPS, batch_size=PROMPTS, schedule="constant", warmup_share=0.0,
            weight_decay=0.0, max_grad_norm=0.0,
        ),
        run=RunSpec(samples=0),
    )  # fmt: skip
    prompts = [
        Example(np.asarray(ids, np.int32), np.zeros(len(ids), bool), (len(ids),)) for ids, _ in make_answers()
    ]
    events: list[Any] = []
    hooks = Hooks(emit=events.append, should_stop=lambda: False, save=lambda state: 0)
    trainer = Trainer(
        model, step, prompts, [], recipe, "adamw", "fp32", device, hooks, micro_batch=micro_batch
    )
    trainer.windows = Rollouts(
        trainer, spec, draw_fixed, start=lambda: StartWeights(trainer.trained, folder, trainer.state.step)
    )
    trainer.train()
    return [event for event in events if isinstance(event, StepLogged)], model


@pytest.mark.parametrize(
    ("name", "own"),
    some_of_several(
        [(name, own) for name in CASES for own in (False, True)],
        ("dapo", True), ("grpo kl twice", False), ("gspo", True), ("cispo", False), ("rloo kl", True),
    ),
)  # fmt: skip
def test_ten_steps_are_those_of_trl(name, own, tmp_path):
    settings, options = CASES[name]
    logs, expected = run_trl(options, name.startswith("rloo"), tmp_path / "trl")
    steps, found = run_ours(settings, tmp_path, own=own, micro_batch=3)
    assert len(steps) == len(logs) == STEPS
    compared = set()
    for step, log in zip(steps, logs, strict=True):
        assert step.loss == pytest.approx(log["loss"], abs=LOSS_ERROR), step.step
        for one in {*step.metrics} & {*log}:
            assert step.metrics[one] == pytest.approx(log[one], abs=METRIC_ERROR, rel=1e-5), (step.step, one)
            compared.add(one)
    assert compared >= {"entropy", "reward", "reward_std", "frac_reward_zero_std", "completions/clipped_ratio",
                        "rewards/score_all/mean", "completions/mean_terminated_length"}  # fmt: skip
    assert ("kl" in compared) == ("beta" in settings)
    if "updates" in settings and settings["loss"] not in ("cispo", "sapo"):
        assert max(step.metrics["clip_ratio/region_mean"] for step in steps) > 0.02, "nothing was clipped"
    weights, start = read_weights(expected), read_weights(make_model())
    for key, weight in read_weights(found).items():
        torch.testing.assert_close(weight, weights[key], rtol=0, atol=WEIGHT_ERROR, msg=key)
    assert max((weight - start[key]).abs().max() for key, weight in weights.items()) > 1e-3
