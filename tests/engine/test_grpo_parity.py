"""Ten steps of every loss by which drawn answers are learned, beside trl's trainers: same answers, same rewards."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from studio_kernels.dispatch import bind

from studio.core.events import StepLogged
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec, SamplingSpec
from studio.data.sequence_packing import Drawn, Example
from studio.engine.decoder_step import DecoderStep
from studio.engine.loss import LossHead
from studio.engine.objectives import get_objective
from studio.engine.rollouts.advantages import find_advantages
from studio.engine.scoring import score
from studio.engine.train_step import StockStep
from studio.engine.trainer import Trainer
from studio.engine.trainer_hooks import Hooks
from studio.models.adapt import unwrap
from studio.models.decoder.decoder import take_over
from tests.each_time import some_of_several
from tests.engine.test_preference_parity import OPTIONS, make_model, make_tokenizer, read_weights

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
