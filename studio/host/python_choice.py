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
import json, os, struct, sys
def has(name):
    try:
        __import__(name)
    except Exception:
        return False
    return True
base = getattr(sys, "base_prefix", sys.prefix)
base_python = sys.executable
if base != sys.prefix:
    base_python = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "path": base_python, "version": list(sys.version_info[:3]), "bits": struct.calcsize("P") * 8,
    "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()), "venv": has("venv") and has("ensurepip"),
    "conda": os.path.isdir(os.path.join(base, "conda-meta")), "store": "windowsapps" in base.lower(),
}))
"""


def probe_python(argv):
    """Return the facts of the Python that `argv` starts, found by running it; None when it does not answer as one.

    Of a Python inside a .venv (perhaps ours, which may be about to be removed) they are those of the one below it.
    """
    try:
        answer = subprocess.run(
            list(argv) + ["-c", PYTHON_FACTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
        return json.loads(answer.stdout.decode("utf-8")) if answer.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def is_usable(facts):
    """Return whether packages exist for this Python: 3.11 to 3.14, 64 bit, with the lock; 3.13.8 breaks torch."""
    version = tuple(facts["version"])
    return version[:2] in VERSIONS and version != (3, 13, 8) and facts["bits"] == 64 and facts["gil"]


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
    home = Path.home()
    folders = [home / ".pyenv" / "versions", home / ".local" / "share" / "uv" / "python"]
    if os.name == "nt":
        folders.append(Path(os.environ.get("LOCALAPPDATA", str(home))) / "Programs" / "Python")
        folders.append(Path(os.environ.get("APPDATA", str(home))) / "uv" / "python")
    for folder in folders:
        for python in sorted(folder.glob("*/bin/python3")) + sorted(folder.glob("*/python.exe")):
            yield [str(python)]


def choose_python(commands=None):
    """Return (facts, "", {}) of the Python to build .venv on, or (None, id, values) with the text that says why not.

    The first regular one that answers; a conda or Store one for want of it, because conda's old msvcp140.dll breaks
    Triton on Windows and the Store redirects files.
    """
    second_best, unable, seen = None, None, []
    for argv in commands or candidates():
        facts = probe_python(argv)
        if facts is None or facts in seen:
            continue
        seen.append(facts)
        if not is_usable(facts):
            continue
        if not facts["venv"]:
            unable = unable or facts
        elif facts["conda"] or facts["store"]:
            second_best = second_best or facts
        else:
            return facts, "", {}
    if second_best:
        return second_best, "", {}
    if unable:
        return None, "install.no_ensurepip", {"package": "python{}.{}-venv".format(*unable["version"])}
    found = sorted({".".join(map(str, facts["version"])) for facts in seen})
    return None, "install.no_python", {"found": ", ".join(found) or "-"}
