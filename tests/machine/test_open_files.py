"""The limit of open files is raised to what the system allows, within reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
WORDS = (
    "import resource as r; h = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, {hard}));"
    "from studio.machine.open_files import raise_limit; raise_limit(); print(*r.getrlimit(r.RLIMIT_NOFILE), h)"
)


def measure(hard: str) -> list[int]:
    said = subprocess.run([sys.executable, "-c", WORDS.format(hard=hard)], capture_output=True, check=True)
    return list(map(int, said.stdout.split()))


def test_it_is_raised_to_the_hard_limit_and_not_beyond():
    assert measure("900")[:2] == [900, 900]
    soft, hard, before = measure("h")
    assert hard == before and soft == (65_536 if hard < 0 or hard > 65_536 else hard)
