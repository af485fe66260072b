"""Runs the tests that need a GPU and writes down what came out: `gpu_tests.py --out FILE [pytest arguments]`.

Without further arguments all of tests/kernels, tests/models and tests/engine. Answers with pytest's exit code.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.child import ask_driver  # noqa: E402 (the folder above must be on the path first)

FOLDERS = ("tests/kernels", "tests/models", "tests/engine")
PACKAGES = ("torch", "triton", "transformers", "peft", "bitsandbytes", "pytest")
WORDS_LIMIT = 200


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the summary; printed when left out")
    own, rest = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}"]
        code = subprocess.run([*command, *(rest or FOLDERS)], cwd=ROOT).returncode
        found = ElementTree.parse(report).getroot() if report.exists() else None
    if found is None:
        return code
    summary = "\n".join([*describe(found), *describe_machine(rest), "", *list_files(found), ""])
    if own.out is None:
        print(summary)
    else:
        own.out.write_text(summary, encoding="utf-8")
    return code


def describe(found: ElementTree.Element) -> list[str]:
    """Return the one line that matters."""
    counts = Counter(outcome(case) for case in found.iter("testcase"))
    seconds = sum(float(case.get("time", 0)) for case in found.iter("testcase"))
    words = ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))
    return [f"Tests that need a GPU: {words}, in {seconds:.0f} s", ""]


def describe_machine(rest: list[str]) -> list[str]:
    """Return where and how it was."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if _installed(name)]
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [
        f"date      {date}",
        f"command   python benchmarks/gpu_tests.py {shlex.join(rest)}".rstrip(),
        f"GPU       {ask_driver('name')}, driver {ask_driver('driver_version')}",
        f"versions  Python {platform.python_version()}, {', '.join(versions)}",
    ]


def list_files(found: ElementTree.Element) -> list[str]:
    """Return a line a file, what the tests measured, and what failed."""
    files: dict[str, list[ElementTree.Element]] = {}
    for case in found.iter("testcase"):
        files.setdefault(case.get("classname", "").replace(".", "/") + ".py", []).append(case)
    lines, measured, failed = [], [], []
    for file, cases in sorted(files.items()):
        counts = Counter(map(outcome, cases))
        seconds = sum(float(case.get("time", 0)) for case in cases)
        words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), reverse=True))
        lines.append(f"{seconds:8.1f} s  {file}: {words}")
        for case in cases:
            name = f"{file}::{case.get('name')}"
            measured += [f"{name}: {p.get('name')} = {p.get('value')}" for p in case.iter("property")]
            wrong = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
            if wrong is not None:
                words = " ".join(wrong.get("message", "").replace(f"{ROOT}/", "").split())
                failed.append(f"{name}: {words[:WORDS_LIMIT]}")
    if measured:
        lines += ["", "Measured by the tests", *measured]
    if failed:
        lines += ["", "Failed", *failed]
    return lines


def outcome(case: ElementTree.Element) -> str:
    """Return passed, failed or skipped."""
    tags = {child.tag for child in case}
    if tags & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in tags else "passed"


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
