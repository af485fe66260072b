"""Importing is free, seen in a fresh interpreter: no thread, no file, no variable, no word, no heavy library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_architecture import HEAVY, ROOT, modules

FOREIGN_ENVIRONMENT = {
    "CUDA_MODULE_LOADING": "torch",
    "TORCHINDUCTOR_CACHE_DIR": "torch",
    "KMP_INIT_AT_FORK": "torch's OpenMP",
    "KMP_DUPLICATE_LIB_OK": "torch's OpenMP",
}
"""What libraries set in os.environ when they are imported."""
PROBE = """
import importlib, json, os, sys, threading
found = {"environment": {}, "threads": {}, "written": {}}
now = [""]
def watch(event, given):
    if event == "open" and isinstance(given[0], (str, os.PathLike)) and isinstance(given[2], int):
        if given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            note(given[0])
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.symlink", "shutil.copyfile"):
        note(given[0])
def note(path):
    path = os.path.abspath(os.fsdecode(path))
    if path.startswith(os.environ["PROBE_ROOT"]):
        found["written"][path] = now[0]
sys.addaudithook(watch)
before = dict(os.environ)
for now[0] in sys.argv[1:]:
    importlib.import_module(now[0])
    after = dict(os.environ)
    for key in {*before, *after}:
        if before.get(key) != after.get(key):
            found["environment"][key] = now[0]
    before = after
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            found["threads"].setdefault(thread.name, now[0])
found["loaded"] = sorted({name.split(".")[0] for name in sys.modules})
kernels = importlib.util.find_spec("kernels")
found["kernels"] = kernels.origin if kernels else None
json.dump(found, open(os.environ["PROBE_ANSWER"], "w"))
"""


def import_all(names: list[str], tmp_path: Path) -> dict:
    """Import `names` in a fresh interpreter; returns what changed in it, and what it wrote here or in its home."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    answer = tmp_path / "answer.json"
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "PYTHON", "TRITON_"))
    }
    environment |= dict.fromkeys(("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA"), str(home))
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(home))
    environment |= {"PROBE_ANSWER": str(answer), "PROBE_ROOT": str(ROOT)}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *names],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(answer.read_text(encoding="utf-8"))
    left = [
        str(path)
        for folder in (home, here)
        for path in folder.rglob("*")
        if path.name[:13] != "torchinductor"
    ]
    return found | {"said": done.stdout, "written": found["written"] | dict.fromkeys(left, "")}


@pytest.mark.computing
def test_importing_everything_is_free(tmp_path):
    names = sorted(name for name in modules() if name != "launch" and not name.startswith("studio.ui"))
    found = import_all(names, tmp_path)
    assert not found["threads"]
    assert not found["written"]
    assert not found["said"]
    assert set(found["environment"]) <= set(FOREIGN_ENVIRONMENT), found["environment"]
    assert not found["kernels"], "kernels/ is found as a regular package"
    assert "gradio" not in found["loaded"]
    assert {"torch", "transformers"} <= set(found["loaded"])


def test_importing_the_window_is_free_and_loads_no_heavy_library(tmp_path):
    window = sorted(name for name in modules() if name.startswith("studio.ui"))
    found = import_all(
        ["studio.cli.main", "studio.supervisor.restarts", "studio.services.desk", "studio.ui.app", *window],
        tmp_path,
    )
    assert not found["written"]
    assert not found["threads"]
    assert not found["said"]
    assert not set(found["environment"]) - set(FOREIGN_ENVIRONMENT), found["environment"]
    assert not set(found["loaded"]) & HEAVY
