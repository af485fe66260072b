"""What only Windows has: settings in the registry, Microsoft's C++ runtime, the commit limit, the compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from studio.core.facts import RuntimeLibrary, WindowsFacts
from studio.installer.windows import LONG_PATHS as LONG_PATHS_KEY
from studio.installer.windows import read_file_version, read_number
from studio.machine.probes.probe_context import ProbeContext

RUNTIMES = ("msvcp140.dll", "vcruntime140.dll", "vcruntime140_1.dll", "vcruntime140_threads.dll")
LONG_PATHS = (LONG_PATHS_KEY, "LongPathsEnabled")
DEVELOPER_MODE = (
    r"SOFTWARE\Microsoft\Windows\CurrentVersion\AppModelUnlock",
    "AllowDevelopmentWithoutDevLicense",
)
APP_CONTROL = (r"SYSTEM\CurrentControlSet\Control\CI\Policy", "VerifiedAndReputablePolicyState")
APP_CONTROL_STATES = {0: "off", 1: "on", 2: "evaluation"}
DISPLAY_TIMEOUT = (r"SYSTEM\CurrentControlSet\Control\GraphicsDrivers", "TdrDelay")
DEFAULT_TIMEOUT_S = 2
COMPILERS = r"Microsoft Visual Studio\*\*\VC\Tools\MSVC\*\bin\Hostx64\x64\cl.exe"


def look(here: ProbeContext) -> dict[str, Any]:
    """Return `windows`; nothing on another system."""
    if here.system != "Windows":
        return {}
    long_paths, developer = read_number(*LONG_PATHS), read_number(*DEVELOPER_MODE)
    limit_bytes, free_bytes = read_commit()
    timeout_s = read_number(*DISPLAY_TIMEOUT)
    facts = WindowsFacts(
        build=sys.getwindowsversion().build,
        code_page=ctypes.windll.kernel32.GetACP(),
        # The setting is absent on a fresh Windows, which means off.
        long_paths=bool(long_paths),
        developer_mode=bool(developer),
        app_control=APP_CONTROL_STATES.get(read_number(*APP_CONTROL), ""),
        display_timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
        runtimes=find_runtimes(load_folders(here)),
        commit_limit_bytes=limit_bytes,
        commit_free_bytes=free_bytes,
        msvc=find_compiler(here),
    )
    return {"windows": facts}


def load_folders(here: ProbeContext) -> list[Path]:
    """Return the folders in which this interpreter's process finds a DLL, first come first."""
    executable = Path(getattr(sys, "_base_executable", sys.executable))
    system = Path(here.read("SYSTEMROOT") or r"C:\Windows", "System32")
    conda = [Path(sys.base_exec_prefix, "Library", "bin")]
    listed = [Path(folder) for folder in here.read("PATH").split(os.pathsep) if folder]
    return [executable.parent, *(folder for folder in conda if folder.is_dir()), system, *listed]


def find_runtimes(folders: list[Path]) -> dict[str, RuntimeLibrary]:
    """Return file name -> the copy of Microsoft's C++ runtime that lies first in `folders`."""
    found = {}
    for name in RUNTIMES:
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found[name] = RuntimeLibrary(path=str(path), version=name_version(path))
    return found


def name_version(path: Path) -> str:
    """Return the version in a DLL's resources, such as `14.44.35211.0`; "" when it has none."""
    return ".".join(map(str, read_file_version(path) or ()))


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX"""

    _fields_ = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("free_physical", ctypes.c_uint64),
        ("commit_limit", ctypes.c_uint64),
        ("commit_free", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("free_virtual", ctypes.c_uint64),
        ("free_extended", ctypes.c_uint64),
    ]


def read_commit() -> tuple[int, int]:
    """Return (limit, free) in bytes of what all processes together may ask for: memory and paging file."""
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return 0, 0
    return status.commit_limit, status.commit_free


def find_compiler(here: ProbeContext) -> str:
    """Return the path of Microsoft's C++ compiler, "" without one."""
    on_path = shutil.which("cl", path=here.read("PATH"))
    if on_path:
        return on_path
    for name in ("PROGRAMFILES", "PROGRAMFILES(X86)"):
        root = here.read(name)
        found = sorted(Path(root).glob(COMPILERS)) if root else []
        if found:
            return str(found[-1])
    return ""
