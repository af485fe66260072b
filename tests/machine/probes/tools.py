"""Fake programs and a fake driver, made on the spot: scripts on a PATH of their own, a libcuda built with cc."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
OLD_ASSEMBLER = """
case "$1" in
--version)
  echo "ptxas: NVIDIA (R) Ptx optimizing assembler"
  echo "Cuda compilation tools, release 10.2, V10.2.89"
  exit 0 ;;
esac
echo "ptxas /tmp/kernel.ptx, line 5; fatal   : Unsupported .version 6.5; current version is '6.4'" >&2
echo "ptxas fatal   : Ptx assembly aborted due to errors" >&2
exit 255
"""
SMI_HEAD = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {version}                 Driver Version: {version}       {words}: {cuda}     |
+-----------------------------------------------------------------------------------------+
"""


def make_program(folder: Path, name: str, script: str) -> Path:
    """Write an executable shell script, which finds its own tools also on an empty PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def make_smi(folder: Path, rows: str, words: str = "CUDA Version", cuda: str = "13.0") -> Path:
    """A nvidia-smi that shows a head and, when asked for cards, `rows`."""
    head = SMI_HEAD.format(version="581.29", words=words, cuda=cuda)
    return make_program(
        folder, "nvidia-smi", f'case "$1" in --query*) printf "{rows}" ;; *) cat <<"END"{head}END\n;; esac'
    )


def build_libcuda(folder: Path) -> Path:
    """Build the invented driver and return the folder that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libcuda.so.1"
    command = ["cc", "-w", "-shared", "-fPIC", "-o", str(library), str(HERE / "fake_libcuda.c")]
    subprocess.run(command, check=True)
    return folder


def site_with(folder: Path, code: str) -> dict[str, str]:
    """An environment whose Python runs `code` before anything else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    return {**os.environ, "PYTHONPATH": str(folder)}


def when_imported(name: str, what: str) -> str:
    """Code for site_with: `what` happens as soon as `name` is imported."""
    return f"""
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            import os, time
            {what}

sys.meta_path.insert(0, Finder())
"""
