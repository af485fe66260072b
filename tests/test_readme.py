"""The READMEs and docs/ say what is so: commands run, tables are those of the code, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli.arguments import build_parser
from studio.cli.settings_table import PAGES, update

ROOT = Path(__file__).resolve().parents[1]
READMES = {"en": ROOT / "README.md", "zh-CN": ROOT / "README.zh-CN.md"}
LANGUAGES = tuple(READMES)
DOCS = {"en": ROOT / "docs", "zh-CN": ROOT / "docs" / "zh-CN"}
BOTH = ("settings.md", "sharing.md", "programs.md", "promises.md", "other-tools.md", "grpo.md")
"""Pages for who uses the program, in both languages; the others are for who works on it."""
PAGE_FILES = sorted([*READMES.values(), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINES = {"README.md": 150, "README.zh-CN.md": 150, "CONTRIBUTING.md": 150}


@pytest.mark.parametrize("language", LANGUAGES)
def test_table_of_settings_is_that_of_the_knobs(language):
    written = PAGES[language].read_text(encoding="utf-8")
    assert written.count("| `optim.") > 10
    assert written == update(language), "run: python -m studio.cli.settings_table"


@pytest.mark.parametrize("page", PAGE_FILES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_named_files_exist(page):
    words = page.read_text(encoding="utf-8")
    links = [page.parent / link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", words) if "://" not in link]
    named = re.findall(r"`((?:tests|studio|kernels|assets|benchmarks)/[a-z\d_/.-]+\.[a-z]+)`", words)
    links += [ROOT / name for name in named]
    missing = [str(link) for link in links if not link.exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGE_FILES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_into_a_page_meet_a_heading(page):
    for name, anchor in re.findall(r"\]\(([^)#:]*\.md)#([^)]+)\)", page.read_text(encoding="utf-8")):
        heads = re.findall(r"^#+ (.*)$", (page.parent / name).read_text(encoding="utf-8"), re.M)
        known = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
        assert anchor in known, f"{name}#{anchor}"


@pytest.mark.parametrize("name", LINES)
def test_pages_stay_short(name):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= LINES[name]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_named_is_one(language):
    words = READMES[language].read_text(encoding="utf-8")
    known = build_parser().format_help()
    named = set(re.findall(r"python3 launch\.py ([a-z]+)", words)) - {"install", "test"}
    assert named and all(re.search(rf"^\s+{name}\b", known, re.M) for name in named)


@pytest.mark.parametrize("name", ["README", *BOTH])
def test_both_languages_have_the_same_parts(name):
    pages = [READMES[each] if name == "README" else DOCS[each] / name for each in LANGUAGES]
    counts = [
        [page.read_text(encoding="utf-8").count(mark) for mark in ("\n## ", "```", "\n| `", "\n|")]
        for page in pages
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_is_the_file_that_a_test_runs(language):
    words = (DOCS[language] / "programs.md").read_text(encoding="utf-8")
    written = re.findall(r"```python\n(.*?)```", words, re.S)
    example = (ROOT / "assets" / "examples" / "train_by_program.py").read_text(encoding="utf-8")
    assert len(written) == 1 and example.endswith(written[0])


def test_the_test_command_collects(tmp_path):
    """`launch.py test` itself would run this test again, so it is only made to collect."""
    done = launch(["--here", "test", "--collect-only", "-q", "tests/core"])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "test_codec" in done.stdout


def launch(arguments: list[str], **environment: str) -> subprocess.CompletedProcess:
    """Run launch.py with the Python of the tests."""
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *arguments],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=280,
    )
