"""Ten steps of each comparing objective beside trl 1.16's trainers: losses, metrics and weights are the same.

fp32 on a processor, eight rows of different lengths in each step, an adapter that is no longer zero: else the question
which model is the reference would not be asked. The token ids are those that trl made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from studio_kernels.dispatch import bind
from transformers import LlamaConfig, LlamaForCausalLM

from studio.core.events import StepLogged
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, PreferenceSpec, Recipe, RunSpec
from studio.data.sequence_packing import Example
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss_head import LossHead
from studio.engine.objectives import get_objective
from studio.engine.reference_logprobs import add_reference
from studio.engine.train_step import StockStep
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import take_over
from studio.models.score_head import ScoreHead, add_score, free_score
from tests.conftest import make_tokenizer
from tests.each_time import some_of_several

STEPS, ROWS = 10, 8
LOSS_ERROR, WEIGHT_ERROR, METRIC_ERROR = 2e-6, 1e-5, 1e-4
LOGGED = ("rewards/", "logps/", "kl", "nll_loss", "log_odds")
"""Names of trl's that are compared; entropy, top-1 hits and mean logits need the logits, which are never made here."""
OPTIONS = {
    "use_cpu": True, "bf16": False, "fp16": False, "gradient_checkpointing": False, "max_grad_norm": 0.0,
    "optim": "adamw_torch", "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
    "learning_rate": 1e-3, "logging_steps": 1, "report_to": "none", "max_steps": STEPS, "save_strategy": "no",
    "per_device_train_batch_size": ROWS, "disable_tqdm": True,
}  # fmt: skip
DPO = {"train_sampling_strategy": "sequential", "max_length": None}
CASES_OF = {
    "dpo": ("dpo", {}, {"loss_type": ["sigmoid"], **DPO}),
    "dpo nll": ("dpo", {"nll_weight": 0.7}, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], **DPO}),
    "ipo": ("dpo", {"loss": "ipo", "beta": 0.3}, {"loss_type": ["ipo"], "beta": 0.3, **DPO}),
    "hinge": ("dpo", {"loss": "hinge"}, {"loss_type": ["hinge"], **DPO}),
    "robust": ("dpo", {"loss": "robust", "label_smoothing": 0.2},
               {"loss_type": ["robust"], "label_smoothing": 0.2, **DPO}),
    "apo_zero": ("dpo", {"loss": "apo_zero"}, {"loss_type": ["apo_zero"], **DPO}),
    "apo_down": ("dpo", {"loss": "apo_down"}, {"loss_type": ["apo_down"], **DPO}),
    "sigmoid_norm": ("dpo", {"loss": "sigmoid_norm", "beta": 1.5},
                     {"loss_type": ["sigmoid_norm"], "beta": 1.5, **DPO}),
    "simpo": ("simpo", {"gamma": 0.6}, {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.6, "cpo_alpha": 0.0}),
    "simpo nll": ("simpo", {"nll_weight": 0.5},
                  {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.5}),
    "cpo": ("cpo", {}, {"loss_type": "sigmoid", "beta": 0.1, "cpo_alpha": 1.0}),
    "cpo smoothed": ("cpo", {"label_smoothing": 0.1, "nll_weight": 0.4},
                     {"loss_type": "sigmoid", "beta": 0.1, "cpo_alpha": 0.4, "label_smoothing": 0.1}),
    "cpo hinge": ("cpo", {"loss": "hinge"}, {"loss_type": "hinge", "beta": 0.1, "cpo_alpha": 1.0}),
    "cpo ipo": ("cpo", {"loss": "ipo", "beta": 0.5}, {"loss_type": "ipo", "beta": 0.5, "cpo_alpha": 1.0}),
    "orpo": ("orpo", {}, {"beta": 0.1}),
    "kto": ("kto", {"good_weight": 1.0, "bad_weight": 1.0}, {"max_length": None}),
    "kto weighed": ("kto", {"good_weight": 0.8, "bad_weight": 1.3},
                    {"max_length": None, "desirable_weight": 0.8, "undesirable_weight": 1.3}),
    "kto apo": ("kto", {"loss": "apo_zero_unpaired", "good_weight": 1.0, "bad_weight": 1.0},
                {"max_length": None, "loss_type": "apo_zero_unpaired"}),
}  # fmt: skip
"""Name -> objective, its settings in the recipe, and the same for trl."""


def make_model(*, scores: bool = False) -> torch.nn.Module:
    """Return a tiny Llama whose probabilities differ much, with an adapter that does something, and maybe a score."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=1, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    base = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in base.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5)
    adapter = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0
    )
    model = get_peft_model(base, adapter)
    if scores:
        add_score(base)
        free_score(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model


def make_rows(kind: str) -> list[dict[str, Any]]:
    """Return rows of text for trl, of different lengths."""
    rows = []
    for i in range(ROWS):
        prompt, good, bad = f"ask {i} " + "so " * i, "yes " * (1 + i % 3) + str(i), f"no {i} " * (1 + i % 4)
        pair = {"prompt": prompt, "chosen": good, "rejected": bad}
        single = {"prompt": prompt, "completion": good if i % 3 else bad, "label": bool(i % 3)}
        rows.append(single if kind == "kto" else pair)
    return rows


def run_trl(
    kind: str, options: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, float]], torch.nn.Module, list[Example]]:
    """Return what trl's trainer logs, the model it trains, and its rows as token ids."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    if kind == "dpo":
        from trl import DPOConfig as Config
        from trl import DPOTrainer as Trains
    elif kind == "kto":
        from trl import KTOConfig as Config
        from trl import KTOTrainer as Trains
    elif kind == "orpo":
        from trl.experimental.orpo import ORPOConfig as Config
        from trl.experimental.orpo import ORPOTrainer as Trains
    else:
        from trl.experimental.cpo import CPOConfig as Config
        from trl.experimental.cpo import CPOTrainer as Trains
    trainer = Trains(
        model=make_model(),
        args=Config(output_dir=str(folder), **OPTIONS, **options),
        train_dataset=Dataset.from_list(make_rows(kind)),
        processing_class=make_tokenizer(folder),
    )
    examples = [_read_row(row) for row in trainer.train_dataset]
    trainer.train()
    return [log for log in trainer.state.log_history if "loss" in log], trainer.model, examples


def _read_row(row: dict[str, Any]) -> Example:
    """Return a row of any of trl's data sets as an Example."""
    if "completion_ids" in row:
        sides = [(row["prompt_ids"], row["completion_ids"])]
    elif "prompt_ids" in row:
        sides = [(row["prompt_ids"], row["chosen_ids"]), (row["prompt_ids"], row["rejected_ids"])]
    else:
        sides = []
        for side in ("chosen", "rejected"):
            ids, labels = row[f"{side}_input_ids"], row[f"{side}_labels"]
            start = sum(label == -100 for label in labels)
            sides.append((ids[:start], ids[start:]))
    ids = [one for prompt, answer in sides for one in (*prompt, *answer)]
    trained = [
        learned for prompt, answer in sides for learned in [False] * len(prompt) + [True] * len(answer)
    ]
    lengths = tuple(len(prompt) + len(answer) for prompt, answer in sides)
    return Example(np.asarray(ids, np.int32), np.asarray(trained), lengths, label=row.get("label"))


def run_ours(
    objective: str,
    settings: dict[str, Any],
    examples: Sequence[Example],
    folder: Path,
    own: bool,
    micro_batch: int,
    model: torch.nn.Module | None = None,
) -> tuple[list[StepLogged], torch.nn.Module]:
    """Return the steps of the studio's trainer, and the model."""
    model, device = model or make_model(), torch.device("cpu")
    aim = get_objective(objective, PreferenceSpec(**settings))
    if own:
        decoder = take_over(unwrap(model), bind({}), dtype=torch.float32)
        step = DecoderStep(decoder, objective=aim, pad_id=1)
    else:
        head = ScoreHead if aim.scores else LossHead
        losses = head(unwrap(model)).token_losses
        step = StockStep(model, losses, objective=aim, dtype="fp32", device=device, pad_id=1)
    recipe = Recipe(
        model=ModelChoice(source="m"),
        data=DatasetSpec(source="d"),
        optim=OptimSpec(
            learning_rate=1e-3, max_steps=STEPS, batch_size=ROWS, micro_batch=micro_batch, schedule="constant",
            warmup_share=0.0, weight_decay=0.0, max_grad_norm=0.0,
        ),
        run=RunSpec(samples=0),
    )  # fmt: skip
    events: list[Any] = []
    hooks = Hooks(emit=events.append, should_stop=lambda: False, save=lambda state: 0)
    trainer = Trainer(
        model, step, examples, [], recipe, "adamw", "fp32", device, hooks, micro_batch=micro_batch
    )
    if aim.needs_reference:
        add_reference(trainer, folder, "data", lambda: None)
    trainer.train()
    return [event for event in events if isinstance(event, StepLogged)], model


@pytest.mark.parametrize(("own", "micro_batch"), [(False, 8), (False, 3), (True, 8), (True, 3)])
def test_a_reward_model_is_that_of_trl(own, micro_batch, tmp_path, monkeypatch):
    from transformers import LlamaForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    ours = make_model(scores=True)
    config = ours.get_base_model().config
    config.num_labels = 1
    adapter = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", task_type="SEQ_CLS", modules_to_save=["score"]
    )
    theirs = get_peft_model(LlamaForSequenceClassification(config), adapter)
    given = {
        name.replace("score.", "score.modules_to_save.default."): one
        for name, one in ours.state_dict().items()
    }
    theirs.load_state_dict(given, strict=False)
    folder = tmp_path / "trl"
    options = {
        "center_rewards_coefficient": 0.01,
        "train_sampling_strategy": "sequential",
        "max_length": None,
    }
    trainer = RewardTrainer(
        model=theirs,
        args=RewardConfig(output_dir=str(folder), **OPTIONS, **options),
        train_dataset=Dataset.from_list(make_rows("dpo")),
        processing_class=make_tokenizer(folder),
    )
    examples = []
    for row in trainer.train_dataset:
        sides = [row["chosen_ids"], row["rejected_ids"]]
        ids = np.asarray([one for side in sides for one in side], np.int32)
        examples.append(Example(ids, np.ones(len(ids), bool), tuple(map(len, sides))))
    start = {name: one.detach().clone() for name, one in ours.named_parameters() if one.requires_grad}
    steps, found = run_ours("reward", {}, examples, tmp_path, own, micro_batch, ours)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    for step, log in zip(steps, logs, strict=True):
        assert step.loss == pytest.approx(log["loss"], abs=LOSS_ERROR), step.step
        for name in ("accuracy", "margin", "mean_reward"):
            assert step.metrics[name] == pytest.approx(log[name], abs=METRIC_ERROR), name
    expected = {
        name.replace("score.modules_to_save.default.", "score."): one
        for name, one in trainer.model.named_parameters()
    }
    moved = []
    for name, weight in found.named_parameters():
        if weight.requires_grad:
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=5e-5, msg=name)
            moved.append(float((weight.detach() - start[name]).abs().max()))
    assert min(moved) > 1e-4


def read_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.replace(".default", ""): one.detach().float()
        for name, one in model.named_parameters()
        if "lora_" in name and ".ref." not in name
    }


CASES = [(name, own) for name in CASES_OF for own in (False, True)]
FIRST = [("dpo", True), ("orpo", False), ("kto", True)]


@pytest.mark.parametrize(("name", "own"), some_of_several(CASES, *FIRST))
def test_ten_steps_are_those_of_trl(name, own, tmp_path, monkeypatch):
    assert_same_run(name, own, 3, tmp_path, monkeypatch)


def assert_same_run(
    name: str, own: bool, micro_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, settings, options = CASES_OF[name]
    kind = {"simpo": "cpo"}.get(objective, objective)
    logs, expected, examples = run_trl(kind, options, tmp_path / "trl", monkeypatch)
    (tmp_path / "ours").mkdir()
    steps, found = run_ours(objective, settings, examples, tmp_path / "ours", own, micro_batch)
    assert len(steps) == len(logs) == STEPS
    for step, log in zip(steps, logs, strict=True):
        assert step.loss == pytest.approx(log["loss"], abs=LOSS_ERROR, rel=2e-7), step.step
        named = [one for one in log if one.startswith(LOGGED) and (one != "nll_loss" or log[one])]
        named = [one for one in named if one in step.metrics or log[one]]  # a z that is none
        assert named and {*named} >= {*step.metrics} - {"kl", "nll_loss"}, "what trl has no name for"
        for one in named:
            assert step.metrics[one] == pytest.approx(log[one], abs=METRIC_ERROR, rel=1e-5), one
    weights, start = read_weights(expected), read_weights(make_model())
    for key, weight in read_weights(found).items():
        torch.testing.assert_close(weight, weights[key], rtol=0, atol=WEIGHT_ERROR, msg=key)
    assert max((weight - start[key]).abs().max() for key, weight in weights.items()) > 1e-3
