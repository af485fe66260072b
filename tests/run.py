"""Runs ruff and the tests: `launch.py test [--all] [--report FOLDER] [--json] [arguments of pytest]`.

The quick tests share the processors, a file at a time, and with `--all` those marked `computing` do so too. The other
slow ones (browsers, clocks) run one after another, so that none is late because of another; beside them, and about as
long, runs what is marked `long`: it mostly waits, or has minutes for what takes seconds. What those two leave of the
processors goes to the tests marked `patient`, which compute and have no limit of time. `--report` writes a JUnit file
of each set into a folder. At the end stands what each folder's tests took, and a folder beyond its budget fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as tree
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4
"""Each needs up to 1.5 GB."""
NICENESS = 10
"""Of the patient tests: a tenth of a processor that others want too, all of one that nobody wants."""
PATIENCE_S = 1800
"""What a patient test may take: up to 50 s of a processor, of which a tenth may be left."""
ALONE_S = 900
"""What a slow or a long test may take: up to 130 s on two quiet cores, which others use too."""
NO_TEST = 5
"""pytest's word for arguments that chose no test of a set."""
SETS = {
    "quick": "not slow and not computing and not patient and not long and not gpu",
    "computing": "(computing or not slow) and not patient and not long and not gpu",
    "patient": "patient and not gpu",
    "slow": "slow and not computing and not long and not gpu",
    "long": "long and not gpu",
}
"""What pytest is asked for: "computing" has the quick tests too."""
BUDGETS = ROOT / "tests" / "time_budgets.json"
"""Seconds that a folder's tests of a set may take together: three times what they took on two quiet cores."""
SHOWN = 10
"""The slowest tests that are named."""


def main(words: list[str]) -> int:
    """Run what `words` ask for and return 0 when all of it passed, and some test ran."""
    if "--report" in words:
        place = words.index("--report")
        return run(words[:place] + words[place + 2 :], Path(words[place + 1]).absolute())
    with tempfile.TemporaryDirectory() as folder:
        return run(words, Path(folder))


def run(words: list[str], report: Path) -> int:
    """Run what `words` ask for, a JUnit file of each set in `report`; return the exit code."""
    as_json, everything = "--json" in words, "--all" in words
    rest = [word for word in words if word not in ("--json", "--all")]
    output = sys.stderr if as_json else sys.stdout

    def test(name: str, *more: str) -> list[str]:
        return ["pytest", "-m", SETS[name], *more, *rest, f"--junitxml={report / name}.xml"]

    first = "computing" if everything else "quick"
    # In the order of the folders: sorted by their number of tests, a file with few long ones comes last, alone.
    shared = ("-n", str(min(os.cpu_count() or 1, WORKERS)), "--dist", "loadfile", "--no-loadscope-reorder")
    steps = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        f"{first} tests": test(first, *shared),
    }
    answers = {name: finish(*start(name, step, output)) for name, step in steps.items()}
    if everything:
        alone = ("-p", "no:cacheprovider")
        patient = test("patient", *shared, *alone, "-o", f"timeout={PATIENCE_S}")
        slow, long = (test(name, "-o", f"timeout={ALONE_S}") for name in ("slow", "long"))
        with (
            beside("patient tests", patient, output) as computes,
            beside("long tests", [*long, *alone], output) as waits,
        ):
            answers["slow tests"] = finish(*start("slow tests", slow, output))
            answers["long tests"] = finish(*waits)
            answers["patient tests"] = finish(*computes)
    tests = [answer["code"] for name, answer in answers.items() if name.endswith("tests")]
    passed = all(answer["code"] in (0, NO_TEST) for answer in answers.values()) and 0 in tests
    folders, slowest = read_times(report)
    for line in (*tell_folders(folders), *slowest[:SHOWN]):
        print(line, file=output)
    over = find_over(folders, json.loads(BUDGETS.read_text(encoding="utf-8")) if BUDGETS.exists() else {})
    for line in over:
        print(line, file=sys.stderr)
    passed = passed and not over
    if as_json:
        print(json.dumps({"passed": passed, "steps": answers, "folders": folders}))
    return 0 if passed else 1


def read_times(report: Path) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return the seconds of each folder's tests by set, {"data": {"quick": 71.3}}, and a line a test, slowest first."""
    folders: dict[str, Counter[str]] = {}
    tests: list[tuple[float, str]] = []
    for file in sorted(report.glob("*.xml")):
        for case in tree.parse(file).iter("testcase"):
            place, took_s = case.get("classname", ""), float(case.get("time", 0))
            folder = place.split(".")[1] if place.count(".") > 1 else "tests"
            folders.setdefault(folder, Counter())[file.stem] += took_s
            tests.append((took_s, f"{took_s:7.1f} s  {place.replace('.', '/')}::{case.get('name')}"))
    rounded = {
        name: {kind: round(took_s, 1) for kind, took_s in kinds.items()}
        for name, kinds in sorted(folders.items())
    }
    return rounded, [line for _, line in sorted(tests, reverse=True)]


def tell_folders(folders: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield the table of what each folder's tests took."""
    kinds = sorted({kind for took in folders.values() for kind in took})
    yield "seconds of tests  " + "".join(f"{kind:>10}" for kind in kinds)
    for name, took in folders.items():
        yield f"{name:<18}" + "".join(f"{took.get(kind, 0):>10.1f}" for kind in kinds)


def find_over(
    folders: Mapping[str, Mapping[str, float]], budgets: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Return a sentence for each folder whose tests of a set took longer than they may."""
    return [
        f"tests/{name}: the {kind} tests took {took_s:.0f} s, {budgets[name][kind]:.0f} s are allowed"
        for name, kinds in folders.items()
        for kind, took_s in kinds.items()
        if took_s > budgets.get(name, {}).get(kind, float("inf"))
    ]


def start(name: str, step: list[str], output: IO) -> tuple[subprocess.Popen, float]:
    """Start one step, which writes to `output`; return its process and the time."""
    print("$ " + " ".join(step), file=sys.stderr, flush=True)
    # One thread each: the workers have the processors already.
    threads = {"OMP_NUM_THREADS": "1"} if name in ("quick tests", "computing tests", "patient tests") else {}
    # Hundreds of tests start a Python, which without __pycache__ compiles the studio anew: 1.3 s each instead of 0.8.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command, begun_s = [sys.executable, "-P", "-m", *step], time.monotonic()
    if name != "patient tests" or sys.platform == "win32":
        return subprocess.Popen(command, cwd=ROOT, env=threads | kept, stdout=output), begun_s
    # Linux shares a processor out among sessions first, and browsers and studios have their own.
    process = subprocess.Popen(command, cwd=ROOT, env=threads | kept, stdout=output, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
    with suppress(OSError):  # another system, or one without such groups
        Path(f"/proc/{process.pid}/autogroup").write_text(str(NICENESS), encoding="utf-8")
    return process, begun_s


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
