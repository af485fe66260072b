"""Runs ruff and the tests: `launch.py test [--all] [--report FOLDER] [--json] [arguments of pytest]`.

The quick tests share the processors, a file at a time, and with `--all` those marked `computing` do so too. The other
slow ones (browsers, clocks) run one after another, so that none is late because of another; beside them, and about as
long, runs what is marked `long`: it mostly waits, or has minutes for what takes seconds. `--report` writes a JUnit file
of each set into a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4
"""Each needs up to 1.5 GB."""
NO_TEST = 5
"""pytest's word for arguments that chose no test of a set."""
QUICK = "not slow and not gpu"
QUICK_AND_COMPUTING = "(not slow or computing) and not gpu"
SLOW = "slow and not computing and not long and not gpu"
LONG = "long and not gpu"


def main(words: list[str]) -> int:
    """Run what `words` ask for and return 0 when all of it passed, and some test ran."""
    as_json, everything = "--json" in words, "--all" in words
    rest = [word for word in words if word not in ("--json", "--all")]
    report = None
    if "--report" in rest:
        place = rest.index("--report")
        report = Path(rest[place + 1]).absolute()
        del rest[place : place + 2]
    output = sys.stderr if as_json else sys.stdout

    def test(name: str, chosen: str, *more: str) -> list[str]:
        file = [f"--junitxml={report / name}.xml"] if report else []
        return ["pytest", "-m", chosen, *more, *rest, *file]

    # In the order of the folders: sorted by their number of tests, a file with few long ones comes last, alone.
    shared = ("-n", str(min(os.cpu_count() or 1, WORKERS)), "--dist", "loadfile", "--no-loadscope-reorder")
    steps = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "quick tests": test("quick", QUICK_AND_COMPUTING if everything else QUICK, *shared),
    }
    answers = {name: finish(*start(name, step, output)) for name, step in steps.items()}
    if everything:
        with beside("long tests", test("long", LONG, "-p", "no:cacheprovider"), output) as running:
            answers["slow tests"] = finish(*start("slow tests", test("slow", SLOW), output))
            answers["long tests"] = finish(*running)
    tests = [answer["code"] for name, answer in answers.items() if name.endswith("tests")]
    passed = all(answer["code"] in (0, NO_TEST) for answer in answers.values()) and 0 in tests
    if as_json:
        print(json.dumps({"passed": passed, "steps": answers}))
    return 0 if passed else 1


def start(name: str, step: list[str], output: IO) -> tuple[subprocess.Popen, float]:
    """Start one step, which writes to `output`; return its process and the time."""
    print("$ " + " ".join(step), file=sys.stderr, flush=True)
    # One thread each: the workers have the processors already.
    threads = {"OMP_NUM_THREADS": "1"} if name == "quick tests" else {}
    command = [sys.executable, "-P", "-m", *step]
    return subprocess.Popen(command, cwd=ROOT, env=threads | os.environ, stdout=output), time.monotonic()


def finish(process: subprocess.Popen, started_s: float) -> dict[str, float]:
    """Wait for the end of a step and return its exit code and seconds."""
    return {"code": process.wait(), "seconds": round(time.monotonic() - started_s, 1)}


@contextmanager
def beside(name: str, step: list[str], output: IO) -> Iterator[tuple[subprocess.Popen, float]]:
    """Run one step while the body runs, which waits for it; what it wrote comes at the end, in one piece."""
    with tempfile.TemporaryFile() as file:
        running = start(name, step, file)
        try:
            yield running
        finally:
            running[0].kill()
            running[0].wait()
            file.seek(0)
            print(file.read().decode("utf-8", "replace"), file=output, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
