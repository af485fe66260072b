"""Both stacks get the same rows in the same order, rows have the tokens that are said, and the better way counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.make_model import make_model
from benchmarks.objectives import CASES, SEED, compare, draw_rows, list_ways, make_tiny, write_data
from studio.engine.batches import StepOrder

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_model("tiny", folder / "tiny")
    return folder


@pytest.mark.parametrize("name", ["dpo.lora", "dpo.real", "kto.lora", "sft.lora", "grpo.lora"])
def test_rows_hold_as_many_tokens_as_are_said(name, models):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models / "tiny")
    case = BY_NAME[name]
    rows, tokens = draw_rows(case)
    assert len(rows) == len(tokens) == case.rows * (case.warm + case.steps)
    for row, count in list(zip(rows, tokens, strict=True))[:6]:
        if "messages" in row:
            found = count_tokens(tokenizer, row["messages"])
        elif case.sampled:
            asked = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)
            found = case.group_size * (len(asked["input_ids"]) + case.answer)
        else:
            answers = [row[key] for key in ("chosen", "rejected", "completion") if key in row]
            found = sum(count_tokens(tokenizer, row["prompt"] + answer) for answer in answers)
        assert found == count


def count_tokens(tokenizer, messages):
    return len(tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"])


@pytest.mark.parametrize("name", ["dpo.lora", "grpo.lora"])
def test_trl_takes_the_rows_of_our_steps_and_the_counted_ones_in_both_ways(name, tmp_path):
    case = BY_NAME[name]
    tokens = write_data(case, tmp_path)
    ours, theirs = (
        [json.loads(line) for line in (tmp_path / f"{stack}.jsonl").read_text().splitlines()]
        for stack in ("ours", "trl")
    )
    order = StepOrder(len(ours), case.rows, SEED)
    steps = [theirs[start : start + case.rows] for start in range(0, len(theirs), case.rows)]
    (_, warm, count), (_, warm_again, count_again) = list_ways(case)
    assert len(steps) == warm + count + warm_again + count_again and count == count_again
    for step in range(warm + count):
        assert steps[step] == [ours[i] for i in order.indices(step)]
    assert steps[warm : warm + count] == steps[-count:]
    assert len(tokens) == case.steps


def test_the_better_way_of_trl_counts():
    case = BY_NAME["dpo.lora"]
    line = {"times_s": [1.0, 1.2, 9.0], "peak_mib": 50, "first": {"logps/chosen": -100.0}}
    slow = {
        "times_s": [4.0, 4.0, 4.0],
        "peak_mib": 100,
        "way": "recompute",
        "first": {"logps/chosen": -101.0},
    }
    fast = slow | {"times_s": [3.0, 3.0, 3.6], "way": "keep"}
    found = {"ours": [line], "trl": [slow, fast, {"error": "out of memory"}]}
    said = compare(case, found)
    assert said["ratio"] == 2.5 and said["trl_way"] == "keep" and not said["holds"] and said["memory"] == 0.5
    assert said["first_logps_apart"] == pytest.approx(1 / 101, abs=1e-5)
    assert compare(BY_NAME["dpo.real"], found)["ratio"] == pytest.approx(9.6 / 11.2, abs=0.01)
    assert compare(case, {"ours": [line], "trl": [{"error": "out of memory"}]})["holds"] is None


@pytest.mark.computing
def test_both_stacks_take_the_same_first_step_of_pairs_and_of_groups(models, tmp_path):
    out = tmp_path / "out.jsonl"
    words = [
        "--models",
        models,
        "--tiny",
        "--device",
        "cpu",
        "--out",
        out,
        "--cases",
        "dpo.lora,grpo.small,grpo.long",
    ]
    command = [sys.executable, "benchmarks/objectives.py", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["stack"] for line in lines] == [*2 * ["ours", "trl", "trl", "ratio"], "ours"]
    for line in lines:
        assert line["shape"] == "tiny"
        if line["stack"] != "ratio":
            assert all(took_s > 0 for took_s in line["times_s"]) and line["tokens_per_s"] > 0
        if line["case"].startswith("grpo") and line["stack"] != "ratio":
            assert 0 < line["generating_s"] < line["step_s"]
    assert lines[3]["first_logps_apart"] < 1e-4 and lines[3]["ratio"] > 0


def test_a_tiny_case_is_what_a_processor_can_do():
    for case in CASES:
        tiny = make_tiny(case)
        assert tiny.shape == "tiny" and tiny.prompt + tiny.answer < 64 and tiny.objective == case.objective
