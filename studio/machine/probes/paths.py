"""The folders that a run depends on: whether they can be written, by whom, and how much room is left."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from studio.core.facts import Place
from studio.machine.probes.probe_context import PROGRAM, ProbeContext
from studio.machine.workspace import LONGEST_TMP

FOREIGN_DISKS = {"9p": "9p", "drvfs": "9p", "v9fs": "9p"}
NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "ceph", "lustre", "afs")
REMOTE_DRIVE = 4  # of GetDriveTypeW
TRIED = ("workspace", "temp", "triton_cache", "model_cache")
"""Written into for a proof; home and program are only asked whether they may be."""


def look(here: ProbeContext) -> dict[str, Any]:
    """Return the places by name."""
    disks = read_disks()
    found = {
        name: describe(path, here, disks, tried=name in TRIED) for name, path in find_places(here).items()
    }
    return {"places": found}


def find_places(here: ProbeContext) -> dict[str, Path]:
    """Return where home, workspace, temp, triton_cache, model_cache and program are.

    With a workspace, temporary files and compiled kernels go there (machine/workspace.py), whatever the variables say.
    """
    home = Path(here.read("USERPROFILE" if here.system == "Windows" else "HOME") or Path.home())
    temporary = next((here.read(name) for name in ("TMPDIR", "TEMP", "TMP") if here.read(name)), "")
    hub = here.read("HF_HUB_CACHE") or (here.read("HF_HOME") and os.path.join(here.read("HF_HOME"), "hub"))
    cache = Path(here.read("XDG_CACHE_HOME") or home / ".cache")
    triton = Path(here.read("TRITON_HOME") or home) / ".triton" / "cache"
    places = {"home": home}
    if here.workspace:
        places["workspace"] = here.workspace.root
    places |= {
        "temp": Path(temporary or tempfile.gettempdir()),
        "triton_cache": Path(here.read("TRITON_CACHE_DIR") or triton),
        "model_cache": Path(hub).expanduser() if hub else cache / "huggingface" / "hub",
        "program": PROGRAM,
    }
    if here.workspace:
        places["triton_cache"] = here.workspace.triton_cache
        if len(str(here.workspace.tmp)) <= LONGEST_TMP:
            places["temp"] = here.workspace.tmp
    return places


def describe(path: Path, here: ProbeContext, disks: list[tuple[str, str]], *, tried: bool) -> Place:
    """Return the Place of `path`; of a folder that is not there yet its nearest parent is asked."""
    present = path
    while not present.is_dir() and present != present.parent:
        present = present.parent
    try:
        free_bytes = shutil.disk_usage(present).free
    except OSError:
        free_bytes = 0
    return Place(
        path=str(path),
        length=len(str(path)),
        ascii=str(path).isascii(),
        ansi=here.system != "Windows" or fits_code_page(str(path)),
        writable=can_write(present) if tried and present == path else os.access(present, os.W_OK),
        free_bytes=free_bytes,
        filesystem=name_filesystem(present, here, disks),
    )


def can_write(folder: Path) -> bool:
    """Return whether a file can be made, read again and removed: permissions alone do not tell on Windows."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="studio-") as file:
            file.write(b"studio")
            file.seek(0)
            return file.read() == b"studio"
    except OSError:
        return False


def fits_code_page(path: str) -> bool:
    """Return whether Windows' ANSI code page can write `path`; only Windows has that codec."""
    try:
        path.encode("mbcs", "strict")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def read_disks() -> list[tuple[str, str]]:
    """Return (mount point, type) of each mounted disk, longest mount point first; none outside Linux."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mounts = [line.split() for line in lines]
    found = [(m[1].replace("\\040", " "), m[2]) for m in mounts if len(m) > 2]
    return sorted(found, key=lambda disk: -len(disk[0]))


def name_filesystem(path: Path, here: ProbeContext, disks: list[tuple[str, str]]) -> str:
    """Return `9p`, `onedrive`, `network` or "" for an ordinary disk of this machine."""
    if here.system == "Windows":
        return _name_windows_disk(str(path), here)
    real = os.path.realpath(path)
    for point, kind in disks:
        if real == point or real.startswith(point.rstrip("/") + "/"):
            if kind in NETWORK_DISKS:
                return "network"
            return FOREIGN_DISKS.get(kind, "")
    return ""


def _name_windows_disk(path: str, here: ProbeContext) -> str:
    for name in ("OneDrive", "OneDriveConsumer", "OneDriveCommercial"):
        folder = here.read(name)
        if folder and path.lower().startswith(folder.lower().rstrip("\\") + "\\"):
            return "onedrive"
    if path.startswith("\\\\"):
        return "network"
    import ctypes

    drive = os.path.splitdrive(path)[0] + "\\"
    return "network" if ctypes.windll.kernel32.GetDriveTypeW(drive) == REMOTE_DRIVE else ""
