"""Packages that tests need and the studio must not see: installed once into a folder of the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.trained_model import keep

COMPRESSED = ("compressed-tensors==0.20.0", "loguru==0.7.3")
"""What transformers reads FP8 and W4A16 folders with: small."""
MLX = ("mlx==0.32.4", "mlx-cpu==0.32.4", "mlx-lm==0.32.2", "sentencepiece", "protobuf")
"""Apple's arrays on Linux, and its language models: 70 MB."""
HARNESS = (
    "lm_eval==0.4.13", "sacrebleu==2.6.0", "portalocker==4.4.2", "tabulate==0.10.0", "colorama==0.4.6", "lxml==6.1.3",
)  # fmt: skip
"""lm-evaluation-harness, and what it imports of what the tests have not: 17 MB."""


def get_packages(pins: tuple[str, ...]) -> Path:
    """Return a folder with these packages and nothing that they need; the first call downloads them."""

    def make(work: Path, folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        done = subprocess.run([*command, "--target", str(folder), *pins], stderr=subprocess.PIPE, text=True)
        assert done.returncode == 0, f"{pins} cannot be had: {done.stderr}"

    return keep(f"packages-{hashlib.sha256(repr(pins).encode()).hexdigest()[:12]}", make)


def run_beside(code: str, *arguments: object, packages: Path) -> str:
    """Return what `code` prints, run by this Python with `packages` behind its own."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(packages)]))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
