"""Which Python the .venv is made on: candidates are run, judged by their own words, refused with a reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from studio.installer import install, python_choice
from tests.python_facts import PYTHON_FACTS

ROOT = Path(__file__).resolve().parents[2]


def script(folder: Path, name: str, words: str) -> list[str]:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{words}\n", encoding="utf-8")
    path.chmod(0o755)
    return [str(path)]


def fake_python(folder: Path, name: str, **facts: object) -> list[str]:
    return script(folder, name, f"echo '{json.dumps(PYTHON_FACTS | {'path': name} | facts)}'")


def test_candidates_count_only_when_they_run(tmp_path):
    shim = script(tmp_path, "shim", "exit 127")
    mute = script(tmp_path, "mute", "exit 0")
    good = fake_python(tmp_path, "good")
    facts, problem, _ = python_choice.choose_python([[str(tmp_path / "absent")], shim, mute, good])
    assert facts["path"] == "good" and problem == ""


def test_conda_and_store_are_the_last_choice(tmp_path):
    conda = fake_python(tmp_path, "conda", conda=True)
    store = fake_python(tmp_path, "store", store=True)
    bare = fake_python(tmp_path, "bare", venv=False)
    regular = fake_python(tmp_path, "regular")
    assert python_choice.choose_python([conda, store, bare, regular])[0]["path"] == "regular"
    assert python_choice.choose_python([bare, conda, store])[0]["path"] == "conda"
    assert python_choice.choose_python([bare])[1:] == ("install.no_ensurepip", {"package": "python3.12-venv"})


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"version": [3, 10, 9]}, "old"),
        ({"version": [3, 15, 0]}, "new"),
        ({"version": [3, 13, 8]}, "broken"),
        ({"bits": 32}, "32"),
        ({"gil": False}, "threads"),
        ({"platform": "win-arm64"}, "arm"),
        ({"platform": "mingw_x86_64_ucrt_gnu"}, "posix"),
        ({"platform": "cygwin-3.5.3-x86_64"}, "posix"),
    ],
)
def test_unsuitable_pythons_are_refused_with_their_reason(tmp_path, facts, fault):
    one = fake_python(tmp_path, "python", **facts)
    facts, problem, values = python_choice.choose_python([one])
    assert facts is None and problem == f"install.python_{fault}" and values["found"].startswith("3.")
    for part in ("", ".why", ".fix"):
        assert not install.say(ROOT, problem + part, **values).startswith("install.")
    different = "new" if fault == "old" else "old"
    other = fake_python(tmp_path, "other", version=[3, 15, 1] if different == "new" else [3, 8, 1])
    assert python_choice.choose_python([one, other])[1] == "install.no_python"
    good = fake_python(tmp_path, "good")
    assert python_choice.choose_python([one, other, good])[0]["path"] == "good"


def test_the_python_that_runs_us_comes_first():
    assert next(iter(python_choice.candidates())) == [sys.executable]
    facts = python_choice.probe_python([sys.executable])
    assert tuple(facts["version"]) == sys.version_info[:3] and facts["venv"] and not facts["conda"]
    # Of a .venv the Python below it is taken: ours may be about to be removed.
    assert ".venv" not in facts["path"] and Path(facts["path"]).exists()
