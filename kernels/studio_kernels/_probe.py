"""Finds out whether Triton really works here, in a child process: a broken install can hang or kill its process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from studio_kernels.support import Support

TAIL_BYTES = 20_000


def probe(timeout_s: float = 120.0, environment: Mapping[str, str] | None = None) -> Support:
    """Compiles and runs every op of this package on the first GPU and compares it with its PyTorch twin.

    `environment` replaces this process's own for the child, so that a remedy can be tried before it is applied.
    The first run on a machine compiles (some 10 s, mostly `import torch`); later ones find Triton's cache.
    """
    variables = dict(os.environ if environment is None else environment)
    folders = [str(Path(__file__).parent.parent), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    # -P: a triton.py in the working directory must not shadow the package; utf8: a legacy console's encoding
    # would hide the real error behind a UnicodeEncodeError.
    command = [sys.executable, "-P", "-X", "utf8", "-m", "studio_kernels.self_test"]
    # A file and not a pipe: a compiler left behind by a killed child would keep a pipe open on Windows.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        try:
            code = child.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return Support(False, f"The test kernels did not finish within {timeout_s:g} s.")
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - TAIL_BYTES))
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it printed nothing"
    if code == 0:
        return Support(True, last)
    if code == 3:
        return Support(False, last)
    return Support(False, f"The test kernels ended with code {code}: {last}")
