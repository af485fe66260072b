"""The verdict on a run that stands still, from recorded stacks and invented measures."""

from __future__ import annotations

import os

import pytest

from studio.core.i18n import LANGUAGES, load_catalogue
from studio.core.stall_timeout import BUDGETS_S
from studio.machine.stall_diagnosis import (
    StackFrame,
    add_sources,
    blocked_frame,
    choose_action,
    choose_stack,
    find_cause,
    growth,
    is_working,
    read_stacks,
)

GIB = 2**30
STANDARD = os.path.dirname(os.__file__)
PACKAGES = "/home-of/someone/.venv/lib/python3.12/site-packages"
FULL = {"vram_used_bytes": 11.9 * GIB, "vram_total_bytes": 12 * GIB}
ROOMY = {"vram_used_bytes": 5 * GIB, "vram_total_bytes": 12 * GIB}
DUMP = f"""=== 2026-11-20 10:00:00 ===
Thread 0x0000000000000001 (most recent call first):
  File "/old/stacks.py", line 1 in before

Timeout (0:01:02)!
Thread 0x00007f0000000abc (most recent call first):
  File "{STANDARD}/threading.py", line 327 in wait
  File "{STANDARD}/queue.py", line 171 in get
  File "{PACKAGES}/torch/utils/data/dataloader.py", line 1281 in _try_get_data
  File "{PACKAGES}/torch/nn/modules/module.py", line 1775 in _call_impl
  File "/opt/checkout/studio/engine/trainer.py", line 205 in _accumulate
  File "/opt/checkout/studio/services/worker.py", line 41 in _work
  File "<frozen runpy>", line 198 in _run_module_as_main

Current thread 0x00007f0000000def [MainThread] (most recent call first):
  File "{STANDARD}/selectors.py", line 468 in select
  ...
Extension modules: numpy.core, torch._C (total: 2)
"""
FRAMES = (
    StackFrame(f"{PACKAGES}/torch/autograd/graph.py", 841, "_engine_run_backward"),
    StackFrame("/opt/checkout/studio/engine/trainer.py", 208, "_accumulate"),
)


def test_the_newest_stacks_are_read():
    stacks = read_stacks(DUMP)
    assert set(stacks) == {0x7F0000000ABC, 0x7F0000000DEF}
    frames = stacks[0x7F0000000ABC]
    assert len(frames) == 7 and (frames[2].line, frames[2].name) == (1281, "_try_get_data")
    assert choose_stack(stacks, 0x7F0000000DEF) == stacks[0x7F0000000DEF]
    assert choose_stack(stacks, 7) == frames  # unknown: the one that is in the engine
    assert read_stacks("=== py-spy ===\nThread 1 (active)\n    f (x.py:1)\n") == {}


def test_the_frame_that_says_something_is_named_without_anybodys_home():
    frames = read_stacks(DUMP)[0x7F0000000ABC]
    assert str(blocked_frame(frames)) == "torch/utils/data/dataloader.py:1281 in _try_get_data"
    found = find_cause(frames, {})
    say = load_catalogue("en").say(found.message)
    assert "studio/engine/trainer.py:205 in _accumulate" in say and "someone" not in say
    windows = StackFrame(
        "C:\\Users\\张三\\.venv\\Lib\\site-packages\\torch\\cuda\\streams.py", 9, "synchronize"
    )
    assert str(windows) == "torch/cuda/streams.py:9 in synchronize"
    assert str(blocked_frame(frames[:2])) == "threading.py:327 in wait" and blocked_frame(()) is None


@pytest.mark.parametrize(
    ("verdict", "frames", "measures"),
    [
        ("blocked", FRAMES, {}),
        ("blocked", (), {}),
        ("blocked", FRAMES, ROOMY | {"gpu_utilisation": 0.4, "spills": 1.0}),
        ("compiling", FRAMES, {"compilers": 1.0}),
        ("compiling", FRAMES, {"cache_growth_files": 2.0}),
        ("compiling", (StackFrame(f"{PACKAGES}/triton/compiler/compiler.py", 3, "compile"), *FRAMES), {}),
        ("spilling", FRAMES, FULL | {"shared_used_bytes": 2.0 * GIB}),
        ("spilling", FRAMES, FULL | {"spills": 1.0, "gpu_utilisation": 1.0}),
        ("gpu_busy", FRAMES, FULL | {"spills": 1.0, "shared_used_bytes": 0.0, "gpu_utilisation": 1.0}),
        ("blocked", FRAMES, FULL | {"spills": 0.0}),
        ("growing", FRAMES, FULL | {"spills": 0.0, "vram_growth_bytes": 3.0 * GIB}),
        ("blocked", FRAMES, ROOMY | {"vram_growth_bytes": 3.0 * GIB}),
        (
            "growing",
            FRAMES,
            {"ram_total_bytes": 16.0 * GIB, "ram_available_bytes": 0.2 * GIB, "rss_growth_bytes": 9.0 * GIB},
        ),
        ("reading", FRAMES, {"waits_for_disk": 1.0}),
        ("reading", FRAMES, {"read_bytes_per_s": 5e6, "cpu_share": 0.1}),
        ("blocked", FRAMES, {"read_bytes_per_s": 5e6, "cpu_share": 1.0}),
        ("reading", (StackFrame(f"{PACKAGES}/datasets/arrow_reader.py", 9, "read"), *FRAMES), {}),
        ("reading", (StackFrame("/x/rows.py", 9, "rows", "line = file.readline()"), *FRAMES), {}),
        ("gpu_busy", FRAMES, ROOMY | {"gpu_utilisation": 1.0}),
        ("output_blocked", (StackFrame("/x/a.py", 1, "f", "print(words)"),), {"output_full": 1.0}),
        ("blocked", (StackFrame("/x/a.py", 1, "f", "print(words)"),), {"output_full": 0.0}),
        ("blocked", FRAMES, {"output_full": 1.0}),
        (
            "output_blocked",  # Windows does not tell whether a stream is full
            (
                StackFrame(
                    f"{STANDARD}/logging/__init__.py", 1113, "emit", "stream.write(msg + self.terminator)"
                ),
            ),
            {},
        ),
        ("blocked", (StackFrame("/x/a.py", 1, "f", "file.write(data)"),), {}),
    ],
)
def test_each_cause_has_its_verdict_in_both_languages(verdict, frames, measures):
    found = find_cause(frames, measures)
    assert found.verdict == verdict
    for language in LANGUAGES:
        said = load_catalogue(language).say(found.message)
        assert "stall." not in said and "{" not in said
        assert not frames or str(blocked_frame(frames)) in said


def test_compilers_and_big_files_are_work_but_not_for_ever():
    def works(phase, measures, waited_s, limit_s=60.0):
        return is_working(phase, FRAMES, measures, waited_s, limit_s, BUDGETS_S)

    assert works("train", {"compilers": 1.0}, 120) and not works("train", {"compilers": 1.0}, 601)
    moving = {"read_bytes_per_s": 2e7}
    assert works("load", moving, 901, 900) and not works("load", moving, 3601, 900)
    assert not works("train", moving, 61) and not works("load", {"read_bytes_per_s": 1e5}, 901, 900)


@pytest.mark.parametrize(
    ("on_stall", "verdict", "unattended", "supervised", "action"),
    [
        ("auto", "blocked", True, True, "restart"),
        ("auto", "blocked", False, True, "ask"),
        ("auto", "output_blocked", True, True, "wait"),
        ("auto", "blocked", True, False, "wait"),
        ("restart", "blocked", False, True, "restart"),
        ("restart", "blocked", False, False, "wait"),
        ("stop", "blocked", True, True, "stop"),
        ("wait", "blocked", True, True, "wait"),
    ],
)
def test_what_follows(on_stall, verdict, unattended, supervised, action):
    assert choose_action(on_stall, verdict, unattended=unattended, supervised=supervised) == action


def test_growth_is_a_rise_all_along_and_nothing_else():
    noise = 64.0
    steady = [1000.0 + step * 10 for step in range(50)]
    assert growth(steady, noise) == pytest.approx(400.0)
    assert growth(steady[:49], noise) == 0.0
    assert growth([1000.0 + (step % 2) * 500 for step in range(50)], noise) == 0.0  # swings
    assert growth([1000.0] * 25 + [2000.0] * 25, noise) == 0.0  # filled once
    assert growth([1000.0] * 49 + [9000.0], noise) == 0.0  # one long row
    assert growth([1000.0 + step * 0.1 for step in range(50)], noise) == 0.0  # below the noise
    assert growth([1000.0 - step * 10 for step in range(50)], noise) == 0.0


def test_sources_come_from_the_reader():
    (frame,) = add_sources((StackFrame("a.py", 3, "f"),), lambda file, line: f"  {file}-{line}\n")
    assert frame.source == "a.py-3"
