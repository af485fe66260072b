"""kill -9 while answers are drawn, judged and learned from: the run goes on, and ends with the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.computing
@pytest.mark.parametrize(
    "changes", [{}, {"sampling.updates": 3, "sampling.beta": 0.05, "sampling.loss": "grpo"}]
)
def test_ten_kills(tiny_models, jsonl, tmp_path, changes):
    prompts = jsonl(
        tmp_path / "prompts.jsonl", [{"prompt": f"say {i}", "answer": f"yes {i}"} for i in range(12)]
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    runner = Path(__file__).with_name("rollout_crash_runner.py")
    given = [str(tiny_models("llama")), str(prompts), str(tmp_path), "10", json.dumps(changes)]
    done = subprocess.run(
        [sys.executable, str(runner), *given],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["kills"] == {"answers": 4, "rewards": 3, "train": 3}
    assert answer["equal"] and answer["same_answers"]
    assert answer["resumed_from"] == sorted(answer["resumed_from"]) and answer["resumed_from"][-1] > 5
