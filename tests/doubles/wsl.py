"""A wsl.exe for Linux: answers in UTF-16 like the real one; runs a distribution's commands here, in a chosen home."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ENGLISH = "  NAME            STATE           VERSION\r\n"

# Replaces itself by the distribution's command, with nothing of Windows' environment, as WSL does.
PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path
fake = json.loads(Path({settings!r}).read_text(encoding="utf-8"))
words = sys.argv[1:]
with open({calls!r}, "a", encoding="utf-8") as file:
    file.write(json.dumps(words) + "\\n")
def answer(words, code):
    sys.stdout.buffer.write((b"\\xff\\xfe" if fake["mark"] else b"") + words.encode("utf-16-le"))
    sys.exit(code)
if words[:2] == ["-l", "-v"]:
    answer(fake["listing"], fake["list_code"])
if words == ["-l", "--running", "-q"]:
    answer("".join(name + "\\r\\n" for name in fake["running"]), 0)
if words == ["--status"]:
    answer("Default Version: 2\\r\\n", fake["status_code"])
assert words[0] == "-d" and words[2] == "--exec", words
if words[1] not in fake["listing"]:
    answer("There is no such distribution.\\r\\nError code: Wsl/Service/WSL_E_DISTRO_NOT_FOUND\\r\\n", 255)
environment = {{"HOME": fake["home"], "PATH": fake["path"], "LANG": "C.UTF-8", "WSL_DISTRO_NAME": words[1]}}
os.chdir(fake["home"])
os.execvpe(words[3], words[3:], environment)
"""

# `python3` of the distribution: the tests' own Python with --here, and a stand-in for the installation.
PYTHON = """#!/bin/sh
if [ "$1" = launch.py ] && [ "$2" = install ]; then
  echo "Stand-in: nothing is installed, mirror ${{PIP_INDEX_URL:-none}}"
  [ -e "$HOME/no-install" ] && {{ echo "No space left on device"; exit 2; }}
  exec {python} -c '
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("install", "studio/installer/install.py")
install = importlib.util.module_from_spec(spec); spec.loader.exec_module(install)
os.makedirs(".venv/bin", exist_ok=True)
open(".venv/bin/python", "w").close()
open(".venv/pyvenv.cfg", "w").write("home = /usr")
json.dump({{"base": install.fingerprint(".")}}, open(".venv/studio-stamp.json", "w"))'
fi
if [ "$1" = launch.py ]; then shift; exec {python} {inside} "$@"; fi
exec {python} "$@"
"""


@dataclass
class FakeWsl:
    """What the fake says; `make` writes it out and returns the path of its wsl.exe."""

    listing: str = ENGLISH + "* Ubuntu          Running         2\r\n"
    running: tuple[str, ...] = ("Ubuntu",)
    list_code: int = 0
    status_code: int = 0
    mark: bool = False
    """Whether its answers begin with a byte order mark."""
    home: str = ""
    path: str = ""

    def make(self, folder: Path, inside: str = "launch.py --here") -> str:
        """`inside` is what the distribution's `python3 launch.py` runs instead."""
        home, tools = folder / "home", folder / "bin"
        for each in (home, tools):
            each.mkdir(parents=True, exist_ok=True)
        self.home, self.path = str(home), f"{tools}:/usr/bin:/bin"
        settings = folder / "fake.json"
        settings.write_text(json.dumps(asdict(self)), encoding="utf-8")
        program = folder / "wsl.exe"
        names = {"python": sys.executable, "settings": str(settings), "calls": str(folder / "calls")}
        program.write_text(PROGRAM.format(**names), encoding="utf-8")
        (tools / "python3").write_text(PYTHON.format(python=sys.executable, inside=inside), encoding="utf-8")
        for each in (program, tools / "python3"):
            each.chmod(0o755)
        return str(program)


def read_calls(folder: Path) -> list[list[str]]:
    """Return the command lines that the fake in `folder` was given."""
    file = folder / "calls"
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    )
