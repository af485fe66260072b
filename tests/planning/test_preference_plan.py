"""Two sequences an example: what the planner expects of comparing objectives in memory and time."""

from __future__ import annotations

import dataclasses

import pytest

from studio.core.i18n import text
from studio.core.memory_policy import LayerPolicy, MemoryPolicy
from studio.core.recipe import OBJECTIVES, change_recipe, settle_objective
from studio.core.row_lengths import RowLengths
from studio.engine.objectives import get_objective
from studio.planning.decoder_shape import count_sequences, longest, longest_document
from studio.planning.memory_estimate import predict
from studio.planning.run_plan import plan
from studio.planning.shared_prompts import expect_shared, tell_shared
from studio.planning.slow_paths import note_loading
from studio.planning.speed_estimate import REFERRING, RowFigures, count_scored_tokens, predict_duration
from tests.machine.facts import make_decoder, make_gpu, make_machine, make_recipe

MACHINE, MODEL = make_machine(make_gpu(24, (8, 9), "RTX 4090")), make_decoder()
ROWS = RowFigures(count=1000, tokens=400_000)
BASE = {"data.max_length": 1024, "optim.batch_size": 8, "optim.epochs": 2.0, "data.validation_share": 0.0}


def recipe_for(objective: str, **changes):
    return make_recipe(BASE | {"objective": objective} | changes)


@pytest.mark.parametrize("name", OBJECTIVES[1:])
def test_the_planner_knows_of_each_objective_what_the_engine_does(name):
    objective = get_objective(name)
    assert count_sequences(recipe_for(name)) == objective.sequences
    assert (name in REFERRING) == objective.needs_reference


def test_a_pair_counts_as_both_of_its_sequences():
    one, two = (recipe_for(name) for name in ("sft", "dpo"))
    assert longest(MODEL, two) == 2 * longest(MODEL, one) == 2 * longest_document(MODEL, two) == 2048
    plans = [plan(MACHINE, recipe, MODEL) for recipe in (one, two)]
    fixed = [recipe_for(name, **{"optim.micro_batch": 1}) for name in ("sft", "dpo")]
    peaks = [predict(plan(MACHINE, recipe, MODEL), MODEL, recipe)["activations"] for recipe in fixed]
    assert peaks[1] > 1.5 * peaks[0]
    assert 0 < plans[1].micro_batch.value <= plans[0].micro_batch.value


def test_rows_that_are_known_are_pairs_of_sequences_of_half_their_length():
    known = plan(MACHINE, recipe_for("dpo"), MODEL, RowLengths(longest_tokens=512, mean_tokens=400.0))
    short = plan(MACHINE, recipe_for("dpo", **{"data.max_length": 256}), MODEL)
    assert known.micro_batch.value == short.micro_batch.value
    assert known.memory == short.memory


SHARED = RowLengths(
    longest_tokens=2048, mean_tokens=1200.0, longest_shared_tokens=1400, mean_shared_tokens=840.0
)
"""Pairs of which three tenths are the prompt for a second time."""


@pytest.mark.parametrize("objective", ["dpo", "reward"])
def test_answers_share_their_prompt_where_that_spares_enough(objective):
    chosen = plan(MACHINE, recipe_for(objective), MODEL, SHARED)
    assert chosen.shared_prompts.value == pytest.approx(0.3)
    assert chosen.shared_prompts.reason == text("plan.shared_prompts.on", share=30)
    assert (
        plan(MACHINE, recipe_for("sft"), MODEL, SHARED).shared_prompts.reason.id == "plan.shared_prompts.none"
    )


@pytest.mark.parametrize(
    ("objective", "changes", "model", "rows", "reason"),
    [
        ("dpo", {"run.device": "cpu"}, MODEL, SHARED, "stock"),
        ("dpo", {"model.quantization": "int8"}, MODEL, SHARED, "stock"),
        ("dpo", {}, MODEL, None, "unknown"),
        ("dpo", {}, MODEL, dataclasses.replace(SHARED, mean_shared_tokens=1100.0), "little"),
        ("grpo", {"optim.batch_size": 4, "sampling.group_size": 4, "sampling.answer_tokens": 40},
         MODEL, RowLengths(longest_tokens=120, mean_tokens=120.0), "recorded"),
    ],
)  # fmt: skip
def test_else_each_answer_is_computed_with_its_own_and_the_reason_is_told(
    objective, changes, model, rows, reason
):
    chosen = plan(MACHINE, recipe_for(objective, **changes), model, rows).shared_prompts
    assert (chosen.value, chosen.reason.id) == (0.0, f"plan.shared_prompts.{reason}")


def test_pairs_share_their_prompt_where_steps_are_recorded_too():
    short = dataclasses.replace(SHARED, mean_tokens=120.0, mean_shared_tokens=84.0)
    chosen = plan(MACHINE, recipe_for("dpo", **{"optim.batch_size": 1}), MODEL, short).shared_prompts
    assert (chosen.value, chosen.reason.id) == (pytest.approx(0.3), "plan.shared_prompts.on")


def test_answers_to_a_prompt_that_go_together_share_it():
    """Four of eight go at once: three of four prompts of 400 tokens, beside answers that end half-way."""
    changes = {"optim.micro_batch": 4, "sampling.group_size": 8, "sampling.answer_tokens": 400}
    drawn, rows = recipe_for("grpo", **changes), RowLengths(longest_tokens=900, mean_tokens=800.0)
    chosen = plan(MACHINE, drawn, MODEL, rows).shared_prompts
    assert chosen.value == pytest.approx(0.75 * 399 / 600, abs=1e-3)
    assert tell_shared(plan(MACHINE, drawn, MODEL, rows)) == (text("plan.shared_prompts.group", share=50),)
    alone = recipe_for("grpo", **changes | {"optim.micro_batch": 1})
    assert plan(MACHINE, alone, MODEL, rows).shared_prompts.reason.id == "plan.shared_prompts.little"
    assert plan(MACHINE, drawn, MODEL).shared_prompts.reason.id == "plan.shared_prompts.unknown"
    assert tell_shared(plan(MACHINE, recipe_for("sft"), MODEL, rows)) == ()


def test_before_rows_are_read_prompts_are_expected_to_be_shared_by_what_was_counted():
    rows = RowFigures(count=1000, tokens=1_200_000, repeated_tokens=360_000)
    before, recipe, gpu = plan(MACHINE, recipe_for("dpo"), MODEL), recipe_for("dpo"), MACHINE.gpus[0]
    after = expect_shared(before, MODEL, recipe, rows)
    assert before.shared_prompts.reason.id == "plan.shared_prompts.unknown"
    assert after.shared_prompts == plan(MACHINE, recipe, MODEL, SHARED).shared_prompts
    times = [predict_duration(one, MACHINE, MODEL, recipe, gpu, rows).seconds for one in (before, after)]
    assert 0.65 < times[1] / times[0] < 0.8
    unknown = RowFigures(count=1000, tokens=1_200_000)
    assert expect_shared(before, MODEL, recipe, unknown).shared_prompts == before.shared_prompts
    assert expect_shared(before, MODEL, recipe, RowFigures()) is before
    changes = {"optim.micro_batch": 4, "sampling.group_size": 8, "sampling.answer_tokens": 400}
    drawn, asked = recipe_for("grpo", **changes), RowFigures(count=10, tokens=4000)
    chosen = expect_shared(plan(MACHINE, drawn, MODEL), MODEL, drawn, asked).shared_prompts
    assert chosen.value == pytest.approx(0.75 * 399 / 600, abs=1e-3)
    own = plan(make_machine(), recipe, MODEL)
    assert expect_shared(own, MODEL, recipe, rows) is own


def test_layers_with_a_mixer_of_their_own_are_told():
    kinds = make_decoder(linears={**MODEL.linears, "linear_attn.in_proj_qkv": (4096, MODEL.hidden_size)})
    chosen = plan(MACHINE, recipe_for("dpo"), kinds, SHARED).shared_prompts
    assert chosen.reason.id == "plan.shared_prompts.mixers" and not chosen.value


def test_what_is_shared_takes_less_memory_and_less_time():
    alone = dataclasses.replace(SHARED, longest_shared_tokens=0, mean_shared_tokens=0.0)
    fixed = recipe_for("dpo", **{"optim.micro_batch": 2})
    apart, shared = (plan(MACHINE, fixed, MODEL, rows) for rows in (alone, SHARED))
    assert shared.memory != apart.memory and shared.checkpointing != apart.checkpointing
    # Attention is written out: as many rows of it as before, and the stream's own beside them.
    same = change_recipe(fixed, {"data.max_length": 700})
    peaks = [
        predict(one, MODEL, same, MemoryPolicy(layers=(LayerPolicy(),) * MODEL.layers))
        for one in (apart, shared)
    ]
    assert peaks[0]["activations"] < peaks[1]["activations"] < 1.01 * peaks[0]["activations"]  # log-sums
    assert peaks[1]["workspace"] >= peaks[0]["workspace"]
    times = [
        predict_duration(one, MACHINE, MODEL, fixed, MACHINE.gpus[0], ROWS).seconds
        for one in (apart, dataclasses.replace(apart, shared_prompts=shared.shared_prompts))
    ]
    assert 0.65 < times[1] / times[0] < 0.8


def test_a_decoder_that_is_refused_after_loading_shares_nothing():
    recipe = recipe_for("dpo")
    planned = plan(MACHINE, recipe, MODEL, SHARED)
    after = note_loading(planned, text("model.decoder.trained"), {}, MACHINE, recipe, MODEL, MACHINE.gpus[0])
    assert planned.shared_prompts.value and after.shared_prompts.reason.id == "plan.shared_prompts.stock"


def test_what_only_goes_forward_takes_time_too():
    tokens = {
        name: count_scored_tokens(recipe_for(name), MODEL, ROWS) for name in ("sft", "simpo", "dpo", "kto")
    }
    # The reference of two answers a row, and z in each of two epochs.
    assert tokens == {"sft": 0, "simpo": 0, "dpo": 400_000, "kto": 2 * 400_000 + 800_000}
    bare = recipe_for("kto", **{"preference.loss": "apo_zero_unpaired"})
    assert count_scored_tokens(bare, MODEL, ROWS) == 400_000
    recipes = [recipe_for(name) for name in ("simpo", "dpo")]
    without, with_reference = (
        predict_duration(plan(MACHINE, recipe, MODEL), MACHINE, MODEL, recipe, MACHINE.gpus[0], ROWS).seconds
        for recipe in recipes
    )
    assert with_reference == pytest.approx(without * (1 + 400 / 3 / 800), rel=1e-3)


def test_what_auto_stands_for_is_planned():
    assert settle_objective(recipe_for("auto"), "preference").objective == "dpo"
    assert settle_objective(recipe_for("auto"), "kto").objective == "kto"
    assert settle_objective(recipe_for("auto"), "").objective == "auto"
    assert settle_objective(recipe_for("orpo"), "preference").objective == "orpo"
