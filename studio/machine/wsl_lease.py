"""A workspace that Windows handed to a Linux of WSL: a marker that both sides keep fresh, since no lock crosses over.

The Windows side (studio/cli/wsl.py) holds its own claims all the while and writes the marker; the Linux side, which
has BRIDGE_VARIABLE in its environment, keeps it fresh too, so that it stands until the last of both has ended.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.machine.workspace import Workspace

BRIDGE_VARIABLE = "FINETUNE_STUDIO_BRIDGE"
"""Name of the distribution, in the environment of the Linux side alone."""
MARKER = "wsl.json"
BEAT_S = 2.0
FRESH_S = 15.0
"""A marker that nobody touched for this long is what a killed computer left."""


@contextlib.contextmanager
def hand_over(workspace: Workspace, distribution: str) -> Iterator[Path]:
    """Mark `workspace` as worked in by `distribution` until the block ends. Raises OSError."""
    file = workspace.root / MARKER
    write_json(file, {"distribution": distribution, "pid": os.getpid()})
    try:
        with keep_fresh(workspace):
            yield file
    finally:
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def keep_fresh(workspace: Workspace) -> Iterator[None]:
    """Touch the marker every BEAT_S until the block ends."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S):
            with contextlib.suppress(OSError):  # gone, or held for a moment: the next beat comes soon
                # Without times of ours: the disk's own clock, as the clock of a WSL is late after the laptop slept.
                os.utime(workspace.root / MARKER)

    thread = threading.Thread(target=beat, name="handover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def refuse_handed_over(workspace: Workspace) -> None:
    """Raise StudioError when a WSL works in `workspace` and this process is not part of that."""
    if os.environ.get(BRIDGE_VARIABLE):
        return
    file = workspace.root / MARKER
    try:
        age_s = time.time() - file.stat().st_mtime
        distribution = str(read_json(file)["distribution"])
    except (OSError, StudioError, KeyError, TypeError):
        return
    if age_s < FRESH_S:
        raise StudioError(
            text("wsl.handed_over", path=str(workspace.root)),
            text("wsl.handed_over.why", name=distribution),
            text("wsl.handed_over.fix"),
        )
