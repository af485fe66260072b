"""Temporary folders: cleared by the next one where their process was killed, and never while it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from studio.core.temporary_folder import YOUNG_S, TemporaryFolder

HOLDS = """
import sys
from studio.core.temporary_folder import TemporaryFolder
folder = TemporaryFolder("data")
(folder.path / "rows.jsonl").write_text("a person's own")
print(folder.path, flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def holder():
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def age(folder: Path) -> None:
    long_ago_s = time.time() - 2 * YOUNG_S
    os.utime(folder, (long_ago_s, long_ago_s))


def test_a_folder_is_empty_and_goes_with_its_end(temporary):
    with TemporaryFolder("data") as folder:
        assert folder.is_dir() and not list(folder.iterdir())
        (folder / "rows").write_text("x")
    assert not list(temporary.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_folder(holder):
    process, held = holder
    age(held.parent)
    TemporaryFolder("data").close()
    assert (held / "rows.jsonl").exists(), "its process lives"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert held.exists()
    TemporaryFolder("data").close()
    assert not held.parent.exists()


def test_a_young_folder_and_what_others_made_stay(holder, temporary):
    process, held = holder
    other = temporary / "finetune-studio-of-a-person"
    other.mkdir()
    (temporary / "finetune-studio-file").write_text("x")
    (temporary / "finetune-studio-link").symlink_to(held.parent)
    age(other)
    process.send_signal(signal.SIGKILL)
    process.wait()
    TemporaryFolder("data").close()
    assert held.exists(), "it may be on its way to its lock"
    assert len(list(temporary.iterdir())) == 4
