"""kill -9 at random moments, with a checkpoint each step: the run always resumes, and ends with the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def kill_and_resume(model: Path, data: Path, work: Path, kills: int) -> dict:
    """Run crash_runner.py and return what it printed."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("crash_runner.py")),
            str(model),
            str(data),
            str(work),
            str(kills),
        ],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.computing
def test_twenty_kills(tiny_models, chat_file, tmp_path):
    answer = kill_and_resume(tiny_models("llama"), chat_file, tmp_path, 20)
    assert answer["kills"] == 20 and answer["equal"]
    assert answer["resumed_from"] == sorted(answer["resumed_from"]), (
        "a resume went back behind an earlier one"
    )
    assert answer["resumed_from"][-1] > 10
