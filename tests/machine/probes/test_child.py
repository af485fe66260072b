"""Whatever a child process does is an answer: it may fail, hang, die, be absent or leave others behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from studio.machine.probes.child import ask_program, describe_end, run_child
from tests.each_time import rarely
from tests.machine.probes.tools import make_program, site_with

ROOT = Path(__file__).resolve().parents[3]
BROKEN = """
def deeper():
    raise RuntimeError("Internal Triton PTX codegen error\\n`ptxas` stderr:\\nptxas fatal   : Unsupported .version")
try:
    {}["x"]
except KeyError:
    deeper()
"""


def ask(code, timeout_s=20):
    return ask_program([sys.executable, "-c", code], timeout_s=timeout_s, environment=os.environ)


def test_facts_are_merged_and_survive_what_comes_later():
    answer = ask(
        "import os; print('noise'); print('FACTS {\"a\": 1}'); print('FACTS {\"a\": 2, \"b\": [3]}', flush=True);"
        "print('FACTS {torn', flush=True); os._exit(5)"
    )
    assert answer.facts == {"a": 2, "b": [3]}
    assert answer.error == "It ended with exit code 5."


@pytest.mark.skipif(not hasattr(os, "pread"), reason="Windows: what a child said is read at its end")
def test_what_a_child_knows_already_is_heard_while_it_runs(tmp_path):
    """It goes on only once it was heard."""
    sign, heard = tmp_path / "heard", []
    code = (
        "import os, sys, time; print('FACTS {\"a\": 1}', flush=True)\n"
        f"while not os.path.exists({str(sign)!r}): time.sleep(0.02)\n"
        "print('FACTS {\"b\": 2}', flush=True)"
    )

    def hear(facts):
        heard.append(dict(facts))
        sign.touch()

    answer = ask_program([sys.executable, "-c", code], timeout_s=20, environment=os.environ, heard=hear)
    assert heard[0] == {"a": 1} and answer.facts == {"a": 1, "b": 2} and not answer.error


@pytest.mark.skipif(
    not hasattr(os, "pread"), reason="only on systems that can read what another process writes"
)
def test_a_child_that_said_enough_is_ended_with_what_it_started(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('FACTS {\"other\": %d}' % other.pid, flush=True); time.sleep(60)"
    )
    started = time.monotonic()
    answer = ask_program(
        [sys.executable, "-c", code],
        timeout_s=50,
        environment=os.environ,
        enough=lambda facts: "other" in facts,
    )
    assert answer.cut and not answer.error and not answer.timed_out and time.monotonic() - started < 30
    assert not psutil.pid_exists(answer.facts["other"]) or (
        psutil.Process(answer.facts["other"]).status() == psutil.STATUS_ZOMBIE
    )


def test_the_whole_text_of_the_last_exception_is_kept():
    error = ask(BROKEN).error
    assert error.splitlines() == [
        "RuntimeError: Internal Triton PTX codegen error",
        "`ptxas` stderr:",
        "ptxas fatal   : Unsupported .version",
    ]


@pytest.mark.parametrize(
    "code, error",
    [
        ("pass", ""),
        ("raise SystemExit('PyTorch sees no GPU')", "PyTorch sees no GPU"),
        ("import os; os.abort()", "It was ended by signal 6 (SIGABRT)."),
        ("import os; os._exit(77)", "It ended with exit code 77."),
        (
            "import os; os.write(2, b'what():  bad_alloc'); os._exit(134)",
            "It ended with exit code 134. Its last words: what():  bad_alloc",
        ),
    ],
)
def test_how_it_ended(code, error):
    assert ask(code).error == error


def test_an_access_violation_is_named_by_its_number():
    assert describe_end(0xC0000005) == "It ended with exit code 3221225477 (0xC0000005)."


@pytest.mark.computing
def test_a_hang_ends_and_takes_its_children_with_it(tmp_path):
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print('FACTS {\"child\": %d}' % child.pid, flush=True); time.sleep(600)"
    )
    started = time.monotonic()
    answer = ask(code, timeout_s=1.5)
    assert answer.timed_out and answer.error == "It did not answer within 1.5 s."
    assert time.monotonic() - started < 10
    psutil.wait_procs(
        [psutil.Process(answer.facts["child"])] if psutil.pid_exists(answer.facts["child"]) else [], 5
    )
    assert not psutil.pid_exists(answer.facts["child"]) or (
        psutil.Process(answer.facts["child"]).status() == psutil.STATUS_ZOMBIE
    )


@pytest.mark.parametrize(
    ("does", "ends"), [rarely("while time.time() < t: pass", True), ("time.sleep(2.4)", False)]
)
def test_a_child_that_gets_on_is_waited_for(tmp_path, does, ends):
    (tmp_path / "slow.py").write_text(
        f"import time\nt = time.time() + 2.4\ndef work():\n    {does}\nwork()\nprint('FACTS {{\"a\": 1}}')"
    )
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    answer = run_child("slow", timeout_s=1.5, environment=variables)
    assert answer.timed_out is not ends and (answer.facts == {"a": 1}) is ends
    if not ends and hasattr(signal, "SIGUSR1"):
        assert answer.error.startswith("It did not answer within 1.5 s. It was in work (")


@pytest.mark.computing
def test_a_probe_whose_parent_was_killed_ends_by_itself(tmp_path):
    (tmp_path / "hang.py").write_text(
        "import os, pathlib, time\npathlib.Path(os.environ['SAYS']).write_text(str(os.getpid()))\ntime.sleep(600)"
    )
    code = (
        "import os; from studio.machine.probes.child import run_child; "
        "run_child('hang', timeout_s=2.0, environment=dict(os.environ))"
    )
    says = tmp_path / "pid"
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "kernels")])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths, "SAYS": str(says)}
    )
    try:
        deadline = time.monotonic() + 10
        while not (says.exists() and says.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        probe = psutil.Process(int(says.read_text()))
        parent.kill()
        parent.wait()
        assert probe.is_running()
        psutil.wait_procs([probe], 8)
        assert not probe.is_running() or probe.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()
        parent.wait()


def test_a_program_that_is_absent_or_for_another_processor(tmp_path):
    assert "FileNotFoundError" in ask_program(["no-such-program"], timeout_s=2, environment=os.environ).error
    foreign = make_program(tmp_path, "foreign", "")
    foreign.write_bytes(b"MZ\x90\x00")
    assert "OSError" in ask_program([str(foreign)], timeout_s=2, environment=os.environ).error


def test_a_module_runs_in_the_environment_given(tmp_path):
    environment = site_with(tmp_path, "import os; print('FACTS {\"seen\": \"%s\"}' % os.environ['MARK'])")
    answer = run_child("this", timeout_s=20, environment={**environment, "MARK": "repaired"})
    assert answer.facts == {"seen": "repaired"} and answer.error == ""
