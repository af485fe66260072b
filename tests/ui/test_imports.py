"""The window opens at once: importing it loads no torch, sets nothing and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import os, sys, threading
before = dict(os.environ)
import studio.ui.app, studio.ui.serve
heavy = sorted({"torch", "transformers", "datasets", "trl", "peft", "triton"} & set(sys.modules))
ours = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
print(heavy, before == dict(os.environ), ours)
"""


def test_importing_the_window_is_free(tmp_path):
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(ROOT)!r}]\n{PROBE}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "[] True []", done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_splash_needs_no_gradio(tmp_path):
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}]\nimport studio.ui.serve\nprint('gradio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "False", done.stderr
