"""What breaks in mid-answer, by the real thing in a process of its own: a kernel of Triton's, a card, the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.engine.fault_recovery import is_sticky

pytestmark = pytest.mark.computing
ROOT = Path(__file__).resolve().parents[3]


def run(kind: str, **more: str) -> dict:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.generation.faulty_runner", kind],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


def test_a_kernel_that_fails_gives_way_to_its_twin_and_all_answers_go_on():
    told = run("kernel", TRITON_INTERPRET="1")
    assert told["launches"] > 20 and told["kernels"] == {}, "Triton's kernel was at work until then"
    assert told["found"] == told["wanted"] and set(told["reasons"]) == {"limit"}
    assert not told["error"] and not told["slow"]


def test_a_lost_card_ends_the_answers_with_its_own_words_and_is_not_tried_again():
    told = run("sticky", TRITON_INTERPRET="1")
    assert is_sticky(RuntimeError(told["error"]))
    assert told["kernels"] == {"rms_norm": "triton"} and None in told["reasons"]
    for found, wanted in zip(told["found"], told["wanted"], strict=True):
        assert found == wanted[: len(found)] and len(found) < len(wanted)


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux a process's memory can be bounded so")
def test_an_arena_that_the_system_refuses_becomes_a_smaller_one_and_all_are_answered():
    told = run("memory")
    assert told["least"] <= told["pages"] < told["whole"] // 2
    assert told["found"] == told["wanted"] and set(told["reasons"]) == {"limit"} and not told["slow"]
