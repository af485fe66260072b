"""Whole runs by code that misbehaves: alive where it seldom does, stopped with the row where it often does."""

from __future__ import annotations

import psutil
import pytest

from studio.core.i18n import load_catalogue
from studio.core.json_file import parse_json
from studio.core.recipe import RewardSpec
from studio.engine.rollouts.completions_file import FILE
from tests.engine.test_grpo import CHANGES, write_prompts

pytestmark = pytest.mark.computing

SELDOM = """
import os, time
def mine(completions, prompts, **columns):
    scores = []
    for words, asked in zip(completions, prompts):
        fate = sum(words.encode()) % 40
        if fate == 0:
            while True:
                pass
        if fate == 1:
            os._exit(1)
        if fate == 2:
            bytearray(10 * 2**30)
        print(words, dict(os.environ))
        scores.append(float("nan") if fate == 3 else float(len(words)))
    return scores
"""
OFTEN = """
def mine(completions, **columns):
    for words in completions:
        if sum(words.encode()) % 2:
            raise LookupError("no such answer")
    return [1.0 for words in completions]
"""


@pytest.fixture
def run_by(ran, jsonl, tmp_path):
    """A function `run_by(code) -> the run's result` of a few steps."""

    def go(code):
        path = tmp_path / "mine.py"
        path.write_text(code, encoding="utf-8")
        prompts = write_prompts(jsonl, tmp_path / "prompts.jsonl")
        reward = RewardSpec(name=f"file:{path}", options={"batch_s": 1.0, "row_s": 0.5, "memory_gib": 1.0})
        result = ran(CHANGES | {"data.source": str(prompts), "rewards": (reward,), "optim.max_steps": 3})
        children = psutil.Process().children(recursive=True)
        assert not [one for one in children if "guarded_code" in " ".join(one.cmdline())], "nobody is left"
        return result

    return go


def test_a_run_lives_with_code_that_seldom_fails(run_by):
    result = run_by(SELDOM)
    lines = [
        parse_json(line) for line in (result.folder.path / FILE).read_text(encoding="utf-8").splitlines()
    ]
    noted = [line for line in lines if line["notes"]]
    assert result.record.state == "finished", load_catalogue("en").say(result.record.diagnosis.why)
    assert noted and len(noted) <= 0.2 * len(lines) and all(line["total"] is None for line in noted)
    assert list((result.folder.path / "rewards").glob("mine-*.py")), "what judged it can be read"


def test_a_run_whose_code_fails_on_every_second_answer_stops_with_the_row(run_by):
    result = run_by(OFTEN)
    assert result.record.state == "failed"
    diagnosis = result.record.diagnosis
    for language in ("en", "zh-CN"):
        said = load_catalogue(language).say(diagnosis.what) + load_catalogue(language).say(diagnosis.why)
        assert "mine" in said and "LookupError: no such answer (line 5)" in said
