"""Pairs are of one length and of two questions, both stacks train the same rows, one scorer looks at the results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import real_preference
from benchmarks.make_model import make_model
from benchmarks.real_preference import REWARD, pick_pairs, read_rows, say, write_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model("tiny", tmp_path_factory.mktemp("models") / "tiny")


def test_pairs_are_answers_of_one_length_to_two_questions(model, tmp_path):
    talks = [
        {"id": f"t{n}_0", "conversations": [{"from": "human", "value": f"what is {n}?"},
                                            {"from": "gpt", "value": f"{n} " * (10 + n)}]}
        for n in range(60)
    ]  # fmt: skip
    talks.append({"id": "long", "conversations": [{"from": "human", "value": "x" * 300}]})
    source = tmp_path / "chats.json"
    source.write_text(json.dumps(talks), encoding="utf-8")
    pick_pairs(source, model, tmp_path / "rows", train=40, held_out=8)
    parts = {name: read_rows(tmp_path / "rows" / f"pairs_{name}.jsonl.gz") for name in ("train", "held_out")}
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 40, "held_out": 8}
    answers = {row["conversations"][0]["value"]: row["conversations"][-1]["value"].strip() for row in talks}
    for rows in parts.values():
        within = {answers[row["prompt"][0]["content"]] for row in rows}
        for row in rows:
            good, bad = row["chosen"][0]["content"], row["rejected"][0]["content"]
            assert good == answers[row["prompt"][0]["content"]] and bad != good and bad in within
    asked = {name: {row["prompt"][0]["content"] for row in rows} for name, rows in parts.items()}
    assert not asked["train"] & asked["held_out"]
    with pytest.raises(ValueError, match="are wanted"):
        pick_pairs(source, model, tmp_path / "rows", train=400, held_out=8)


def test_the_reward_is_1_where_the_last_number_is_right():
    names: dict = {}
    exec(REWARD, names)
    said = ["3 + 4 = 7", "It is 1,007.", "7 of 8", "none", "-12"]
    assert names["reward"](said, ["7", "1007", "7", "7", "-12"]) == [1.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.computing
@pytest.mark.parametrize("objective", ["dpo", "grpo"])
def test_both_stacks_train_and_are_scored_by_one(objective, model, tmp_path):
    kind = {"dpo": "pairs", "grpo": "tasks"}[objective]
    for name, count in (("train", 16), ("held_out", 4)):
        rows = [{"prompt": say("user", f"what is {n}?")} for n in range(count)]
        more = (
            {"chosen": say("assistant", "good"), "rejected": say("assistant", "evil")}
            if objective == "dpo"
            else {"answer": "7", "task": "gcd"}
        )
        write_rows(tmp_path / f"{kind}_{name}.jsonl.gz", [row | more for row in rows])
    out = tmp_path / "out.jsonl"
    words = [objective, "--model", model, "--data", tmp_path, "--steps", 2, "--device", "cpu", "--out", out]
    command = [sys.executable, "benchmarks/real_preference.py", *map(str, words), "--rate", "1e-2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["stack"] for line in lines] == ["ours", "trl", "before", "ours", "trl"]
    for line in lines[:2]:
        curve = line["curve"]["reward" if objective == "grpo" else "rewards/margins"]
        assert len(curve) == 2 and line["steps_s"] > 0
    before, *after = lines[2:]
    assert all(line["held_out"] == 4 for line in lines[2:])
    if objective == "dpo":
        # The same rows at the same rate from the same weights, and adapters that were drawn apart.
        assert before["margin"] == 0 and all(line["margin"] > 0 and line["accuracy"] == 1 for line in after)
    else:
        assert set(before["accuracy"]) == {"all", *real_preference.TASKS}
