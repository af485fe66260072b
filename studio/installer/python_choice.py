"""Which Python the studio's .venv is made on: found by running candidates, judged by what they say of themselves.

Standard library only, imports nothing of studio, parses and runs on Python 3.8: it works before .venv exists.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ((3, 12), (3, 13), (3, 11), (3, 14))
PYTHON_FACTS = """
import json, os, struct, sys, sysconfig
def has(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True
base = getattr(sys, "base_prefix", sys.prefix)
base_python = sys.executable
if base != sys.prefix:
    base_python = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "path": base_python, "version": list(sys.version_info[:3]), "bits": struct.calcsize("P") * 8,
    "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"), "platform": sysconfig.get_platform(),
    "venv": has("venv") and has("ensurepip"),
    "conda": os.path.isdir(os.path.join(base, "conda-meta")), "store": "windowsapps" in base.lower(),
}))
"""


def probe_python(argv):
    """Return the facts of the Python that `argv` starts, found by running it; None when it does not answer as one.

    Of a Python inside a .venv (perhaps ours, which may be about to be removed) they are those of the one below it.
    """
    try:
        answer = subprocess.run(
            list(argv) + ["-c", PYTHON_FACTS],
            env=dict(
                os.environ, PYTHON_MANAGER_AUTOMATIC_INSTALL="false"
            ),  # asked for one, py would download it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        )
        return json.loads(answer.stdout.decode("utf-8")) if answer.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def find_fault(facts):
    """Return why no packages exist for this Python: "old", "new", "broken", "32", "threads", "posix", "arm"; else "".

    They exist for 3.11 to 3.14, but not 3.13.8, which breaks torch; for 64 bit, with the lock, and on Windows for
    the regular builds: what MSYS2 and Cygwin ship lays its folders out as on Linux and takes no Windows wheels, and
    pyarrow has none for ARM, where the x64 Python runs as well.
    """
    version, platform = tuple(facts["version"]), facts.get("platform", "")
    if platform.startswith(("mingw", "msys", "cygwin")):
        return "posix"
    if version[:2] not in VERSIONS:
        return "old" if version[:2] < min(VERSIONS) else "new"
    if version == (3, 13, 8):
        return "broken"
    if platform == "win-arm64":
        return "arm"
    if facts["bits"] != 64:
        return "32"
    return "" if facts["gil"] else "threads"


def candidates():
    """Yield command lines that may start a Python, the one that runs this first; most do not exist."""
    yield [sys.executable]
    names = ["python{}.{}".format(*version) for version in VERSIONS]
    for name in ["python3", "python"] + names:
        path = shutil.which(name)
        if path:
            yield [path]
    if os.name == "nt":
        for version in VERSIONS:
            yield ["py", "-{}.{}".format(*version)]
        yield ["py"]
    home = Path.home()
    folders = [home / ".pyenv" / "versions", home / ".local" / "share" / "uv" / "python"]
    if os.name == "nt":
        folders.append(Path(os.environ.get("LOCALAPPDATA", str(home))) / "Programs" / "Python")
        folders.append(Path(os.environ.get("APPDATA", str(home))) / "uv" / "python")
        folders.append(home / ".pyenv" / "pyenv-win" / "versions")
    for folder in folders:
        for python in sorted(folder.glob("*/bin/python3")) + sorted(folder.glob("*/python.exe")):
            yield [str(python)]


def find_newer(oldest):
    """Return the path of a Python that is `oldest` or newer, such as (3, 10), whatever it has beside; None without."""
    every = (probe_python(argv) for argv in candidates())
    return next((facts["path"] for facts in every if facts and tuple(facts["version"][:2]) >= oldest), None)


def choose_python(commands=None):
    """Return (facts, "", {}) of the Python to build .venv on, or (None, id, values) with the text that says why not.

    The first regular one that answers; a conda or Store one for want of it, because conda's old msvcp140.dll breaks
    Triton on Windows and the Store redirects files.
    """
    second_best, unable, seen, faults = None, None, [], []
    for argv in commands or candidates():
        facts = probe_python(argv)
        if facts is None or facts in seen:
            continue
        seen.append(facts)
        fault = find_fault(facts)
        if fault:
            faults.append(fault)
        elif not facts["venv"]:
            unable = unable or facts
        elif facts["conda"] or facts["store"]:
            second_best = second_best or facts
        else:
            return facts, "", {}
    if second_best:
        return second_best, "", {}
    if unable:
        return None, "install.no_ensurepip", {"package": "python{}.{}-venv".format(*unable["version"])}
    found = ", ".join(sorted({".".join(map(str, facts["version"])) for facts in seen})) or "-"
    # One reason for all has a sentence of its own.
    id = "install.python_" + faults[0] if len(set(faults)) == 1 else "install.no_python"
    return None, id, {"found": found, "path": seen[0]["path"] if seen else "-"}
