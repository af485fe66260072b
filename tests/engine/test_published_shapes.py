"""Every shape in which pairs, labels and questions for rewards are published is trained on, or refused truly."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from studio.core.events import DataPrepared, RunFailed, StepLogged
from studio.core.recipe import RewardSpec
from studio.engine.rollouts.completions_file import FILE
from tests.engine.test_preference_shapes import FILES, SHAPES, said, user

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "fixtures"
NUMBER, TESTS, CHOICE, EXACT = (RewardSpec(name=name) for name in ("number", "tests", "choice", "exact"))
ADD = "def add{i}(a, b):\n    return a + b + {i}\n"
MORE_PAIRS = {
    "argilla": [
        {"source": "mix", "system": "", "input": f"What is {i}?", "chosen": f"It is {i}.", "rejected": "Nothing.",
         "generations": [f"It is {i}.", "Nothing."], "rating": [9.0, 2.0], "chosen_model": "a", "rejected_model": "b"}
        for i in range(8)
    ],
    "tulu": [
        {"id": str(i), "prompt": f"Tell {i}", "chosen": [user(f"Tell {i}"), said("Gladly.")],
         "rejected": [user(f"Tell {i}"), said("Never.")], "chosen_rating": 5.0, "rejected_rating": 2.0}
        for i in range(8)
    ],
    "UltraFeedback, as it came": [
        {"source": "evol", "instruction": f"Explain {i}", "models": ["a", "b"], "completions": [
            {"model": "a", "response": f"{i} means {i}.", "overall_score": 8.5, "fine-grained_score": 4.75},
            {"model": "b", "response": "It depends.", "overall_score": 6.0, "fine-grained_score": 3.0}],
         "correct_answers": ["None"], "incorrect_answers": ["None"]}
        for i in range(8)
    ],
    "PKU-SafeRLHF": [
        {"prompt": f"May I {i}?", "response_0": "You may, with care.", "response_1": "Do as you like.",
         "is_response_0_safe": True, "is_response_1_safe": False, "better_response_id": 0, "safer_response_id": 0}
        for i in range(8)
    ],
    "HelpSteer2": [
        {"prompt": f"Help me {i}", "response_1": "Surely, so.", "response_2": "No.", "preference_strength": -2,
         "preference_statement": "The first helps.", "split": "train"}
        for i in range(8)
    ],
}  # fmt: skip
REWARDED: dict[str, tuple[RewardSpec, list[dict[str, object]]]] = {
    "gsm8k": (NUMBER, [
        {"question": f"Ann has {i} pens and buys 2. How many?", "answer": f"She has {i} + 2 = {i + 2}.\n#### {i + 2}"}
        for i in range(8)
    ]),
    "verl": (NUMBER, [
        {"data_source": "openai/gsm8k", "prompt": [user(f"What is {i} + 2? End with ####.")], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
         "extra_info": {"split": "train", "index": i, "answer": f"#### {i + 2}", "question": f"What is {i} + 2?"}}
        for i in range(8)
    ]),
    "DAPO-Math-17k": (NUMBER, [
        {"data_source": "math_dapo", "prompt": [user(f"Solve x = {i} + 1. Answer: $Answer.")], "ability": "MATH",
         "reward_model": {"ground_truth": str(i + 1), "style": "rule-lighteval/MATH_v2"},
         "extra_info": {"index": f"{i}"}}
        for i in range(8)
    ]),
    "OpenR1-Math-220k": (NUMBER, [
        {"problem": f"Find {i} squared.", "solution": f"It is ${i * i}$.", "answer": str(i * i),
         "problem_type": "Algebra", "question_type": "math-word-problem", "source": "olympiads",
         "uuid": f"{i:032x}",
         "is_reasoning_complete": [True, False], "generations": [f"<think>hm</think> \\boxed{{{i * i}}}", "<think>"],
         "correctness_math_verify": [True, False], "correctness_count": 1,
         "messages": [user(f"Find {i} squared."), said(f"<think>hm</think> \\boxed{{{i * i}}}")]}
        for i in range(8)
    ]),
    "DeepMath": (NUMBER, [
        {"prompt": [user(f"Evaluate {i} / 2.")], "solution": f"\\frac{{{i}}}{{2}}"} for i in range(8)
    ]),
    "MATH": (NUMBER, [
        {"problem": f"Compute {i}!", "level": "Level 2", "type": "Algebra",
         "solution": f"So the answer is $\\boxed{{{math.factorial(i)}}}$."}
        for i in range(8)
    ]),
    "DeepScaleR": (NUMBER, [
        {"problem": f"Find x if x = {i}.", "answer": f"{i}", "solution": f"x = {i}, thus {i}."} for i in range(8)
    ]),
    "mbpp": (TESTS, [
        {"task_id": i, "text": f"Write a function add{i} that adds two numbers and {i}.", "code": ADD.format(i=i),
         "test_list": [f"assert add{i}(1, 2) == {i + 3}"], "test_setup_code": "", "challenge_test_list": []}
        for i in range(8)
    ]),
    "mbpp, sanitised": (TESTS, [
        {"source_file": "a.ipynb", "task_id": i, "prompt": f"Write a function add{i} of two numbers.",
         "code": ADD.format(i=i), "test_imports": [], "test_list": [f"assert add{i}(1, 2) == {i + 3}"]}
        for i in range(8)
    ]),
    "HumanEval": (TESTS, [
        {"task_id": f"HumanEval/{i}", "prompt": f"def add{i}(a, b):\n    \"\"\" Add both and {i}. \"\"\"\n",
         "canonical_solution": f"    return a + b + {i}\n", "entry_point": f"add{i}",
         "test": f"def check(candidate):\n    assert candidate(1, 1) == {i + 2}\n"}
        for i in range(8)
    ]),
    "choices": (CHOICE, [
        {"question": f"Which is {i}?", "choices": [str(i), str(i + 1), "none", "all"], "answer": 0} for i in range(8)
    ]),
    "chats": (EXACT, [{"messages": [user(f"Repeat {i}"), said(f"{i}")]} for i in range(8)]),
}  # fmt: skip
REFUSED: dict[str, str] = {"HelpSteer2": "data.unclear"}
"""Shape -> the refusal that says why it is not trained on: the sign of HelpSteer2's strength has no name."""
RL_FILES = sorted(FIXTURES.glob("formats/rl*.jsonl"))
ALL = [*SHAPES, *MORE_PAIRS, *(file.name for file in FILES), *REWARDED, *(file.name for file in RL_FILES)]

pytestmark = pytest.mark.computing


def train(ran, source, **changes):
    """Run a step on `source`, and return the run with the figures of its data."""
    given = {
        "data.source": str(source),
        "data.validation_share": 0.0,
        "data.max_length": 256,
        "run.trial": False,
    }
    given |= {"optim.max_steps": 1, "optim.batch_size": 2, "optim.learning_rate": 0.0, "run.scored_rows": 0}
    return ran(given | changes)


def check(result, name):
    """Hold the end of a run against what is expected of a shape."""
    if name in REFUSED:
        assert result.of(RunFailed)[-1].diagnosis.what.id == REFUSED[name], result.log
        return None
    assert result.record.state == "finished", result.log
    facts = result.of(DataPrepared)[0].facts
    (step,) = result.of(StepLogged)
    assert math.isfinite(step.loss) and not step.skipped and math.isfinite(step.grad_norm)
    assert facts.rows_used >= 0.9 * facts.rows_read > 0
    return step


def test_at_most_a_tenth_is_refused():
    assert len(REFUSED) <= 0.1 * len(ALL) and {*REFUSED} <= {*ALL} and len(ALL) >= 30


@pytest.mark.parametrize("name", [*SHAPES, *MORE_PAIRS])
def test_pairs_and_labels_are_trained_on(name, ran, jsonl, tmp_path):
    rows = (SHAPES | MORE_PAIRS)[name]
    step = check(train(ran, jsonl(tmp_path / "rows.jsonl", rows)), name)
    assert step is None or "rewards/chosen" in step.metrics


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_of_pairs_and_labels_are_trained_on(file, ran):
    step = check(train(ran, file), file.name)
    assert step is None or "rewards/chosen" in step.metrics


@pytest.mark.parametrize("objective", ["simpo", "cpo", "orpo", "reward"])
@pytest.mark.parametrize("name", ["hh-rlhf", "scored answers"])
def test_pairs_are_trained_on_by_every_objective_of_theirs(name, objective, ran, jsonl, tmp_path):
    result = train(ran, jsonl(tmp_path / "rows.jsonl", SHAPES[name]), objective=objective)
    assert check(result, name).loss > 0


def learn_by_trying(ran, source, reward, name):
    """Run a step of drawn answers on `source`, each of which must have been scored by what its row holds."""
    changes = {
        "objective": "grpo",
        "rewards": (reward,),
        "sampling.group_size": 2,
        "sampling.answer_tokens": 8,
    }
    result = train(ran, source, **changes)
    if check(result, name) is None:
        return
    lines = (result.folder.path / FILE).read_text("utf-8").splitlines()
    scores = [json.loads(line)["scores"][reward.name] for line in lines]
    assert len(scores) in (2, 4) and all(score is not None for score in scores), (
        "a row's columns did not reach the reward"
    )


@pytest.mark.parametrize("name", REWARDED)
def test_prompts_with_what_scores_their_answers_are_trained_on(name, ran, jsonl, tmp_path):
    reward, rows = REWARDED[name]
    learn_by_trying(ran, jsonl(tmp_path / "rows.jsonl", rows), reward, name)


def test_verls_parquet_is_trained_on(ran, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    reward, rows = REWARDED["verl"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    learn_by_trying(ran, tmp_path / "train.parquet", reward, "verl")


@pytest.mark.parametrize("file", RL_FILES, ids=lambda file: file.name)
def test_files_of_prompts_are_trained_on(file, ran):
    learn_by_trying(ran, file, NUMBER, file.name)
