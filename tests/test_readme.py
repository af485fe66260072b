"""The READMEs say what is so: their commands run, their tables are those of the code, their links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from studio.arguments import build_parser
from studio.settings_table import READMES, update

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = tuple(READMES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_table_of_settings_is_that_of_the_knobs(language):
    written = READMES[language].read_text(encoding="utf-8")
    assert written.count("| `optim.") > 10
    assert written == update(language), "run: python -m studio.settings_table"


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_and_named_files_exist(language):
    words = READMES[language].read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", words) + re.findall(r"`(tests/[\w/.]+)`", words)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert links and not missing


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_named_is_one(language):
    words = READMES[language].read_text(encoding="utf-8")
    known = build_parser().format_help()
    named = set(re.findall(r"python3 launch\.py ([a-z]+)", words)) - {"install", "test"}
    assert named and all(re.search(rf"^\s+{name}\b", known, re.M) for name in named)


def test_both_languages_have_the_same_parts():
    counts = [
        [
            READMES[language].read_text(encoding="utf-8").count(mark)
            for mark in ("\n## ", "```", "\n| `", "\n|")
        ]
        for language in LANGUAGES
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_is_the_file_that_a_test_runs(language):
    written = re.findall(r"```python\n(.*?)```", READMES[language].read_text(encoding="utf-8"), re.S)
    example = (ROOT / "assets" / "examples" / "train_by_program.py").read_text(encoding="utf-8")
    assert len(written) == 1 and example.endswith(written[0])


def test_the_test_command_collects(tmp_path):
    """`launch.py test` itself would run this test again, so it is only made to collect."""
    done = launch(["--here", "test", "--collect-only", "-q", "tests/core"])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "test_codec" in done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_the_demo_command_teaches_the_model(tmp_path):
    done = launch(["--here", "demo", "--json"], FINETUNE_STUDIO_WORKSPACE=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["held_out"] >= 100
    assert answer["accuracy_after"] - answer["accuracy_before"] >= 0.6
    assert (Path(answer["artifact"]) / "adapter_model.safetensors").is_file()


def launch(arguments: list[str], **environment: str) -> subprocess.CompletedProcess:
    """Run launch.py with the Python of the tests."""
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *arguments],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=280,
    )
