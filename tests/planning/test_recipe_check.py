"""Every problem is found at once, beside its field, with words in both languages."""

import dataclasses
import math

import pytest

from studio.core.errors import Problem
from studio.core.facts import Verdict
from studio.core.i18n import literal, load_catalogue, text
from studio.planning.memory_estimate import predict
from studio.planning.recipe_check import check, estimate_steps
from studio.planning.run_plan import gigabytes, plan
from tests.machine.facts import make_data, make_gpu, make_machine, make_model, make_recipe, make_small

LAPTOP = make_machine()
DESKTOP = make_machine(make_gpu())
BROKEN = make_machine(make_gpu(), bitsandbytes_error="No compatible CUDA binary")


def found(changes=None, machine=LAPTOP, model="small", data="chats", **values):
    model = make_small() if model == "small" else model
    data = make_data() if data == "chats" else data
    problems = check(make_recipe({"data.max_length": 256} | (changes or {})), machine, model, data, **values)
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for problem in problems:
            for words in (problem.message, problem.fix):
                assert catalogue.has(words.id), words.id
                assert "{" not in catalogue.say(words)
    return {
        (problem.severity, problem.field, problem.message.id.removeprefix("check."))
        for problem in problems
        if not problem.message.id.startswith("slower.")  # of which test_slower.py tells
    }


def test_a_good_recipe_has_no_problem():
    assert found() == set()
    assert check(make_recipe(), LAPTOP, None, None) == ()


def test_all_problems_come_at_once_and_errors_first():
    changes = {
        "data.max_length": 0,
        "optim.learning_rate": math.nan,
        "adapter.method": "magic",
        "optim.epochs": 0.0,
    }
    recipe = make_recipe(changes | {"optim.optimizer": "adamw_8bit"})
    problems = check(recipe, BROKEN, make_small(has_chat_template=False), make_data(rows_used=0))
    ids = [problem.message.id.removeprefix("check.") for problem in problems]
    assert set(ids) == {
        "too_low", "not_a_number", "choice", "no_end", "no_rows", "optimizer",
    }  # fmt: skip
    assert ids[-1] == "optimizer" and problems[-1].severity == "warning"


CASES = [
    ({"data.max_length": 0}, {}, ("error", "data.max_length", "too_low")),
    ({"adapter.rank": 5000}, {}, ("error", "adapter.rank", "too_high")),
    ({"optim.learning_rate": math.inf}, {}, ("error", "optim.learning_rate", "not_a_number")),
    ({"optim.schedule": "zigzag"}, {}, ("error", "optim.schedule", "choice")),
    ({"model.source": " "}, {"model": None}, ("error", "model.source", "required")),
    ({"optim.learning_rate": 0.1}, {}, ("warning", "optim.learning_rate", "rate_high")),
    (
        {"adapter.method": "full", "optim.learning_rate": 2e-4},
        {"model": make_model(), "machine": make_machine(make_gpu(192, (9, 0)))},
        ("warning", "optim.learning_rate", "rate_high"),
    ),
    ({"optim.epochs": 0.0}, {}, ("error", "optim.epochs", "no_end")),
    ({"optim.max_steps": 10, "optim.warmup_steps": 20}, {}, ("warning", "optim.warmup_steps", "warmup")),
    ({"run.eval_every": 5}, {}, ("warning", "run.eval_every", "eval_without_validation")),
    (
        {"run.eval_every": 500, "data.validation_share": 0.1},
        {},
        ("warning", "run.eval_every", "eval_too_late"),
    ),
    (
        {"run.early_stopping": 2, "data.validation_share": 0.1},
        {},
        ("error", "run.early_stopping", "stop_without_eval"),
    ),
    (
        {"run.early_stopping": 2, "run.eval_every": 5},
        {},
        ("error", "run.early_stopping", "stop_without_validation"),
    ),
    (
        {"adapter.method": "full", "model.quantization": "nf4"},
        {},
        ("error", "model.quantization", "full_quantized"),
    ),
    ({"adapter.method": "full", "model.adapter": "a"}, {}, ("error", "model.adapter", "full_adapter")),
    ({"adapter.dora": True, "model.adapter": "a"}, {}, ("warning", "adapter.dora", "dora_continued")),
    ({"adapter.dora": True, "model.quantization": "int8"}, {}, ("error", "adapter.dora", "dora_int8")),
    (
        {"adapter.dora": True},
        {"model": make_small(quantization="int8", dtype="fp16")},
        ("error", "adapter.dora", "dora_int8"),
    ),
    ({"objective": "sft"}, {"data": make_data(format="text")}, ("error", "objective", "sft_text")),
    ({"run.device": "gpu"}, {}, ("error", "run.device", "no_gpu")),
    ({"model.quantization": "nf4"}, {"machine": BROKEN}, ("error", "model.quantization", "bitsandbytes")),
    ({"optim.optimizer": "adamw_8bit"}, {"machine": BROKEN}, ("warning", "optim.optimizer", "optimizer")),
    (
        {},
        {"machine": BROKEN, "model": make_small(quantization="nf4")},
        ("error", "model.source", "stored_without_bitsandbytes"),
    ),
    (
        {"model.quantization": "int8"},
        {"machine": make_machine(make_gpu(16, (7, 0), "V100"), torch_cuda="12.6")},
        ("error", "model.quantization", "int8_old_gpu"),
    ),
    ({}, {"data": make_data(rows_used=0)}, ("error", "data.source", "no_rows")),
    ({"data.validation_share": 0.001}, {}, ("error", "data.validation_share", "validation_empty")),
    ({"data.fill": True}, {"data": make_data(tokens=1000)}, ("warning", "data.fill", "fill_few")),
    ({}, {"data": make_data(rows_cut=399)}, ("warning", "data.max_length", "many_cut")),
    (
        {},
        {"model": make_small(trainable=Verdict(ok=False, reason=literal("It sees pictures.")))},
        ("error", "model.source", "not_trainable"),
    ),
    ({"data.max_length": 513}, {}, ("error", "data.max_length", "beyond_positions")),
    (
        {"adapter.method": "full"},
        {"model": make_small(quantization="nf4")},
        ("error", "adapter.method", "full_stored"),
    ),
    (
        {"model.quantization": "int8"},
        {"model": make_small(quantization="nf4")},
        ("warning", "model.quantization", "stored_differs"),
    ),
    (
        {},
        {"machine": make_machine(make_gpu(8)), "model": make_model()},
        ("warning", "data.max_length", "memory_gpu"),
    ),
    (
        {},
        {"machine": make_machine(ram_bytes=8 * 2**30, cores=500), "model": make_model()},
        ("warning", "data.max_length", "memory_ram"),
    ),
    ({}, {"free_disk_bytes": 1_000_000}, ("error", "", "disk")),
]


@pytest.mark.parametrize(
    "changes, values, problem", CASES, ids=[f"{case[2][2]}-{case[2][1]}" for case in CASES]
)
def test_one_problem(changes, values, problem):
    assert found(changes, **values) == {problem}


@pytest.mark.parametrize(
    "changes, values",
    [
        ({}, {"data": make_data(format="prompt_completion"), "model": make_small(has_chat_template=False)}),
        ({}, {"data": make_data(format="text"), "model": make_small(has_chat_template=False)}),
        ({"objective": "pretrain"}, {"model": make_small(has_chat_template=False)}),
        ({"data.max_length": 4096}, {"model": make_small(folder="", parameters=0, has_chat_template=False)}),
        ({"adapter.method": "full", "optim.learning_rate": 1e-3}, {}),
        ({}, {"free_disk_bytes": 10 * 2**30}),
        ({"model.quantization": "nf4", "optim.optimizer": "paged_adamw_8bit"}, {}),
        ({"model.quantization": "nf4", "adapter.dora": True}, {}),
        ({"data.max_length": 4096}, {"machine": DESKTOP, "model": make_model()}),
    ],
)
def test_no_problem(changes, values):
    assert found(changes, **values) == set()


def test_steps_are_estimated():
    assert estimate_steps(make_recipe(), make_data()) == 150  # 400 rows / 8 x 3
    assert estimate_steps(make_recipe({"data.validation_share": 0.5}), make_data()) == 75
    assert estimate_steps(make_recipe({"optim.max_steps": 7}), None) == 7
    assert estimate_steps(make_recipe({"data.fill": True}), make_data()) == 0
    assert estimate_steps(make_recipe(), None) == 0


def test_a_card_that_lies_idle_is_told_before_the_start():
    idle = make_machine(make_gpu(), torch_cuda="")
    found = [problem for problem in check(make_recipe(), idle, None, None) if problem.field == "run.device"]
    assert [(one.severity, one.message.id) for one in found] == [("warning", "check.card_unused")]
    on_purpose = make_recipe({"run.device": "cpu"})
    assert not [one for one in check(on_purpose, idle, None, None) if one.field == "run.device"]


def test_4_bits_on_a_card_too_old_for_them():
    old = make_machine(make_gpu(4, (5, 2), "GTX 970"), torch_cuda="12.6")
    found = check(make_recipe({"model.quantization": "nf4"}), old, None, None)
    assert "check.quantization_gpu" in [problem.message.id for problem in found]


def test_full_fine_tuning_of_8b_asks_for_the_disk_that_its_checkpoints_take():
    """Weights in fp32 and two moments of a byte each, 6 bytes a parameter; one more lies there while it is written."""
    model = dataclasses.replace(make_model(), parameters=8_030_000_000)
    machine = make_machine(make_gpu(80, (9, 0), "H100"), ram_bytes=512 * 2**30)
    changes = {"adapter.method": "full", "run.keep_checkpoints": 3, "optim.optimizer": "paged_adamw_8bit"}

    def judge(free_gib: float) -> Problem | None:
        found = check(make_recipe(changes), machine, model, None, free_disk_bytes=int(free_gib * 2**30))
        return next((one for one in found if one.message.id == "check.disk"), None)

    assert judge(181) is None, "4 checkpoints of 44.9 GiB, and one GiB to spare"
    fewer = judge(95)
    assert fewer.field == "run.keep_checkpoints" and fewer.fix.id == "check.disk.fewer"
    assert dict(fewer.ways[0].change) == {"run.keep_checkpoints": 1}
    assert fewer.message.values["each"] == "45.9" and fewer.message.values["count"] == 4
    assert judge(80).fix.id == "check.disk.fix" and not judge(80).ways


@pytest.mark.parametrize("family, quantization", [("llama4", "nf4"), ("qwen3_moe", "int8")])
def test_what_a_quantisation_does_not_reach_is_told_with_its_share_and_memory(family, quantization):
    """Qwen3-30B-A3B: 28.99 of 29.9 billion weights of its layers stand in experts."""
    model = make_model(
        family=family,
        parameters=30_500_000_000,
        linear_parameters=906_000_000,
        expert_parameters=28_990_000_000,
    )
    found = check(make_recipe({"model.quantization": quantization}), make_machine(make_gpu(24)), model, None)
    told = next(one for one in found if one.message.id == "check.experts")
    assert (told.severity, told.message.values["share"], told.message.values["left"]) == (
        "warning",
        3,
        "54.0",
    )
    assert next(one for one in found if one.message.id == "check.memory_gpu")
    plain = check(make_recipe({}), make_machine(make_gpu(80)), model, None)
    assert "check.experts" not in [one.message.id for one in plain]


def test_four_bits_reach_the_experts():
    """Qwen3-30B-A3B: 57 GiB in 16 bits, and 15.5 GiB in 4 (embeddings and head stay)."""
    model = make_model(
        family="qwen3_moe",
        parameters=30_530_000_000,
        linear_parameters=906_000_000,
        expert_parameters=28_990_000_000,
    )
    recipe = make_recipe({"model.quantization": "nf4"})
    found = check(recipe, make_machine(make_gpu(24)), model, None)
    assert "check.experts" not in [one.message.id for one in found]
    chosen = plan(make_machine(make_gpu(24)), recipe, model)
    assert chosen.quantization.reason.id == "plan.quantization.nf4_experts"
    assert chosen.quantization.reason.values["share"] == "97.9"
    assert 15 < predict(chosen, model, recipe)["weights"] / 2**30 < 17


@pytest.mark.parametrize("id", ["quantization", "package", "unknown"])
def test_what_to_do_about_a_model_fits_its_reason(id):
    reason = text(f"model.trainable.{id}", quantization="gptq", architecture="X", package="timm")
    model = make_model(trainable=Verdict(ok=False, reason=reason))
    found = check(make_recipe({}), make_machine(), model, None)
    assert [one.fix.id for one in found if one.field == "model.source"] == [f"model.trainable.{id}.fix"]


def test_a_small_disk_is_told_with_a_number_that_says_something():
    assert [gigabytes(size) for size in (0, 12_000_000, 2**30)] == ["0.000", "0.011", "1.0"]
