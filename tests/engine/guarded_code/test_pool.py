"""A person's code in children: whatever it does, its rows get an answer, no token is seen and nobody is left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from studio.engine.guarded_code.confine import SYSCALLS, clean_environment
from studio.engine.guarded_code.pool import CodeLimits, CodePool, Failed, Program
from studio.machine.probes.probe_context import PROGRAM
from tests.slowness import slowness

CODE = """
import os, time

def reward(completions, **columns):
    return [judge(words) for words in completions]

def judge(words):
    if words == "loop":
        while True:
            pass
    if words == "pattern":
        import re
        re.match(r"(a+)+$", "a" * 80 + "b")
    if words == "sleep":
        time.sleep(1000)
    if words == "memory":
        bytearray(10 * 2**30)
    if words == "hoard":
        held = []
        while True:
            held.append(bytes(10**7))
    if words == "fork":
        while True:
            os.fork()
    if words == "fork in C":
        import ctypes
        library = ctypes.CDLL(None, use_errno=True)
        while library.fork() >= 0:
            pass
        raise OSError(ctypes.get_errno(), "fork")
    if words == "thread":
        import threading
        one = threading.Thread(target=time.sleep, args=(0,))
        one.start()
        one.join()
    if words == "program":
        import subprocess, sys
        subprocess.run([sys.executable, "-V"])
    if words == "network":
        import urllib.request
        urllib.request.urlopen("http://127.0.0.1:9", timeout=1)
    if words == "network in C":
        import _socket
        _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    if words == "raise":
        raise KeyError("score")
    if words == "leave":
        raise SystemExit(0)
    if words == "exit":
        os._exit(3)
    if words == "abort":
        os.abort()
    if words == "print":
        for _ in range(10_000):
            print("x" * 1000)
        os.write(1, b"not JSON\\n")
        print("the end")
    if words == "environment":
        print(sorted(os.environ))
    if words == "words":
        return "good"
    return float(len(words))
"""
FAST = CodeLimits(batch_s=1.0, row_s=0.5, memory_bytes=2**30)


@pytest.fixture
def judge(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    with CodePool(Program(path=path, function="reward"), FAST, seed=3, children=1) as pool:
        yield lambda *words: (pool.judge([row(one) for one in words]), pool.said)
    assert not marked()


SLEEP = "import time; time.sleep(1000)"


def row(words, **columns):
    return {
        "answer": words, "prompt": [{"role": "user", "content": "q"}], "columns": columns, "expected": None,
        "length_tokens": 1, "ended": True,
    }  # fmt: skip


def marked():
    """Children of ours that still are."""
    return [
        one for one in psutil.Process().children(recursive=True) if "guarded_code" in " ".join(one.cmdline())
    ]


QUICK = ("fork", "raise")
ENDS = {
    "loop": ("timeout", "0.5"),
    "pattern": ("timeout", "0.5"),
    "sleep": ("timeout", "0.5"),
    "memory": ("memory", "1 GiB"),
    "fork": ("raised", "may not start other programs"),
    "program": ("raised", "may not start other programs"),
    "network": ("raised", "may not use the network"),
    "raise": ("raised", "KeyError: 'score'"),
    "leave": ("raised", "SystemExit: 0"),
    "exit": ("exited", "3"),
    "abort": ("exited", "SIGABRT"),
    "words": ("wrong_type", "str"),
}


@pytest.mark.parametrize(
    "words",
    [words if words in QUICK else pytest.param(words, marks=pytest.mark.computing) for words in sorted(ENDS)],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
def test_one_bad_row_costs_itself_alone(judge, words):
    scores, _ = judge("a", "bb", words, "cccc")
    assert scores[:2] == [1.0, 2.0] and scores[3] == 4.0
    kind, detail = ENDS[words]
    assert isinstance(scores[2], Failed) and scores[2].kind == kind and detail in scores[2].detail
    assert judge("a")[0] == [1.0], "the next one is judged again"


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp")
def test_code_of_c_cannot_fork_or_connect_either(judge):
    import platform

    assert platform.machine() in SYSCALLS
    fork, network = judge("fork in C", "network in C")[0]
    assert "Operation not permitted" in fork.detail or "[Errno 1]" in fork.detail
    assert "Permission denied" in network.detail
    assert judge("thread")[0] == [6.0], "threads are its own"


@pytest.mark.computing
def test_memory_taken_bit_by_bit_ends_the_row(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    limits = CodeLimits(batch_s=60, row_s=60, memory_bytes=2**29)
    with CodePool(Program(path=path, function="reward"), limits, seed=3, children=1) as pool:
        (score,) = pool.judge([row("hoard")])
    assert score == Failed("memory", "0.5 GiB")


def test_prints_do_not_disturb_and_are_kept(judge):
    scores, said = judge("print", "a")
    assert scores == [5.0, 1.0]
    assert said.endswith("the end\n") and len(said) <= 2000


def test_no_token_is_visible(judge, monkeypatch):
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "WANDB_API_KEY",
    ):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    scores, said = judge("environment")
    assert scores == [11.0] and "PATH" in said
    assert "TOKEN" not in said and "KEY" not in said and "HF_" not in said
    assert "secret" not in json.dumps(clean_environment("folder", 1))
    assert clean_environment("folder", 1)["HOME"] == "folder", (
        "what a library has stored at home is not found"
    )


def test_wrong_length_is_found_row_by_row(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def reward(completions, **more):\n    return [1.0 for words in completions if words != 'bad']\n",
        "utf-8",
    )
    with CodePool(Program(path=path, function="reward"), FAST, seed=1, children=1) as pool:
        assert pool.judge([row("a"), row("bad"), row("b")]) == [1.0, Failed("wrong_length", "0 / 1"), 1.0]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def f(completions, answer, **more): return [float(c == a) for c, a in zip(completions, answer)]", 1.0),
        ("def f(completions, **more): return [len(c[0]['content']) for c in completions]", 2.0),
        ("def f(prompts, completions): return [len(p + c) for p, c in zip(prompts, completions)]", 3.0),
        ("def f(completions, prompts): return [p[-1]['content'] == 'q' for p in prompts]", 1.0),
        ("async def f(completions, **more): return [7 for c in completions]", 7.0),
        ("def f(completions, **more):\n import math\n return [None if c == '42' else math.nan for c in completions]",
         None),
        ("def f(data_source, solution_str, ground_truth, extra_info=None): return solution_str == ground_truth", 1.0),
        ("def f(solution_str, ground_truth): return {'score': 0.25, 'acc': True}", 0.25),
        ("import numpy as np\ndef f(completions, **more): return np.ones(len(completions)) / 2", 0.5),
        ("from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 3\n"
         "def f(completions, **more): return [A().x for c in completions]", 3.0),
    ],
)  # fmt: skip
def test_both_habits_of_the_field(tmp_path, code, wanted):
    path = tmp_path / "mine.py"
    path.write_text(code, encoding="utf-8")
    asked = {**row("42", answer="42"), "expected": "42"}
    with CodePool(Program(path=path, function="f"), CodeLimits(), seed=1, children=1) as pool:
        assert pool.judge([asked]) == [wanted]
        assert pool.judge([asked, asked]) == [wanted, wanted]


def test_random_numbers_depend_on_what_is_judged_alone(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import random\ndef f(completions, **m): return [random.random() for c in completions]", "utf-8"
    )

    def draw(*batches):
        with CodePool(Program(path=path, function="f"), CodeLimits(), seed=5, children=1) as pool:
            return [pool.judge([row(words) for words in batch]) for batch in batches]

    first, second = draw(["a", "b"], ["c"])
    assert draw(["c"], ["a", "b"]) == [second, first] and first[0] != first[1]


@pytest.mark.computing
@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_programs_that_it_may_start_end_with_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import subprocess, sys, time\n"
        "def f(completions, **m):\n"
        f"    sleep = [sys.executable, '-c', {SLEEP!r}]\n"
        "    for i in range(5):\n"
        "        subprocess.Popen(sleep, start_new_session=True)\n"
        "    if completions == ['hang']:\n"
        "        time.sleep(1000)\n"
        "    return [1.0]\n",
        "utf-8",
    )
    limits = CodeLimits(row_s=2.0 * slowness(), processes=True)
    with CodePool(Program(path=path, function="f"), limits, seed=1, children=1) as pool:
        assert isinstance(pool.judge([row("hang")])[0], Failed)
        assert sleepers() == []
        assert pool.judge([row("go")]) == [1.0] and len(sleepers()) == 5
    assert sleepers() == []


@pytest.mark.skipif(sys.platform == "win32", reason="only on POSIX: there a job object ends them")
def test_a_program_without_an_environment_ends_too(tmp_path):
    """So is one, for a moment, that is just being started: one of five outlived its time limit once in a while."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import subprocess, sys, time\n"
        "def f(completions, **m):\n"
        f"    sleep = [sys.executable, '-c', {SLEEP!r}]\n"
        "    subprocess.Popen(sleep, start_new_session=True, env={})\n"
        "    time.sleep(1000)\n",
        "utf-8",
    )
    limits = CodeLimits(row_s=2.0 * slowness(), processes=True)
    with CodePool(Program(path=path, function="f"), limits, seed=1, children=1) as pool:
        assert pool.judge([row("hang")])[0].kind == "timeout"
        assert sleepers() == []


def sleepers():
    return [
        one.pid for one in psutil.process_iter(["cmdline", "status"])
        if SLEEP in (one.info["cmdline"] or []) and one.info["status"] != "zombie"
    ]  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.computing
@pytest.mark.parametrize("words", ["loop", "sleep", "pattern"])
def test_a_killed_studio_leaves_nobody(tmp_path, words):
    """kill -9 of the parent in mid-call: the child ends within its limit, also where a pattern holds Python's lock."""
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    runner = f"""
from pathlib import Path
from studio.engine.guarded_code.pool import CodePool, CodeLimits, Program
pool = CodePool(Program(path=Path({str(path)!r}), function="reward"), CodeLimits(row_s=2.0), seed=1, children=1)
pool.load()
print(pool._children[0]._process.pid, flush=True)
pool.judge([dict({row(words)!r})])
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", runner], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(PROGRAM)}
    )
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(0.5)
    assert child.is_running()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=8 * slowness())


def test_its_folder_goes_with_it(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import os\ndef f(completions, **m):\n    open('x', 'w').close()\n    print(os.getcwd())\n    return [1]"
    )
    with CodePool(Program(path=path, function="f"), CodeLimits(), seed=1, children=1) as pool:
        assert pool.judge([row("a")]) == [1.0]
        folder = Path(pool.said.strip())
        assert folder.is_dir() and folder != Path.cwd()
    assert not folder.exists()
