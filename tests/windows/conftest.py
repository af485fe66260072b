"""Wine for the tests of Windows files: one prefix a session, and checkouts whose Python is a stand-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The batch side of a stand-in: it passes the check and lets this machine's Python do the rest. Wine neither
# waits for a Linux program nor hands on what it says, so its words travel through files; ping is Wine's only pause.
BATCH = r"""@echo off
if "%~1"=="-c" exit /b 0
if not exist launch.py exit /b 99
start /b /wait /unix {python} {runner} {folder} %*

:ready
ping -n 2 127.0.0.1 >nul
if not exist "{windows_folder}\code.txt" goto ready
type "{windows_folder}\words.txt"
set /p CODE=<"{windows_folder}\code.txt"
del "{windows_folder}\code.txt"
exit /b %CODE%
"""
# The Linux side: launch.py as it is, started by a Python that says of itself what the test wants.
RUNNER = '''"""Runs launch.py of the checkout under test; argv: the folder of this stand-in, then the words."""
import json, subprocess, sys
from pathlib import Path

folder = Path(sys.argv[1])
plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
start = (
    "import runpy, sys; sys.executable = sys.argv[1]; del sys.argv[:2]; "
    "sys.path.insert(0, '.'); runpy.run_path(sys.argv[0], run_name='__main__')"
)
words = [plan["host"], "-c", start, plan["python"], *sys.argv[2:]]
answer = subprocess.run(
    words, cwd=plan["checkout"], env=plan["environment"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
)
(folder / "words.txt").write_bytes(answer.stdout)
(folder / "code.tmp").write_text(f"{answer.returncode}\\n", encoding="utf-8")
(folder / "code.tmp").rename(folder / "code.txt")
'''


def to_windows(path: Path) -> str:
    """Return `path` as Wine names it."""
    return "Z:" + str(path).replace("/", "\\")


@dataclass
class Machine:
    """A Windows computer: a Wine prefix, a folder of programs on its PATH and the checkout to install."""

    prefix: Path
    programs: Path
    checkout: Path
    environment: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, words: str) -> None:
        """Put the batch file `name`.bat on the PATH."""
        text = words.replace("\r\n", "\n").replace("\n", "\r\n")
        (self.programs / f"{name}.bat").write_text(text, encoding="ascii", newline="")

    def put_python(self, name: str = "python", *, facts: dict | None = None, **environment: str) -> None:
        """Put a Python on the PATH; with `facts` it says them of itself instead of the truth."""
        folder = self.programs / f"{name}.d"
        folder.mkdir(exist_ok=True)
        python = sys.executable
        if facts:
            python = str(folder / "python")
            Path(python).write_text(f"#!/bin/sh\nprintf %s '{json.dumps(facts)}'\n", encoding="utf-8")
            Path(python).chmod(0o755)
        (folder / "runner.py").write_text(RUNNER, encoding="utf-8")
        kept = {"PATH": str(self.programs), "HOME": str(self.programs), "LANG": "C.UTF-8"}
        plan = {
            "checkout": str(self.checkout),
            "host": sys.executable,
            "python": python,
            "environment": kept | environment,
        }
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        self.put(
            name,
            BATCH.format(
                python=sys.executable,
                runner=folder / "runner.py",
                folder=folder,
                windows_folder=to_windows(folder),
            ),
        )

    def install(self, *words: str, answer: str = "") -> subprocess.CompletedProcess:
        """Start install_windows.bat with `words` in its folder, as a double click does."""
        return self.run("install_windows.bat", *words, answer=answer)

    def wine_environment(self) -> dict[str, str]:
        """Return the environment in which Wine runs this computer."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        environment |= {
            "LANG": "C.UTF-8",  # else Wine cannot name files with other letters
            "WINEPREFIX": str(self.prefix),
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=",
            "WINEPATH": to_windows(self.programs),
        }
        return environment | self.environment

    def run(self, *command: str, answer: str = "") -> subprocess.CompletedProcess:
        """Run a Windows command; its output is decoded as UTF-8."""
        return subprocess.run(
            ["wine", "cmd", "/c", *command],
            env=self.wine_environment(),
            cwd=self.checkout,
            input=answer,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
            check=False,
        )


@pytest.fixture(scope="session")
def wine_prefix(tmp_path_factory):
    """An empty Windows 10 of this session; its server is ended with it."""
    assert shutil.which("wine"), "Wine is missing: .ci/run installs it (Debian: apt install wine wine64)"
    base = tmp_path_factory.mktemp("wine")
    machine = Machine(prefix=base / "prefix", programs=base, checkout=base)
    machine.prefix.mkdir()
    server = [shutil.which("wineserver") or "/usr/lib/wine/wineserver"]
    # Without -p the server ends 3 s after each program, whose output pipes it holds open until then.
    environment = machine.wine_environment()
    subprocess.run([*server, "-p"], env=environment, stdin=subprocess.DEVNULL, check=True)
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(["wine", "wineboot", "-i"], env=environment, timeout=120, check=True, **quiet)
    version = ["reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"]
    subprocess.run(["wine", *version], env=environment, timeout=60, check=True, **quiet)
    yield machine.prefix
    subprocess.run([*server, "-k"], env=environment, check=False)


@pytest.fixture
def machine(wine_prefix, tmp_path):
    """A Windows 10 without Python, and a checkout of what an installation needs in a folder that is hard to name."""
    return make_machine(wine_prefix, tmp_path, "A (new) & ^fine! folder")


def make_machine(prefix: Path, base: Path, name: str) -> Machine:
    """Return a Machine whose checkout, with one tiny package for its only requirement, is base/`name`."""
    checkout = base / name
    shutil.copytree(
        ROOT / "studio" / "installer",
        checkout / "studio" / "installer",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (checkout / "studio" / "core").mkdir()
    for name in ("atomic_files.py", "lock_file.py"):
        shutil.copy(ROOT / "studio" / "core" / name, checkout / "studio" / "core")
    for package in ("studio", "studio/core"):
        (checkout / package / "__init__.py").write_text('"""A package."""\n', encoding="utf-8")
    shutil.copytree(ROOT / "assets" / "locales", checkout / "assets" / "locales")
    for file in ("launch.py", "install_windows.bat"):
        shutil.copy(ROOT / file, checkout)
    for file in ("requirements.txt", "requirements-dev.txt"):
        (checkout / file).write_text("tiny\n", encoding="utf-8")
    (checkout / "constraints.txt").write_text("tiny==1.0\n", encoding="utf-8")
    (base / "programs").mkdir()
    (base / "programs" / "powershell").write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")  # for the shortcut
    (base / "programs" / "powershell").chmod(0o755)
    return Machine(prefix=prefix, programs=base / "programs", checkout=checkout)
