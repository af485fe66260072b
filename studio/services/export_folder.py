"""An export's folder: written beside its place, put there when it is whole, known as ours.

What a stopped or killed export finished is kept (engine/exporters/kept_parts.py) for the next one of the same, and
swept when nobody came back for it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from studio.core.atomic_files import replace_file, write_json
from studio.core.errors import StudioError
from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.engine.exporters.kept_parts import KeptParts
from studio.machine.workspace_lock import is_alive

NOTE = "studio-export.json"
"""Beside the files: which run and form they are of. A folder without it is none of ours: nothing here deletes it."""
WRITER = "studio-writing.json"
"""In a folder that is being written: by which process."""
GONE = 0
"""No process's number."""
KEPT_S = 14 * 86400.0
"""So long the parts of an export that did not end are kept."""
LEFT_AFTER_S = 3600.0
"""One that is written by who knows whom, and by nobody for so long, was left by a process that died."""


def staging_of(final: Path) -> Path:
    """Return where the folder `final` is written before it is whole."""
    return final.with_name(f".{final.name}.staging")


def open_staging(final: Path, key: str) -> Path:
    """Make the folder in which `final` is written, or take the one that was left with parts of the same `key`.

    What else lies there goes. Raises OSError.
    """
    staging = staging_of(final)
    if KeptParts(staging).key != key:
        shutil.rmtree(staging, ignore_errors=True)
    final.parent.mkdir(parents=True, exist_ok=True)
    staging.mkdir(exist_ok=True)
    KeptParts(staging).begin(key)
    write_json(staging / WRITER, {"host": _name_host(), "pid": os.getpid(), "time_s": time.time()})
    return staging


def leave_staging(staging: Path, *, keep: bool) -> None:
    """End writing without a result; `keep`: what is whole of it stays, where there is any."""
    parts = KeptParts(staging)
    if keep and parts.list_files():
        (staging / WRITER).unlink(missing_ok=True)
    else:
        shutil.rmtree(staging, ignore_errors=True)


def list_kept(home: Path, names: re.Pattern[str]) -> list[tuple[str, Path]]:
    """Return the name and the folder of each export in `home` that did not end, and that nobody writes now."""
    found = []
    for staging in home.glob(".*.staging"):
        name = staging.name.removeprefix(".").removesuffix(".staging")
        if (
            names.fullmatch(name)
            and _read_writer(staging) in (None, GONE)
            and KeptParts(staging).list_files()
        ):
            found.append((name, staging))
    return sorted(found)


def is_being_written(final: Path) -> bool:
    """Return whether another process is known to be writing `final`."""
    writer = _read_writer(staging_of(final))
    return writer is not None and writer != os.getpid() and writer != GONE


def close_staging(staging: Path, final: Path) -> None:
    """Put `staging` in the place of `final`, of which nothing is lost when that fails. Raises OSError."""
    (staging / WRITER).unlink(missing_ok=True)
    KeptParts(staging).drop()
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        replace_file(final, replaced)  # Windows: fails as a whole while one of its files is open
    try:
        replace_file(staging, final)
    except OSError:
        if replaced.exists():
            replace_file(replaced, final)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def sweep_exports(home: Path, names: re.Pattern[str]) -> None:
    """Delete what exports of killed processes left in `home`; what another one is writing stays.

    Only folders called like an export (`names`) are ours.
    """
    for left in home.glob(".*.replaced"):
        name = left.name.removeprefix(".").removesuffix(".replaced")
        with suppress(OSError):
            if names.fullmatch(name) and not (home / name).exists():
                replace_file(left, home / name)  # killed before the new one took its place
            elif names.fullmatch(name):
                shutil.rmtree(left)
    for left in home.glob(".*.staging"):
        name = left.name.removeprefix(".").removesuffix(".staging")
        with suppress(OSError):  # somebody else is at it, or holds it open
            if names.fullmatch(name) and _is_left(left):
                shutil.rmtree(left)


def is_ours(path: Path) -> bool:
    """Return whether an export of this studio wrote the folder at `path`, under this name."""
    try:
        note = read_json(path / NOTE)
        return path.name == f"{note['run']}-{note['target']}" and not path.is_symlink()
    except (StudioError, KeyError, TypeError):
        return False


def refuse_foreign(path: Path) -> StudioError:
    """Return what is said of a folder of somebody else's."""
    why, fix = text("export.foreign.why"), text("export.foreign.fix")
    return StudioError(text("export.foreign", name=path.name), why, fix)


def _is_left(staging: Path) -> bool:
    """Return whether nobody will finish `staging`; of who knows whose its age alone tells. Raises OSError."""
    writer = _read_writer(staging)
    if writer not in (None, GONE):
        return False
    kept = bool(KeptParts(staging).list_files())
    if writer == GONE and not kept:
        return True
    newest_s = max(path.stat().st_mtime for path in (staging, *staging.rglob("*")))
    return time.time() - newest_s > (KEPT_S if kept else LEFT_AFTER_S)


def _read_writer(staging: Path) -> int | None:
    """Return the process that writes `staging`, GONE when it has ended, None where that cannot be known."""
    try:
        writer = read_json(staging / WRITER)
        if writer["host"] != _name_host():
            return None
        pid = int(writer["pid"])
        return pid if is_alive(pid, float(writer["time_s"])) else GONE
    except (StudioError, KeyError, TypeError, ValueError):
        return None


def _name_host() -> str:
    """Return where process numbers count: Windows and its WSL have one name, and numbers of their own."""
    return f"{platform.node()} {sys.platform}"
